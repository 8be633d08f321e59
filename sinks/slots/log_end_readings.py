"""Executor: the input of slots that read nothing: they fill the logs of their targets up to the positions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from shallow_mirror.deadline import Deadline
from shallow_mirror.sinks.slot_values import ReadPart, UnfinishedRange
from shallow_mirror.sinks.slots.batch_sources import NO_END_LIMITS, SlotReading
from shallow_mirror.sinks.slots.slot_job import SlotJob
from shallow_mirror.sinks.slots.slot_task import SlotInput
from shallow_mirror.types import PlannedRange, SourcePartition
from shallow_mirror.wire.batches import index_batches


@dataclass(frozen=True, slots=True, kw_only=True)
class LogEndInput:
    """Ranges without length, at the positions of partitions with preserved offsets whose logs end in front of them.

    `slots`: the ranges of each slot. The one column of Spark's rows, one row per slot, is their index.
    """

    slots: Sequence[Sequence[PlannedRange]]

    def __call__(self, job: SlotJob, rows: Iterator[pa.RecordBatch], _is_planned_ranges: bool, deadline: Deadline) -> SlotInput:
        (number,) = [index for arrow_batch in rows for index in arrow_batch.column(0).to_pylist()]
        ends = {planned.source: planned.end for planned in self.slots[number] if planned.source not in job.left_out}
        return SlotInput(number=number, readings=_LogEndReadingFactory(ends), positions=ends)


@dataclass(frozen=True, slots=True)
class _LogEndReadingFactory:
    ends: Mapping[SourcePartition, int]

    @property
    def is_repeatable(self) -> bool:
        return True

    def begin(
        self, _ends: Mapping[SourcePartition, int] | None, _highest_ends: Mapping[SourcePartition, int] = NO_END_LIMITS
    ) -> SlotReading:
        return _LogEndReading(self.ends)


class _LogEndReading:
    """One response of parts without batches."""

    unknown: tuple[PlannedRange, ...] = ()
    has_ended_early = False

    def __init__(self, ends: Mapping[SourcePartition, int]) -> None:
        self._ends = ends

    def __iter__(self) -> Iterator[tuple[ReadPart, ...]]:
        nothing = memoryview(bytearray())
        index = index_batches(nothing)
        yield tuple(ReadPart(source, end, index, nothing, (), fills_log=True) for source, end in sorted(self._ends.items()))

    def end_by(self, _end: Deadline) -> None:
        """Nothing is read that could end early."""

    def reached(self) -> Mapping[SourcePartition, int]:
        return self._ends

    def unfinished(self) -> Mapping[SourcePartition, UnfinishedRange]:
        return {}
