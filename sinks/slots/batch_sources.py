"""Executor: where the batches of a slot come from: the task's own Fetch requests, or rows that Spark hands over.

Both give whole batches of [position, end of the range) by source partition. Admission, restamping, produce and segments do not
depend on which it was.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

import pyarrow as pa

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.worker_clients import buffers_of_worker, keep_buffers
from shallow_mirror.broker.fetch import arrow_rows
from shallow_mirror.broker.fetch.fetch_client import MAX_BATCH_BYTES
from shallow_mirror.broker.fetch.range_progress import ReadRange
from shallow_mirror.broker.fetch.range_reader import BUFFER_SLACK_BYTES, RangeReader
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import CorruptBatchError, DataLossError, MirrorError
from shallow_mirror.sinks.batch_parts import ReadPart
from shallow_mirror.sinks.slot_results import Side, UnfinishedRange
from shallow_mirror.sinks.slots.slot_job import SlotJob
from shallow_mirror.types import UNKNOWN_BYTES_PER_OFFSET, IsolationLevel, PlannedRange, SourcePartition
from shallow_mirror.wire.batches.batch_index import index_batches

_NO_END = (1 << 63) - 1

NO_END_LIMITS: Mapping[SourcePartition, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingLimits:
    """How a task reads the source. `fetch_bytes`: of one of its receive `buffers`; `patience_ms`: that of a RangeReader;
    `follow_ms`: for how long it reads on behind the ends of its ranges.
    """

    isolation: IsolationLevel
    fetch_bytes: int
    deadline: Deadline
    buffers: int
    patience_ms: float | None = None
    follow_ms: float = 0.0

    @classmethod
    def of_job(cls, job: SlotJob, deadline: Deadline, patience_ms: float | None = None) -> ReadingLimits:
        """Return the limits of a task, with a buffer for each response that its job may have in flight."""
        return cls(
            isolation=job.isolation,
            fetch_bytes=job.fetch_bytes,
            deadline=deadline,
            buffers=1 + job.responses_in_flight,
            patience_ms=patience_ms,
            follow_ms=job.follow_ms,
        )


class SlotReading(Protocol):
    """Iterate once. Raises DataLossError, CorruptBatchError, BatchRefusedError, RetriableError.

    A part names a source partition once. `unknown` are ranges of partitions without a position, not read; `reached`
    says up to where each other partition was read, when the iteration is over; `unfinished` which of them were not read to their
    ends, and why.
    """

    @property
    def unknown(self) -> tuple[PlannedRange, ...]: ...

    def __iter__(self) -> Iterator[tuple[ReadPart, ...]]: ...

    def end_by(self, end: Deadline) -> None:
        """End the iteration then, where that can be done without a hole in what was read."""
        ...

    @property
    def has_ended_early(self) -> bool:
        """Say whether `end_by` ended the iteration, so that there is more to read."""
        ...

    def reached(self) -> Mapping[SourcePartition, int]: ...

    def unfinished(self) -> Mapping[SourcePartition, UnfinishedRange]: ...


class ReadingFactory(Protocol):
    """Make the readings of a slot, one for each try. Each begins at the positions.

    `is_repeatable` is False where all that the slot has to read can be read only once; up to given ends it can be read again.
    """

    @property
    def is_repeatable(self) -> bool: ...

    def begin(
        self, ends: Mapping[SourcePartition, int] | None, highest_ends: Mapping[SourcePartition, int] = NO_END_LIMITS
    ) -> SlotReading:
        """Return a new reading.

        `ends`: where to end in each partition; a partition that is not in it is not read. None: read all that the slot has to
        read. `highest_ends`: no partition is read beyond its entry, whatever `ends` says.
        """
        ...


class DirectReading:
    """The task's own Fetch requests, from the position on, whatever the plan's start says."""

    def __init__(
        self,
        cluster: Cluster,
        ranges: Sequence[PlannedRange],
        positions: Mapping[SourcePartition, int],
        limits: ReadingLimits,
        followed: Set[SourcePartition] = frozenset(),
    ) -> None:
        """`followed`: partitions that are read on behind the ends of their ranges, until the iteration is left."""
        self.unknown = tuple(planned for planned in ranges if planned.source not in positions)
        ranges = [replace(planned, end=_NO_END) if planned.source in followed else planned for planned in ranges]
        pending = [planned for planned in ranges if planned.source in positions and positions[planned.source] < planned.end]
        self._planned = {planned.source.topic_partition: planned for planned in pending}
        self._kept_bytes = limits.fetch_bytes + BUFFER_SLACK_BYTES
        self._buffers = buffers_of_worker(limits.buffers, MAX_BATCH_BYTES)
        self._reader = RangeReader(
            cluster,
            [
                ReadRange(
                    planned.source.topic_partition,
                    positions[planned.source],
                    planned.end,
                    planned.bytes_per_offset,
                    planned.source.topic_id,
                    is_open=planned.source in followed,
                )
                for planned in pending
            ],
            isolation=limits.isolation,
            fetch_bytes=limits.fetch_bytes,
            deadline=limits.deadline,
            patience_ms=limits.patience_ms,
            buffers=self._buffers,
        )

    def __iter__(self) -> Iterator[tuple[ReadPart, ...]]:
        try:
            for response in self._reader:
                yield tuple(
                    ReadPart(planned.source, planned.end, fetched.index, fetched.records, fetched.aborted)
                    for fetched in response
                    for planned in (self._planned[fetched.topic_partition],)
                )
        finally:
            keep_buffers(self._buffers, self._kept_bytes)
            self._buffers = ()

    def end_by(self, end: Deadline) -> None:
        self._reader.end_by(end)

    @property
    def has_ended_early(self) -> bool:
        return self._reader.has_ended_early

    def reached(self) -> Mapping[SourcePartition, int]:
        return {self._planned[topic_partition].source: position for topic_partition, position in self._reader.positions().items()}

    def unfinished(self) -> Mapping[SourcePartition, UnfinishedRange]:
        positions = self._reader.positions()
        return {
            (source := self._planned[topic_partition].source): UnfinishedRange.of(
                source, positions[topic_partition], Side.SOURCE, error
            )
            for topic_partition, error in self._reader.unfinished().items()
        }


class FollowingReading:
    """Reads the ranges of a slot to their ends, and then on for a while: records are copied as they appear.

    A response without batches is an empty one: whoever writes can look after what is on its way to the target.
    """

    def __init__(
        self,
        cluster: Cluster,
        ranges: Sequence[PlannedRange],
        positions: Mapping[SourcePartition, int],
        limits: ReadingLimits,
    ) -> None:
        self._ends = {planned.source: planned.end for planned in ranges if planned.source in positions}
        self._reading = DirectReading(cluster, ranges, positions, limits, followed=self._ends.keys())
        self._until = limits.deadline.sooner(limits.follow_ms)

    @property
    def unknown(self) -> tuple[PlannedRange, ...]:
        return self._reading.unknown

    def __iter__(self) -> Iterator[tuple[ReadPart, ...]]:
        for response in self._reading:
            yield response
            if self._until.is_over() and not self._is_behind():
                return

    def end_by(self, end: Deadline) -> None:
        self._reading.end_by(end)

    @property
    def has_ended_early(self) -> bool:
        return self._reading.has_ended_early and self._is_behind()

    def reached(self) -> Mapping[SourcePartition, int]:
        return self._reading.reached()

    def unfinished(self) -> Mapping[SourcePartition, UnfinishedRange]:
        return self._reading.unfinished()

    def _is_behind(self) -> bool:
        """Return whether a range was not read to its end, and can be."""
        reached, unfinished = self.reached(), self.unfinished()
        return any(reached[source] < end for source, end in self._ends.items() if source not in unfinished)


class RowReading:
    """Rows of `kafka-batches` that Spark hands over; what lies between the position and the first of them is read directly.

    Bytes are copied once more, because Arrow's are not ours to rewrite: a buffer of the size of one arrow batch, which
    the session's `spark.sql.execution.arrow.maxBytesPerBatch` bounds.
    """

    def __init__(
        self,
        cluster: Cluster,
        arrow_batches: Iterable[pa.RecordBatch],
        slot: int,
        positions: Mapping[SourcePartition, int],
        limits: ReadingLimits,
        left_out: Collection[SourcePartition] = (),
    ) -> None:
        """Rows of `left_out` are skipped: the driver has the positions of those partitions already."""
        self._cluster = cluster
        self._arrow_batches = arrow_batches
        self._slot = slot
        self._positions = positions
        self._limits = limits
        self._left_out = left_out
        self._unfinished: dict[SourcePartition, UnfinishedRange] = {}
        self._unknown: dict[SourcePartition, PlannedRange] = {}
        self._reached: dict[SourcePartition, int] = {}

    @property
    def unknown(self) -> tuple[PlannedRange, ...]:
        return tuple(self._unknown.values())

    def end_by(self, end: Deadline) -> None:
        """Nothing ends early: Spark hands over the rows behind what this reads, whether or not that was read."""

    @property
    def has_ended_early(self) -> bool:
        return False

    def reached(self) -> Mapping[SourcePartition, int]:
        return self._reached

    def unfinished(self) -> Mapping[SourcePartition, UnfinishedRange]:
        return self._unfinished

    def __iter__(self) -> Iterator[tuple[ReadPart, ...]]:
        for arrow_batch in self._arrow_batches:
            rows, failures = arrow_rows.split_failures(arrow_batch)
            for failure in map(pickle.loads, failures):
                if isinstance(failure, MirrorError):
                    raise failure
            yield from self._parts_of(arrow_rows.parse_rows(rows))
            for failure in map(pickle.loads, failures):
                assert isinstance(failure, UnfinishedRange)
                self._leave_unfinished(failure)

    def _leave_unfinished(self, left: UnfinishedRange) -> None:
        """Record a range that Spark could not read. A partition without a position becomes `unknown` there.

        It must get a position all the same, or the next plan would begin behind what was not read.
        """
        source = left.source
        if source in self._unfinished:
            return
        if source in self._positions:
            reached = self._reached.get(source, self._positions[source])
            self._unfinished[source] = replace(left, reached=reached)
        elif source not in self._left_out:
            self._unknown.setdefault(source, _range(self._slot, source, left.reached, left.reached))

    def _parts_of(self, runs: Iterable[arrow_rows.RowRun]) -> Iterator[tuple[ReadPart, ...]]:
        together: dict[SourcePartition, ReadPart] = {}
        for run in runs:
            if run.source in self._left_out:
                continue
            if run.source not in self._positions:
                self._record_unknown(run)
                continue
            if run.source in together or self._is_behind(run):
                yield tuple(together.values())
                together = {}
                yield from self._catch_up(run)
            if run.source in self._unfinished:  # there is a hole in front of these rows
                continue
            self._require_not_expired(run)
            self._reached[run.source] = max(run.end, self._positions[run.source])
            if len(run.records):
                together[run.source] = _part_of(run)
        yield tuple(together.values())

    def read_directly(self, ends: Mapping[SourcePartition, int]) -> DirectReading:
        """Return a reading of the source from the positions up to `ends`, whatever became of the rows."""
        ranges = [_range(self._slot, source, self._positions[source], end) for source, end in ends.items()]
        return DirectReading(self._cluster, ranges, self._positions, self._limits)

    def _require_not_expired(self, run: arrow_rows.RowRun) -> None:
        """Raise DataLossError where offsets expired: only the driver can give them up, as for a slot that reads the source."""
        position = self._reached.get(run.source, self._positions[run.source])
        if run.expired_until > position:
            detail = "retention or DeleteRecords removed it before it was copied"
            raise DataLossError(run.source.topic_partition, position, run.expired_until, detail)

    def _is_behind(self, run: arrow_rows.RowRun) -> bool:
        return self._reached.get(run.source, self._positions[run.source]) < run.start

    def _catch_up(self, run: arrow_rows.RowRun) -> Iterator[tuple[ReadPart, ...]]:
        """Read what lies between the position and the first row of `run`.

        The position is behind what Spark planned where rows of the map were removed, or Spark's checkpoint is older or newer.
        """
        if not self._is_behind(run):
            return
        position = self._reached.get(run.source, self._positions[run.source])
        missing = _range(self._slot, run.source, position, run.start)
        direct = DirectReading(self._cluster, [missing], {run.source: position}, self._limits)
        yield from direct
        for source, left in direct.unfinished().items():
            self._reached[source], self._unfinished[source] = left.reached, left

    def _record_unknown(self, run: arrow_rows.RowRun) -> None:
        unknown = self._unknown.get(run.source)
        if unknown is not None:
            self._unknown[run.source] = replace(unknown, end=run.end)
            return
        self._unknown[run.source] = _range(self._slot, run.source, run.start, run.end)


class DirectReadingFactory:
    """Makes readings of planned ranges by the task's own Fetch requests."""

    is_repeatable = True

    def __init__(
        self,
        cluster: Cluster,
        ranges: Sequence[PlannedRange],
        positions: Mapping[SourcePartition, int],
        limits: ReadingLimits,
    ) -> None:
        self._cluster = cluster
        self._ranges = ranges
        self._positions = positions
        self._limits = limits

    def begin(
        self, ends: Mapping[SourcePartition, int] | None, highest_ends: Mapping[SourcePartition, int] = NO_END_LIMITS
    ) -> SlotReading:
        ranges = self._ranges
        if self._limits.follow_ms and ends is None and not highest_ends:
            return FollowingReading(self._cluster, ranges, self._positions, self._limits)
        if ends is not None:
            ranges = [replace(planned, end=ends[planned.source]) for planned in ranges if planned.source in ends]
        if highest_ends:
            ranges = [replace(planned, end=min(planned.end, highest_ends.get(planned.source, planned.end))) for planned in ranges]
        return DirectReading(self._cluster, ranges, self._positions, self._limits)


class RowReadingFactory:
    """Returns the one reading of rows that Spark hands over, and then readings of the source."""

    is_repeatable = False

    def __init__(self, reading: RowReading) -> None:
        self._reading = reading

    def begin(
        self, ends: Mapping[SourcePartition, int] | None, highest_ends: Mapping[SourcePartition, int] = NO_END_LIMITS
    ) -> SlotReading:
        if ends is None:
            return self._reading
        return self._reading.read_directly({source: min(end, highest_ends.get(source, end)) for source, end in ends.items()})


def _range(slot: int, source: SourcePartition, start: int, end: int) -> PlannedRange:
    """Return a range of which nothing else is known."""
    return PlannedRange(slot=slot, source=source, start=start, end=end, bytes_per_offset=UNKNOWN_BYTES_PER_OFFSET)


def _part_of(run: arrow_rows.RowRun) -> ReadPart:
    records = memoryview(bytearray(run.records))
    index = index_batches(records)
    if index.stop is not None or index.consumed_bytes != len(records):
        raise CorruptBatchError(run.source.topic_partition, run.start, index.consumed_bytes, "Spark handed over half a batch")
    return ReadPart(run.source, _NO_END, index, records, run.aborted)


def routed_positions(positions: Mapping[SourcePartition, int], topics: Set[str]) -> dict[SourcePartition, int]:
    """Return the positions of partitions whose topic has a route."""
    return {source: position for source, position in positions.items() if source.topic in topics}
