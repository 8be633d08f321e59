"""Programs: records of an archive without Spark and without a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shallow_mirror.archive_reading.read_bounds import NO_END, ReadBounds
from shallow_mirror.archive_reading.record_reader import OpenedRecord, open_records
from shallow_mirror.archive_reading.segment_reader import READ_AHEAD_BYTES, SegmentBatches, SegmentReader
from shallow_mirror.checkpoints.archive_schema import ArchiveRow
from shallow_mirror.checkpoints.archive_table import ArchiveTable
from shallow_mirror.checkpoints.lineages import Lineages
from shallow_mirror.checkpoints.table_location import TableLocation, Tables
from shallow_mirror.checkpoints.table_protocol import Comparison, Condition
from shallow_mirror.object_store.object_store import ObjectStore
from shallow_mirror.types import SegmentKind

_MOST_ROWS_AT_ONCE = 10_000
"""Rows with their indexes in memory while records are read."""
_LOOKUP_AHEAD_BYTES = 1
"""A lookup mostly ends in its first window: nothing is read ahead."""
_KEYS = ["source_topic_id", "source_start", "micro_batch"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedRecord:
    """A record of an archive. `timestamp_type`: 0 CreateTime, 1 LogAppendTime. `kind`: data, unless aborted records are read."""

    topic: str
    topic_id: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    kind: SegmentKind
    lineage: int = 0


class ArchiveReader:
    """The records of one archive: its table at the version at which it was opened, and its objects.

    Where a log was truncated at the source while it was archived, its newest lineage is read: what the source has now, and in
    front of that what both logs have. Or the log of `lineage`; of a lower number where the partition has no such lineage.
    """

    def __init__(self, table: ArchiveTable, store: ObjectStore) -> None:
        self._table, self._store = table, store
        self._lineages: dict[Condition, Lineages] = {}

    @classmethod
    def open(cls, tables: Tables, objects: str, storage_options: Mapping[str, str] | None = None) -> ArchiveReader:
        """Open an archive by the settings `tables`, `objects` and `storage.options` of its archive file. Starts no JVM.

        Raises ConfigError (no archive there, options), OffsetMapConflictError (a damaged table), StoreUnreachableError.
        """
        options = dict(storage_options or {})
        location = tables if isinstance(tables, TableLocation) else TableLocation(str(tables), options)
        return cls(ArchiveTable.open(location), ObjectStore.open(objects, options))

    def read_records(
        self,
        topic: str,
        partition: int,
        start_offset: int = 0,
        end_offset: int | None = None,
        *,
        topic_id: str | None = None,
        include_aborted: bool = False,
        lineage: int | None = None,
    ) -> Iterator[ArchivedRecord]:
        """Yield the records of [start_offset, end_offset) in the order of offsets.

        Of several topics of this name, deleted and created again, those of the one that was archived last, unless `topic_id` says
        which. `include_aborted`: also records of aborted transactions, and control records. Raises ArchiveFormatError and
        ObjectMissingError (an object is damaged or missing), CorruptBatchError, StoreUnreachableError, ConfigError.
        """
        bounds = _bounds(topic, partition).from_offset(start_offset).up_to_offset(NO_END if end_offset is None else end_offset)
        yield from self._records(bounds, topic_id, lineage, READ_AHEAD_BYTES, include_aborted=include_aborted)

    def find_record(
        self,
        topic: str,
        partition: int,
        *,
        offset: int | None = None,
        timestamp_ms: int | None = None,
        topic_id: str | None = None,
        lineage: int | None = None,
    ) -> ArchivedRecord | None:
        """Return the committed record at an offset, or the first one that is not older than a time; None where there is none.

        `topic_id` and errors: as for `read_records`.
        """
        if (offset is None) == (timestamp_ms is None):
            raise ValueError("give an offset or a time")
        bounds = _bounds(topic, partition)
        if offset is not None:
            bounds = bounds.from_offset(offset).up_to_offset(offset + 1)
        if timestamp_ms is not None:
            bounds = bounds.from_time(timestamp_ms)
        return next(self._records(bounds, topic_id, lineage, _LOOKUP_AHEAD_BYTES), None)

    def _records(
        self,
        bounds: ReadBounds,
        topic_id: str | None,
        lineage: int | None,
        read_ahead_bytes: int,
        *,
        include_aborted: bool = False,
    ) -> Iterator[ArchivedRecord]:
        lineages = self._lineages_of(bounds.of_partitions_only())
        for all_rows in self._rows(bounds, topic_id):
            views = [(row, lineages.view(row.segment.source, lineage)) for row in all_rows]
            rows = [clipped for row, view in views if (clipped := view.clipped_row(row)) is not None]
            reader = SegmentReader(
                self._store,
                rows,
                bounds.start_offset,
                bounds.end_offset,
                read_ahead_bytes,
                min_timestamp_ms=bounds.run_min_timestamp_ms,
            )
            for part in reader:
                for opened in open_records(part, bounds, includes_aborted=include_aborted):
                    yield _archived_record(part, opened)

    def _lineages_of(self, condition: Condition) -> Lineages:
        """Return the lineages of what is read, kept for further lookups: the table stays at its version."""
        if condition not in self._lineages:
            self._lineages[condition] = self._table.lineages(condition)
        return self._lineages[condition]

    def _rows(self, bounds: ReadBounds, topic_id: str | None) -> Iterator[Sequence[ArchiveRow]]:
        """Yield the rows of one topic in the order of offsets: few at first, because a lookup mostly ends in the first one."""
        if bounds.is_empty:
            return
        (condition,) = bounds.conditions()
        if topic_id is not None:
            condition = (*condition, Comparison("source_topic_id", "=", topic_id))
        if bounds.end_offset - bounds.start_offset == 1:
            rows = self._table.rows(condition)
            if rows:
                newest = max(rows, key=lambda row: row.micro_batch).segment.source
                yield [row for row in rows if row.segment.source == newest]
            return
        chosen = _newest_topic(self._table.pieces(condition, _KEYS))
        if chosen is None:
            return
        of_topic = (*condition, Comparison("source_topic_id", "=", chosen.topic_id))
        first, count = 0, 1
        while first < len(chosen.starts):
            starts = chosen.starts[first : first + count]
            window = Comparison("source_start", ">", int(starts[0]) - 1), Comparison("source_start", "<=", int(starts[-1]))
            yield self._table.rows((*of_topic, *window))
            first, count = first + count, min(10 * count, _MOST_ROWS_AT_ONCE)


@dataclass(frozen=True, slots=True)
class _TopicRows:
    """Where the rows of one topic id begin: each offset once, in order."""

    topic_id: str
    starts: npt.NDArray[np.int64]


def _newest_topic(pieces: Iterable[pa.Table]) -> _TopicRows | None:
    """Return the rows of the topic id that was archived last; 8 bytes a row in memory."""
    starts: dict[str, list[npt.NDArray[np.int64]]] = {}
    newest: dict[str, int] = {}
    for piece in pieces:
        for topic_id in pc.unique(piece["source_topic_id"]).to_pylist():
            of_topic = piece.filter(pc.equal(piece["source_topic_id"], topic_id))
            starts.setdefault(topic_id, []).append(of_topic["source_start"].to_numpy())
            newest[topic_id] = max(newest.get(topic_id, 0), pc.max(of_topic["micro_batch"]).as_py())
    if not newest:
        return None
    topic_id = max(newest, key=newest.__getitem__)
    # Several rows may begin at one offset: the first one of a lineage, and that of the former lineage.
    return _TopicRows(topic_id, np.unique(np.concatenate(starts[topic_id])))


def _bounds(topic: str, partition: int) -> ReadBounds:
    return ReadBounds(topics=frozenset({topic}), partitions=frozenset({partition}))


def _archived_record(part: SegmentBatches, opened: OpenedRecord) -> ArchivedRecord:
    source, record = part.source, opened.record
    return ArchivedRecord(
        topic=source.topic,
        topic_id=source.topic_id,
        partition=source.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        timestamp_type=opened.timestamp_type,
        key=None if record.key is None else bytes(record.key),
        value=None if record.value is None else bytes(record.value),
        headers=tuple(
            (bytes(name).decode(errors="replace"), None if value is None else bytes(value)) for name, value in record.headers
        ),
        kind=opened.kind,
        lineage=part.segment.segment.lineage,
    )
