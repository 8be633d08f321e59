"""Executor: the task's own Fetch requests as the source of the batches of a slot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import LANES, buffers_of_worker, keep_buffers
from shallow_mirror.broker.fetch import BUFFER_SLACK_BYTES, MAX_BATCH_BYTES, RangeReader, ReadRange
from shallow_mirror.deadline import Deadline
from shallow_mirror.sinks.slot_values import ReadPart, Side, UnfinishedRange
from shallow_mirror.sinks.slots.batch_sources import NO_END, NO_END_LIMITS, ReadingLimits, SlotReading
from shallow_mirror.types import PlannedRange, SourcePartition


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
        """`followed`: partitions that are read beyond the ends of their ranges, until the iteration is left."""
        self.unknown = tuple(planned for planned in ranges if planned.source not in positions)
        ranges = [replace(planned, end=NO_END) if planned.source in followed else planned for planned in ranges]
        pending = [planned for planned in ranges if planned.source in positions and positions[planned.source] < planned.end]
        self._planned = {planned.source.topic_partition: planned for planned in pending}
        self._kept_bytes = limits.fetch_bytes + BUFFER_SLACK_BYTES
        self._buffers = buffers_of_worker(limits.responses * len(LANES), MAX_BATCH_BYTES)
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
            responses=limits.responses,
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
    """Reads the ranges of a slot to their ends, and beyond them for a while: records are copied as they appear.

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
