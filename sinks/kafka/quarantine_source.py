"""Driver: batches that are in quarantine, in the shape in which a slot reads a source."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from shallow_mirror.checkpoints.logs import QuarantinedBatch
from shallow_mirror.deadline import Deadline
from shallow_mirror.sinks.slot_values import ReadPart, UnfinishedRange
from shallow_mirror.sinks.slots.batch_sources import NO_END_LIMITS, SlotReading
from shallow_mirror.types import PlannedRange, SourcePartition
from shallow_mirror.wire.batches import index_batches


class QuarantineReadingFactory:
    """Makes readings of `batches`: each partition's in order of offsets."""

    is_repeatable = True

    def __init__(self, batches: Sequence[QuarantinedBatch]) -> None:
        self._batches = batches

    def begin(
        self, ends: Mapping[SourcePartition, int] | None, highest_ends: Mapping[SourcePartition, int] = NO_END_LIMITS
    ) -> SlotReading:
        batches = self._batches
        if ends is not None:
            batches = [batch for batch in batches if batch.source_end <= ends.get(batch.source, 0)]
        if highest_ends:
            batches = [batch for batch in batches if batch.source_end <= highest_ends.get(batch.source, batch.source_end)]
        return _QuarantineReading(batches)


class _QuarantineReading:
    unknown: tuple[PlannedRange, ...] = ()
    has_ended_early = False

    def __init__(self, batches: Sequence[QuarantinedBatch]) -> None:
        self._queues: dict[SourcePartition, list[QuarantinedBatch]] = {}
        for batch in batches:
            self._queues.setdefault(batch.source, []).append(batch)

    def __iter__(self) -> Iterator[tuple[ReadPart, ...]]:
        for together in itertools.zip_longest(*self._queues.values()):
            kept = [(batch, memoryview(bytearray(batch.batch))) for batch in together if batch is not None]
            yield tuple(
                ReadPart(batch.source, batch.source_end, index_batches(records), records, (), batch.source_start)
                for batch, records in kept
            )

    def end_by(self, end: Deadline) -> None:
        """Nothing is waited for: all of it is in memory."""

    def reached(self) -> Mapping[SourcePartition, int]:
        """Return nothing: offsets between the batches are not part of the quarantine."""
        return {}

    def unfinished(self) -> Mapping[SourcePartition, UnfinishedRange]:
        return {}
