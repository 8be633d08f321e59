"""Driver: rows of the newest decisions of the offset map, kept in memory: a step needs no others, and many come in a second."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa
import pyarrow.compute as pc

from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.tables import Comparison
from shallow_mirror.groups.offset_translation import COMMIT_COLUMNS, CommitTranslator
from shallow_mirror.groups.sync_plan import add_rows

MOST_ROWS = 100_000


class RecentRows:
    """Settled rows never change, so those that were read once stay right. Not thread-safe.

    But those of pending transactions may be removed: when one is not pending any more, begin with another one of these.
    """

    def __init__(self) -> None:
        self._tables: list[tuple[int, pa.Table]] = []
        """Rows of one reading, with their newest micro-batch, in order of these."""
        self._since: int | None = None
        """Rows of later micro-batches are here; None: nothing was read yet."""
        self._until = -1
        self._revision: object = None

    def refresh(self, offset_map: OffsetMap) -> None:
        """Read what was decided since. Raises as `OffsetMap.settled_rows`."""
        revision = offset_map.recorded()
        if revision is None or revision == self._revision:
            return
        is_unsettled = revision.unsettled_micro_batch is not None
        if self._since is None:
            self._since = self._until = revision.micro_batch - is_unsettled
        else:
            rows = offset_map.settled_rows((Comparison("micro_batch", ">", self._until),), columns=COMMIT_COLUMNS)
            if rows.num_rows:
                self._until = int(pc.max(rows.column("micro_batch")).as_py())
                self._tables.append((self._until, rows))
        while sum(rows.num_rows for _, rows in self._tables) > MOST_ROWS:
            self._since, _ = self._tables.pop(0)
        self._revision = revision

    def add_to(self, translator: CommitTranslator, offset_map: OffsetMap, topics: Collection[str], first: int) -> None:
        """Add the rows from micro-batch `first` on, as `add_rows`; from the table only those that are not here."""
        if self._since is None or first <= self._since:
            add_rows(translator, offset_map, topics, first)
            return
        recent = [rows for newest, rows in self._tables if newest >= first]
        if recent and topics:
            rows = pa.concat_tables(recent)
            translator.add(rows.filter(pc.greater_equal(rows.column("micro_batch"), first)))
