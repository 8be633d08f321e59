"""The public data source `kafka-batches`: one row per record batch, as stream and as batch query.

`register_kafka_batches(spark)` once, then `spark.readStream.format("kafka-batches")`. Options: `source_options.py`;
columns: `broker/fetch/arrow_rows.py`. Batches are not opened: a row has every field of the header, what a mirror would do
with the batch, and its bytes. With `batches` = `all` control batches, aborted data and gaps have rows as well.
"""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.cluster import cluster_of_worker, freeze_imports_once
from shallow_mirror.broker.fetch import PARTITION_PATIENCE_MS, SPARK_SCHEMA, Keep, RangeReader, RangeRows, ReadRange, failed_row
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import (
    BatchRefusedError,
    ConfigError,
    CorruptBatchError,
    DataLossError,
    LogTruncatedError,
    MirrorError,
    RetriableError,
    TopicAccessError,
    TopicRecreatedError,
)
from shallow_mirror.sinks import Side, UnfinishedRange
from shallow_mirror.streaming.planning import offset_planning
from shallow_mirror.streaming.planning.offset_planning import Offsets
from shallow_mirror.streaming.planning.planner import MicroBatchPlanner
from shallow_mirror.streaming.planning.source_offsets import LogEnds, SourceOffsets
from shallow_mirror.streaming.sources.planner_options import make_micro_batch_planner, mirror_of
from shallow_mirror.streaming.sources.registration import register
from shallow_mirror.streaming.sources.source_options import SourceOptions, parse_options
from shallow_mirror.streaming.sources.stream_reader import PlannedStreamReader, SlotPartition, slot_partitions
from shallow_mirror.types import (
    LATEST_TIMESTAMP,
    BatchLimits,
    IsolationLevel,
    LogAppendTimePolicy,
    PlannedRange,
    SegmentKind,
    SourcePartition,
    TopicPartition,
)

_log = logging.getLogger(__name__)

NAME = "kafka-batches"

_STALL_REQUESTS = 4
"""A task fails when the source sent nothing for so many request timeouts."""


def register_kafka_batches(spark: SparkSession) -> None:
    register(spark, KafkaBatches)


class KafkaBatches(DataSource):  # type: ignore[misc]
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return SPARK_SCHEMA

    def streamReader(self, schema: object) -> BatchStreamReader:  # noqa: N802 - Spark's name
        if mirror_of(dict(self.options)) is None:
            parse_options(dict(self.options), is_streaming=True)  # an invalid option fails before the query starts
        return BatchStreamReader(dict(self.options))

    def reader(self, schema: object) -> BatchReader:
        return BatchReader(dict(self.options))


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReader:
    """Settings of a task that turns planned ranges into rows.

    With `failures_as_rows` (of a mirror) an error of this package is the last row, and a partition that cannot be read has a
    row with the offset at which its range was left; with `isolates` also one with a definite error.
    """

    client: ClientConfig
    isolation: IsolationLevel
    limits: BatchLimits
    keep: Keep
    fetch_bytes: int
    is_data_loss_fatal: bool = True
    failures_as_rows: bool = False
    isolates: bool = False

    @classmethod
    def of_options(cls, options: SourceOptions) -> RowReader:
        isolation = options.plan.isolation
        return cls(
            client=options.client,
            isolation=isolation,
            limits=_any_target(isolation, LogAppendTimePolicy.KEEP),
            keep=options.keep,
            fetch_bytes=options.fetch_bytes,
            is_data_loss_fatal=options.is_data_loss_fatal,
        )

    @classmethod
    def of_mirror(cls, config: MirrorConfig) -> RowReader:
        """Return a reader of everything in every range: the sink admits batches, with the limits of the real target."""
        isolation = config.read.isolation_level
        return cls(
            client=config.source.client,
            isolation=isolation,
            limits=_any_target(isolation, config.read.log_append_time),
            keep=Keep.ALL,
            fetch_bytes=config.read.fetch_bytes,
            failures_as_rows=True,
            is_data_loss_fatal=config.read.on_data_loss == "stop",
            isolates=config.on_error == "isolate",
        )

    def read(self, ranges: Sequence[PlannedRange], cluster_id: str = "") -> Iterator[pa.RecordBatch]:
        """Yield the rows of `ranges`. Raises DataLossError, CorruptBatchError, BatchRefusedError, RetriableError.

        `cluster_id`: as of `cluster_of_worker`.
        """
        freeze_imports_once()
        try:
            yield from _RangeReading(self, cluster_of_worker(self.client, cluster_id), ranges).rows()
        except MirrorError as error:
            if not self.failures_as_rows:
                raise
            yield failed_row(ranges[0].source, ranges[0].start, pickle.dumps(error))


def _any_target(isolation: IsolationLevel, log_append_time: LogAppendTimePolicy) -> BatchLimits:
    return BatchLimits(max_message_bytes=(1 << 31) - 1, isolation_level=isolation, log_append_time=log_append_time)


class _RangeReading:
    def __init__(self, settings: RowReader, cluster: Cluster, ranges: Sequence[PlannedRange]) -> None:
        self._settings = settings
        self._cluster = cluster
        self._planned = {planned.source.topic_partition: planned for planned in ranges}
        self._left: set[TopicPartition] = set()
        self._rows = {
            partition: RangeRows(planned.source, planned.start, planned.end, limits=settings.limits, keep=settings.keep)
            for partition, planned in self._planned.items()
        }

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield rows while anything arrives: only a source that is silent for long ends it. Raises as `RowReader.read`."""
        while pending := [
            partition
            for partition, rows in self._rows.items()
            if partition not in self._left and rows.position < self._planned[partition].end
        ]:
            has_moved = False
            try:
                for arrow_batch in self._rows_of(pending):
                    has_moved = True
                    yield arrow_batch
            except RetriableError:
                if not has_moved:
                    raise
            except DataLossError as loss:
                if self._is_isolated(loss) and not self._is_expired(loss):
                    yield from self._leave([loss.topic_partition], loss)
                else:
                    yield from self._expired(loss)
            except (BatchRefusedError, CorruptBatchError) as error:
                if not self._is_isolated(error):
                    raise
                yield from self._leave([error.topic_partition], error)
            except TopicAccessError as error:
                if not self._settings.isolates:
                    raise
                yield from self._leave([partition for partition in pending if partition.topic in error.topics], error)

    def _is_isolated(self, error: BatchRefusedError | CorruptBatchError | DataLossError) -> bool:
        settings = self._settings
        if settings.failures_as_rows and not settings.is_data_loss_fatal and isinstance(error, LogTruncatedError):
            return error.topic_partition in self._planned  # the log ends below the position: the partition waits there
        if isinstance(error, TopicRecreatedError) and not settings.is_data_loss_fatal:
            return False  # the driver begins again, with the partitions that the topic has now
        return settings.isolates and error.topic_partition in self._planned

    def _leave(self, partitions: Sequence[TopicPartition], error: MirrorError) -> Iterator[pa.RecordBatch]:
        """Yield rows with the offsets at which these ranges were left; the others are still read."""
        for partition in partitions:
            self._left.add(partition)
            source, position = self._planned[partition].source, self._rows[partition].position
            left = UnfinishedRange.of(source, position, Side.SOURCE, error)
            yield failed_row(source, position, pickle.dumps(left))

    def _rows_of(self, pending: Sequence[TopicPartition]) -> Iterator[pa.RecordBatch]:
        settings, ranges = self._settings, list[ReadRange]()
        for partition in pending:
            planned, position = self._planned[partition], self._rows[partition].position
            ranges.append(ReadRange(partition, position, planned.end, planned.bytes_per_offset, planned.source.topic_id))
        reader = RangeReader(
            self._cluster,
            ranges,
            isolation=settings.isolation,
            fetch_bytes=settings.fetch_bytes,
            deadline=Deadline.after_ms(settings.client.request_timeout_ms * _STALL_REQUESTS, time.monotonic),
            patience_ms=PARTITION_PATIENCE_MS if settings.failures_as_rows else None,
        )
        for response in reader:
            for fetched in response:
                yield from self._rows[fetched.topic_partition].of_answer(fetched)
        # Behind the last batch compaction may have left a gap up to the position that the broker confirmed.
        for partition, position in reader.positions().items():
            yield from self._rows[partition].up_to(min(position, self._planned[partition].end))
        for partition, error in reader.unfinished().items():
            yield from self._leave([partition], error)

    def _expired(self, loss: DataLossError) -> Iterator[pa.RecordBatch]:
        """Yield a row of kind expired for offsets that retention deleted.

        Raises DataLossError if that is fatal or the log was cut.
        """
        rows, planned = self._rows[loss.topic_partition], self._planned[loss.topic_partition]
        if not self._is_expired(loss):
            raise loss
        assert loss.log_start_offset is not None
        _log.warning("%s; continuing there", loss)
        yield from rows.up_to(min(loss.log_start_offset, planned.end), SegmentKind.EXPIRED)

    def _is_expired(self, loss: DataLossError) -> bool:
        position = self._rows[loss.topic_partition].position
        return not self._settings.is_data_loss_fatal and (loss.log_start_offset or 0) > position


class BatchStreamReader(PlannedStreamReader):
    def make_planner(self) -> MicroBatchPlanner:
        if mirror_of(self.options) is not None:
            return super().make_planner()
        options = parse_options(self.options, is_streaming=True)
        return make_micro_batch_planner(options.plan, options.client, options.plan.slots)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SlotPartition)
        yield from _row_reader(self.options, is_streaming=True).read(partition.ranges, partition.cluster_id)


def _row_reader(options: Mapping[str, str], *, is_streaming: bool) -> RowReader:
    config = mirror_of(options)
    if config is not None:
        return RowReader.of_mirror(config)
    return RowReader.of_options(parse_options(options, is_streaming=is_streaming))


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """A bounded read of [startingOffsets, endingOffsets)."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)

    def partitions(self) -> Sequence[InputPartition]:
        options = parse_options(self._options, is_streaming=False)
        cluster = Cluster(options.client)
        try:
            return slot_partitions(_plan_batch_query(options, SourceOffsets(options.plan, cluster)), cluster.known_id)
        finally:
            cluster.close()

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a slot. Spark passes None if there are no input partitions."""
        if isinstance(partition, SlotPartition):
            yield from _row_reader(self._options, is_streaming=False).read(partition.ranges, partition.cluster_id)


def _plan_batch_query(options: SourceOptions, source: SourceOffsets) -> tuple[PlannedRange, ...]:
    deadline = Deadline.after_ms(options.client.request_timeout_ms, time.monotonic)
    listing = source.all_log_ends(deadline)
    offset_planning.require_topics(options.plan.required_topics, listing.topic_ids)
    starts = source.starts_of(listing.ends, listing, deadline, is_first_run=True)
    ends = _ends(options, listing)
    _require_forwards(options, starts, ends, listing)
    return offset_planning.plan_ranges(
        starts,
        ends,
        bytes_per_offset=source.sample(starts, listing, deadline),
        slots=options.plan.slots,
        slot_bytes=options.plan.slot_bytes,
        parallelism=options.plan.slots,
        last={},
    )


def _ends(options: SourceOptions, listing: LogEnds) -> dict[SourcePartition, int]:
    """Return the end of each partition. Raises ConfigError for an end beyond the log's, which would otherwise be waited for."""
    if isinstance(options.ends, int):
        return dict(listing.ends)
    problems, ends = [], {}
    for source, latest in listing.ends.items():
        end = options.ends.get(source.topic_partition)
        if end is None or end < LATEST_TIMESTAMP or end > latest:
            reason = "has none" if end is None else f"{end} is not between 0 and the log's end {latest}"
            problems.append(f"endingOffsets: {source.topic_partition}: {reason}")
            continue
        ends[source] = latest if end == LATEST_TIMESTAMP else end
    unknown = sorted(options.ends.keys() - {source.topic_partition for source in listing.ends})
    problems += [f"endingOffsets: there is no partition {partition} to read" for partition in unknown]
    if problems:
        raise ConfigError(problems)
    return ends


def _require_forwards(options: SourceOptions, starts: Offsets, ends: Offsets, listing: LogEnds) -> None:
    """Raise ConfigError if an end is before the configured start; `starts` may be lower, at the base offset of a batch."""
    if isinstance(options.ends, int):
        return
    problems = []
    for source, end in sorted(ends.items()):
        name = source.topic_partition
        start = max(starts[source], options.plan.start_offsets.get(name, 0))
        if end < start and options.ends[name] != LATEST_TIMESTAMP:
            problems.append(f"endingOffsets: {name}: {end} is before the start {start}; the log's end is {listing.ends[source]}")
    if problems:
        raise ConfigError(problems)
