"""Driver: deletion of the offsets of groups that no restore of the archive needs any more."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pyarrow.compute as pc

from shallow_mirror.checkpoints.ledger import ArchiveTable
from shallow_mirror.checkpoints.logs import delete_outdated, thin_out
from shallow_mirror.checkpoints.rows import SegmentState
from shallow_mirror.checkpoints.tables import BestEffortTables, Comparison, ms_of

_KEPT_DATA = (Comparison("state", "=", SegmentState.COPY_SEGMENT_FINISHED.value), Comparison("kind", "=", "data"))


class GroupNoteExpiry:
    """Notes older than `keep_s` are thinned out to complete passes. Those in front of the oldest kept data are deleted.

    The newest complete pass in front of it stays: a restore up to the oldest kept record needs it.
    """

    def __init__(self, tables: BestEffortTables, table: ArchiveTable, keep_s: float, now_ms: Callable[[], int]) -> None:
        self._tables = tables
        self._table = table
        self._keep_s = keep_s
        self._now_ms = now_ms

    def run(self) -> None:
        """Raise nothing for the notes: a failed deletion is logged, and tried again."""
        bound = datetime.fromtimestamp(self._now_ms() / 1000, UTC) - timedelta(seconds=self._keep_s)
        thin_out(self._tables, bound)
        oldest_ms = oldest_cut_ms(self._table)
        if oldest_ms is not None:
            # From 1970 on: producers set any timestamps.
            bound = min(bound, datetime.fromtimestamp(max(0, oldest_ms) / 1000, UTC))
        delete_outdated(self._tables, bound)


def oldest_cut_ms(table: ArchiveTable) -> int | None:
    """Return the earliest time at which a cut has data: of the oldest record or decision that is kept. None without data."""
    times: list[int] = []
    for piece in table.pieces(_KEPT_DATA, ["decided_at", "min_timestamp_ms"]):
        if piece.num_rows:
            times.append(ms_of(pc.min(piece["decided_at"]).as_py()))
            timestamp_ms = pc.min(piece["min_timestamp_ms"]).as_py()
            times += [] if timestamp_ms is None else [timestamp_ms]
    return min(times, default=None)
