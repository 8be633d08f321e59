"""Programs: records of an archive without Spark and without a cluster."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shallow_mirror.archive_reading.archive_history import Incarnation, read_history, read_topic_ids, topic_id_problem
from shallow_mirror.archive_reading.read_bounds import NO_END, ReadBounds
from shallow_mirror.archive_reading.record_reader import OpenedRecord, open_records
from shallow_mirror.archive_reading.segment_reader import READ_AHEAD_BYTES, SegmentBatches, SegmentReader
from shallow_mirror.archive_reading.state_at_cut import StateAtCut, TopicAtCut
from shallow_mirror.checkpoints import Lineages
from shallow_mirror.checkpoints.ledger import ArchiveTable, seen_topics
from shallow_mirror.checkpoints.rows import ArchiveRow
from shallow_mirror.checkpoints.tables import Comparison, Condition, TableLocation, Tables
from shallow_mirror.errors import ConfigError
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.types import SegmentKind

_log = logging.getLogger(__name__)

_MOST_ROWS_AT_ONCE = 10_000
"""Rows with their indexes in memory while records are read."""
_LOOKUP_AHEAD_BYTES = 1
"""A lookup mostly ends in its first window: nothing is read ahead."""


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

    Of a topic that was deleted and created again the one is read that the archive saw last, also if it has no record within
    the bounds. `topic_id` chooses another one. With `as_of_ms` that one and that log are read that were there at a time, as a
    restore up to that time takes them (design/archive.md); it bounds no records.

    If a log was truncated at the source while it was archived, its newest lineage is read: the present log of the source, and
    in front of that the part that both logs have. Or the log of `lineage`; of a lower number if the partition has no such
    lineage.
    """

    def __init__(self, table: ArchiveTable, store: ObjectStore, tables: Tables | None = None) -> None:
        """`tables`: the place of the table, for the descriptions of topics beside it."""
        self._table, self._store, self._tables = table, store, tables
        self._lineages: dict[Condition, Lineages] = {}
        self._topic_ids: dict[str, list[str]] = {}
        self._histories: dict[str, list[Incarnation]] = {}

    @classmethod
    def open(cls, tables: Tables, objects: str, storage_options: Mapping[str, str] | None = None) -> ArchiveReader:
        """Open an archive by the settings `tables`, `objects` and `storage.options` of its archive file. Starts no JVM.

        Raises ConfigError (no archive there, options), OffsetMapConflictError (a damaged table), StoreUnreachableError.
        """
        options = dict(storage_options or {})
        location = tables if isinstance(tables, TableLocation) else TableLocation(str(tables), options)
        return cls(ArchiveTable.open(location), ObjectStore.open(objects, options), location)

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
        as_of_ms: int | None = None,
    ) -> Iterator[ArchivedRecord]:
        """Yield the records of [start_offset, end_offset) in the order of offsets.

        `include_aborted`: also records of aborted transactions, and control records. Raises ArchiveFormatError and
        ObjectMissingError (an object is damaged or missing), CorruptBatchError, StoreUnreachableError, ConfigError (also for a
        `topic_id` that the topic does not have).
        """
        bounds = _bounds(topic, partition).from_offset(start_offset).up_to_offset(NO_END if end_offset is None else end_offset)
        log = self._chosen_log(topic, partition, topic_id, lineage, as_of_ms)
        if log is not None:
            yield from self._records(bounds, *log, READ_AHEAD_BYTES, include_aborted=include_aborted)

    def find_record(
        self,
        topic: str,
        partition: int,
        *,
        offset: int | None = None,
        timestamp_ms: int | None = None,
        topic_id: str | None = None,
        lineage: int | None = None,
        as_of_ms: int | None = None,
    ) -> ArchivedRecord | None:
        """Return the committed record at an offset, or the first one that is not older than a time; None if there is none.

        Raises as `read_records`.
        """
        if (offset is None) == (timestamp_ms is None):
            raise ValueError("give an offset or a time")
        bounds = _bounds(topic, partition)
        if offset is not None:
            bounds = bounds.from_offset(offset).up_to_offset(offset + 1)
        if timestamp_ms is not None:
            bounds = bounds.from_time(timestamp_ms)
        log = self._chosen_log(topic, partition, topic_id, lineage, as_of_ms)
        return None if log is None else next(self._records(bounds, *log, _LOOKUP_AHEAD_BYTES), None)

    def _chosen_log(
        self, topic: str, partition: int, topic_id: str | None, lineage: int | None, as_of_ms: int | None
    ) -> tuple[str, int | None] | None:
        """Return topic id and lineage of the log that is read; None if there is none.

        Decided before any bound is applied: the newest incarnation may have no record within bounds in which a former one has
        some.
        """
        of_topic = (Comparison("source_topic", "=", topic),)
        if topic not in self._topic_ids:
            self._topic_ids[topic] = read_topic_ids(self._table, of_topic).get(topic, [])
        topic_ids = self._topic_ids[topic]
        if not topic_ids:
            return None
        if topic_id is not None and topic_id not in topic_ids:
            problem = topic_id_problem("topic_id", topic, topic_id, read_history(self._table, of_topic)[topic])
            raise ConfigError([] if problem is None else [problem])
        if as_of_ms is None:
            return topic_id or topic_ids[-1], lineage
        at_cut = self._at_cut(topic, topic_id, as_of_ms)
        if partition not in at_cut.lineages:
            return None
        return at_cut.incarnation.topic_id, at_cut.lineages[partition] if lineage is None else lineage

    def _at_cut(self, topic: str, topic_id: str | None, as_of_ms: int) -> TopicAtCut:
        if topic not in self._histories:
            seen = [] if self._tables is None else seen_topics(self._tables)
            self._histories[topic] = read_history(self._table, (Comparison("source_topic", "=", topic),), seen)[topic]
        state = StateAtCut(self._table, self._store, time_ms=as_of_ms)
        at_cut = state.topic(self._histories[topic], topic_id)
        for note in at_cut.notes:
            _log.info("%s", note)
        return at_cut

    def _records(
        self,
        bounds: ReadBounds,
        topic_id: str,
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
                trusts_old_offsets=True,
            )
            for part in reader:
                for opened in open_records(part, bounds, includes_aborted=include_aborted):
                    yield _archived_record(part, opened)

    def _lineages_of(self, condition: Condition) -> Lineages:
        """Return the lineages of the partitions, kept for further lookups: the table stays at its version."""
        if condition not in self._lineages:
            self._lineages[condition] = self._table.lineages(condition)
        return self._lineages[condition]

    def _rows(self, bounds: ReadBounds, topic_id: str) -> Iterator[Sequence[ArchiveRow]]:
        """Yield the rows of one topic in the order of offsets: few at first, because a lookup mostly ends in the first one."""
        if bounds.is_empty:
            return
        (condition,) = bounds.conditions()
        of_topic = (*condition, Comparison("source_topic_id", "=", topic_id))
        if bounds.end_offset - bounds.start_offset == 1:
            yield self._table.rows(of_topic)
            return
        pieces = [piece["source_start"].to_numpy() for piece in self._table.pieces(of_topic, ["source_start"])]
        # Several rows may begin at one offset: the first one of a lineage, and that of the former lineage.
        starts: npt.NDArray[np.int64] = np.unique(np.concatenate(pieces)) if pieces else np.empty(0, np.int64)
        first, count = 0, 1
        while first < len(starts):
            some = starts[first : first + count]
            window = Comparison("source_start", ">", int(some[0]) - 1), Comparison("source_start", "<=", int(some[-1]))
            yield self._table.rows((*of_topic, *window))
            first, count = first + count, min(10 * count, _MOST_ROWS_AT_ONCE)


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
