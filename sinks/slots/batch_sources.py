"""Executor: sources of the batches of a slot: the task's own Fetch requests, or rows that Spark hands over.

Both give whole batches of [position, end of the range) by source partition. Admission, restamping, produce and segments do not
depend on which it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from shallow_mirror.deadline import Deadline
from shallow_mirror.sinks.slot_values import ReadPart, UnfinishedRange
from shallow_mirror.sinks.slots.slot_job import SlotJob
from shallow_mirror.types import IsolationLevel, PlannedRange, SourcePartition

NO_END = (1 << 63) - 1
"""The end of a range that is read until the reading is left."""

NO_END_LIMITS: Mapping[SourcePartition, int] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingLimits:
    """How a task reads the source."""

    isolation: IsolationLevel
    fetch_bytes: int
    """Of each of the `responses` that it keeps."""
    deadline: Deadline
    responses: int
    patience_ms: float | None = None
    """That of a RangeReader."""
    follow_ms: float = 0.0
    """For how long it continues to read behind the ends of its ranges."""

    @classmethod
    def of_job(cls, job: SlotJob, deadline: Deadline, patience_ms: float | None = None) -> ReadingLimits:
        """Return the limits of a task, which keeps each response that its job may have in flight."""
        return cls(
            isolation=job.isolation,
            fetch_bytes=job.fetch_bytes,
            deadline=deadline,
            responses=1 + job.responses_in_flight,
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
        """End the iteration then, if that leaves no hole in the batches."""
        ...

    @property
    def has_ended_early(self) -> bool:
        """Say whether `end_by` ended the iteration, so that there is more to read."""
        ...

    def reached(self) -> Mapping[SourcePartition, int]: ...

    def unfinished(self) -> Mapping[SourcePartition, UnfinishedRange]: ...


class ReadingFactory(Protocol):
    """Make the readings of a slot, one for each try. Each begins at the positions.

    `is_repeatable` is False if all that the slot has to read can be read only once; up to given ends it can be read again.
    """

    @property
    def is_repeatable(self) -> bool: ...

    def begin(
        self, ends: Mapping[SourcePartition, int] | None, highest_ends: Mapping[SourcePartition, int] = NO_END_LIMITS
    ) -> SlotReading:
        """Return a new reading.

        `ends`: end offset of each partition; a partition that is not in it is not read. None: read all that the slot has to
        read. `highest_ends`: no partition is read beyond its entry, whatever `ends` says.
        """
        ...


def routed_positions(positions: Mapping[SourcePartition, int], topics: Set[str]) -> dict[SourcePartition, int]:
    """Return the positions of partitions whose topic has a route."""
    return {source: position for source, position in positions.items() if source.topic in topics}
