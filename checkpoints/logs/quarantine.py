"""Driver and commands: the table `quarantine`, and which batches are in quarantine: the map says so, the table holds them.

Rows of the table that no settled row of the map speaks of are left over from decisions that were never made.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self

from shallow_mirror.checkpoints.ledger.offset_map import OffsetMap
from shallow_mirror.checkpoints.logs.quarantined_batches import (
    DESCRIBING,
    QUARANTINE,
    QUARANTINE_TABLE,
    BatchKey,
    QuarantinedBatch,
    QuarantineRow,
    batch_of,
    is_whole,
    key_of,
    row_of,
)
from shallow_mirror.checkpoints.rows.schema import row_to_segment
from shallow_mirror.checkpoints.tables.storage import DurableTable, TableStorage
from shallow_mirror.checkpoints.tables.table_location import Tables
from shallow_mirror.checkpoints.tables.table_protocol import Comparison, Condition
from shallow_mirror.errors import OffsetMapConflictError
from shallow_mirror.types import Segment, SegmentKind, SourcePartition


class QuarantineTable:
    """The batches as they were quarantined. A row has to be there before the decision that speaks of it.

    Only the driver writes it, from the reports of tasks, so that it reaches every catalog and a folder of this machine alike.
    """

    def __init__(self, rows: DurableTable[QuarantineRow], now_ms: Callable[[], int] = lambda: int(time.time() * 1000)) -> None:
        self._rows, self._now_ms = rows, now_ms

    @classmethod
    def open(cls, storage: TableStorage | Tables) -> Self:
        return cls(TableStorage.of(storage).durable_table(QUARANTINE_TABLE, QUARANTINE))

    def add(self, batches: Sequence[QuarantinedBatch], decision: int) -> None:
        """Add batches; on the disk when it returns.

        Raises OutcomeUnknownError; rows of a decision that never comes count for nothing.
        """
        now_ms = self._now_ms()
        self._rows.append([row_of(batch, decision, now_ms) for batch in batches])

    def described(self, condition: Condition) -> list[Mapping[str, Any]]:
        """Return rows without the batches themselves, in no order."""
        return list(self._rows.read_columns(condition, DESCRIBING))

    def whole(self, condition: Condition) -> list[Mapping[str, Any]]:
        """Return rows with the batches: as many as `condition` lets pass are in memory at once."""
        return list(self._rows.read_columns(condition, None))


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineEntry:
    """A quarantined row of the map. `described`: that of the table, without the batch; None if it is gone.

    `released`: places that its records were copied to after all, in order of offsets; none as long as it is in quarantine.
    """

    segment: Segment
    decided_at: datetime
    described: Mapping[str, Any] | None
    released: tuple[Segment, ...]

    @property
    def key(self) -> BatchKey:
        return BatchKey(self.segment.source, self.segment.source_start, self.segment.source_end)

    @property
    def is_released(self) -> bool:
        return bool(self.released)

    def __str__(self) -> str:
        last = self.segment.source_end - 1
        return f"{self.segment.source.topic_partition}, offsets {self.segment.source_start} to {last}"


class Quarantine:
    """The batches in quarantine, as of the time when the map was opened."""

    def __init__(self, offset_map: OffsetMap, table: QuarantineTable) -> None:
        self._map, self._table = offset_map, table

    @classmethod
    def open(cls, storage: TableStorage | Tables, *, mirror: str | None = None) -> Self:
        """Open map and table. Raises as `OffsetMap.open`."""
        storage = TableStorage.of(storage)
        return cls(OffsetMap.open(storage, mirror=mirror), QuarantineTable.open(storage))

    def entries(self, condition: Condition = ()) -> tuple[QuarantineEntry, ...]:
        """Return all entries in source order, also those that were released. `condition`: on columns that both tables have.

        Raises OutcomeUnknownError (not read), OffsetMapConflictError (damaged).
        """
        quarantined = rows_of_kind(self._map, SegmentKind.QUARANTINED, condition)
        if not quarantined:
            return ()
        released = rows_of_kind(self._map, SegmentKind.RELEASED, condition)
        return entries_of(quarantined, released, self._table.described(condition))

    def batch(self, entry: QuarantineEntry) -> QuarantinedBatch:
        """Return the batch.

        Raises OffsetMapConflictError if the table does not hold it as it was quarantined, OutcomeUnknownError.
        """
        wanted = (
            Comparison("source_topic", "=", entry.segment.source.topic),
            Comparison("source_partition", "=", entry.segment.source.partition),
            Comparison("source_start", "=", entry.segment.source_start),
        )
        rows = [row for row in self._table.whole(wanted) if key_of(row) == entry.key]
        if entry.described is None or not rows:
            raise OffsetMapConflictError(f"{entry}: the table quarantine does not hold this batch: its row was deleted")
        row = max(rows, key=_decision)
        if not is_whole(row):
            raise OffsetMapConflictError(f"{entry}: the table quarantine holds other bytes than were quarantined: it is damaged")
        return batch_of(row)


def undescribed_entries(offset_map: OffsetMap) -> tuple[QuarantineEntry, ...]:
    """Return the entries by the map alone."""
    quarantined = rows_of_kind(offset_map, SegmentKind.QUARANTINED)
    return entries_of(quarantined, rows_of_kind(offset_map, SegmentKind.RELEASED) if quarantined else (), ())


def rows_of_kind(offset_map: OffsetMap, kind: SegmentKind, condition: Condition = ()) -> list[dict[str, Any]]:
    return list(offset_map.settled_rows((*condition, Comparison("kind", "=", kind.value))).to_pylist())


def entries_of(
    quarantined: Sequence[Mapping[str, Any]], released: Sequence[Mapping[str, Any]], described: Sequence[Mapping[str, Any]]
) -> tuple[QuarantineEntry, ...]:
    """Build the entries. Pure. The first two are rows of the map, `described` those of the table."""
    newest = {key_of(row): row for row in sorted(described, key=_decision)}
    parts: defaultdict[SourcePartition, list[Segment]] = defaultdict(list)
    for row in sorted(released, key=lambda row: int(row["source_start"])):
        segment = row_to_segment(row).segment
        parts[segment.source].append(segment)
    entries = []
    for row in sorted(quarantined, key=key_of):
        segment = row_to_segment(row).segment
        within = (
            part
            for part in parts[segment.source]
            if part.source_start < segment.source_end and segment.source_start < part.source_end
        )
        entries.append(
            QuarantineEntry(
                segment=segment, decided_at=row["decided_at"], described=newest.get(key_of(row)), released=tuple(within)
            )
        )
    return tuple(entries)


def _decision(row: Mapping[str, Any]) -> int:
    return int(row["decision"])
