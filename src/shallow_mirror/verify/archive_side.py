"""Driver: the archive that a restore was made from, as the source side of a verification: nothing of a cluster is asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from shallow_mirror.archive_reading.segment_reader import SegmentReader
from shallow_mirror.broker.fetch import MAX_BATCH_BYTES
from shallow_mirror.checkpoints.ledger import ArchiveTable, RestoreRanges, TopicDescription
from shallow_mirror.checkpoints.rows import ArchiveRow
from shallow_mirror.checkpoints.tables import Comparison
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.types import (
    BatchLimits,
    IsolationLevel,
    LogAppendTimePolicy,
    OffsetRange,
    SegmentKind,
    SourcePartition,
    TopicPartition,
)
from shallow_mirror.verify.clusters import TopicView
from shallow_mirror.verify.map_index import Longs
from shallow_mirror.verify.partition_reader import Chunk, LogReader, LogView, Skipped, make_chunk


class ArchiveSide:
    """The archive up to the cut of a restore. Objects that are damaged or missing end the verification: `archive verify`."""

    def __init__(
        self,
        table: ArchiveTable,
        store: ObjectStore,
        decided: RestoreRanges,
        topics: Mapping[str, TopicDescription],
        isolation: IsolationLevel,
        *,
        fetch_bytes: int,
    ) -> None:
        self.refused: tuple[str, ...] = ()
        self._table = table
        self._store = store
        self._decided = decided
        self._topics = topics
        self._isolation = isolation
        self._fetch_bytes = fetch_bytes
        self._sources = {source.topic_partition: source for source in decided.ranges}
        lineages = table.lineages((Comparison("micro_batch", "<=", decided.last_decision),))
        self._views = {source: lineages.view(source, lineage) for source, lineage in decided.lineages.items()}
        self._loaded_topic = ""
        self._rows: dict[SourcePartition, list[ArchiveRow]] = {}

    def cluster_id(self) -> str:
        return self._table.source_cluster_id

    def load_metadata(self, _topic_partitions: Iterable[TopicPartition]) -> None:
        """Return at once: an archive is as it was when the table was opened."""

    def topic(self, name: str) -> TopicView | None:
        description = self._topics.get(name)
        if description is None:
            return None
        is_stamped = description.configs.get("message.timestamp.type") == "LogAppendTime"
        partitions = frozenset(source.partition for source in self._decided.ranges if source.topic == name)
        # What was archived is not compacted any further: every record of it has to be there.
        return TopicView(description.topic_id, partitions, is_compacted=False, is_stamped_by_broker=is_stamped)

    def has(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._sources

    def log_view(self, topic_partition: TopicPartition) -> LogView:
        """Return the rest of the restored range: retention of the archive deletes from its begin on."""
        source = self._sources.get(topic_partition)
        if source is None:
            return LogView(0, 0, False)
        offsets = self._decided.ranges[source]
        start = min((row.segment.source_start for row in self._rows_of(source)), default=offsets.end)
        return LogView(max(offsets.start, min(start, offsets.end)), offsets.end, False)

    def readers(self, topic_partition: TopicPartition, _starts: Longs) -> tuple[LogReader, LogReader]:
        log = self.log_view(topic_partition)
        rows = self._rows_of(self._sources[topic_partition]) if self.has(topic_partition) else ()
        first, second = (
            ArchivedPartitionReader(
                self._store, topic_partition, log, rows, isolation=self._isolation, fetch_bytes=self._fetch_bytes
            )
            for _ in range(2)
        )
        return first, second

    def _rows_of(self, source: SourcePartition) -> Sequence[ArchiveRow]:
        """Return the rows of a partition. Those of one topic are in memory."""
        if self._loaded_topic != source.topic:
            self._rows = {}
            self._table.refresh()  # a running archive compacts its table, and deletes the replaced files after a day
            for row in self._table.segments([source.topic]):
                view = self._views.get(row.segment.source)
                clipped = None if view is None else view.clipped_row(row)
                if clipped is not None and row.micro_batch <= self._decided.last_decision:
                    self._rows.setdefault(row.segment.source, []).append(clipped)
            self._loaded_topic = source.topic
        return self._rows.get(source, ())


class ArchivedPartitionReader:
    """One partition of an archive, up to the end of `log`. A batch that straddles it is yielded as a whole."""

    def __init__(
        self,
        store: ObjectStore,
        topic_partition: TopicPartition,
        log: LogView,
        rows: Sequence[ArchiveRow],
        *,
        isolation: IsolationLevel,
        fetch_bytes: int,
    ) -> None:
        self.topic_partition = topic_partition
        self.log = log
        self.fetch_bytes = fetch_bytes
        self.read_bytes = 0
        self.records_until = log.log_end
        # A batch into which a log was cut has records below its row, which had expired before it was archived.
        data = sorted((row.segment.source_start, row.segment.source_end) for row in rows if row.segment.kind is SegmentKind.DATA)
        self.data_rows: tuple[Longs, Longs] | None = (
            np.array([start for start, _ in data], np.int64),
            np.array([end for _, end in data], np.int64),
        )
        self._store = store
        self._rows = rows
        self._limits = BatchLimits(
            max_message_bytes=MAX_BATCH_BYTES, isolation_level=isolation, log_append_time=LogAppendTimePolicy.PRODUCER
        )

    def read(self, wanted: OffsetRange, _bytes_per_offset: float, *, is_first: bool) -> Iterator[Chunk | Skipped]:
        """Yield every batch whose base offset lies in `wanted`; with `is_first` also one that reaches into it.

        A damaged batch is reported. Raises ArchiveFormatError, ObjectMissingError, StoreUnreachableError.
        """
        start, end = max(wanted.start, self.log.log_start), min(wanted.end, self.log.log_end)
        if start >= end:
            return
        least = wanted.start if not is_first and start == wanted.start else 0
        for batches in SegmentReader(self._store, self._rows, start, end, verifies_batches=False, is_read_once=True):
            chunk = make_chunk(
                self.log,
                self.topic_partition,
                batches.index,
                batches.records,
                batches.aborted,
                OffsetRange(least, end),
                self._limits,
            )
            self.read_bytes += chunk.size_bytes
            yield chunk
