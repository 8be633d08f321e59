"""Executor: the batches of a slot out of an archive instead of a cluster."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from shallow_mirror.archive_reading.segment_reader import SegmentBatches, SegmentReader, StoredSegment
from shallow_mirror.deadline import Deadline
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.reused_buffers import ReusedBuffers
from shallow_mirror.sinks.slot_values import ReadPart, UnfinishedRange
from shallow_mirror.sinks.slots.batch_sources import NO_END_LIMITS, SlotReading
from shallow_mirror.sinks.slots.slot_job import SlotJob
from shallow_mirror.sinks.slots.slot_task import SlotInput
from shallow_mirror.types import PlannedRange, SourcePartition

_PARTITIONS_AT_ONCE = 4
"""Batches of so many partitions are written together, as those of one Fetch response."""
_buffers = ReusedBuffers()
"""Of this process, which runs one task at a time: kept for the slot of the next micro-batch. `read.fetch_bytes` bounds them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveInput:
    """Input of slots that read an archive: the rows of a micro-batch, by partition, and the store of their objects.

    `slots`: the planned ranges of each slot. The one column of Spark's rows, one row per slot, is their index.
    """

    objects: str
    storage_options: Mapping[str, str]
    segments: Mapping[SourcePartition, Sequence[StoredSegment]]
    slots: Sequence[Sequence[PlannedRange]]

    def __call__(self, job: SlotJob, rows: Iterator[pa.RecordBatch], _is_planned_ranges: bool, deadline: Deadline) -> SlotInput:
        (number,) = [index for arrow_batch in rows for index in arrow_batch.column(0).to_pylist()]
        ranges = self.slots[number]
        wanted = [planned for planned in ranges if planned.source not in job.left_out]
        store = ObjectStore.open(self.objects, self.storage_options)
        positions = {planned.source: job.positions[planned.source] for planned in wanted}
        readings = ArchiveReadingFactory(store, wanted, positions, self.segments, read_ahead_bytes=job.fetch_bytes)
        return SlotInput(number=ranges[0].slot, readings=readings, positions=positions)


class ArchiveReadingFactory:
    """Makes readings of planned ranges of an archive. Batches are cut at the end of their range."""

    is_repeatable = True

    def __init__(
        self,
        store: ObjectStore,
        ranges: Sequence[PlannedRange],
        positions: Mapping[SourcePartition, int],
        segments: Mapping[SourcePartition, Sequence[StoredSegment]],
        *,
        read_ahead_bytes: int,
    ) -> None:
        self._store = store
        self._ranges = ranges
        self._positions = positions
        self._segments = segments
        self._read_ahead_bytes = read_ahead_bytes

    def begin(
        self, ends: Mapping[SourcePartition, int] | None, highest_ends: Mapping[SourcePartition, int] = NO_END_LIMITS
    ) -> SlotReading:
        planned = {planned_range.source: planned_range.end for planned_range in self._ranges}
        if ends is not None:
            planned = {source: ends[source] for source in planned if source in ends}
        planned = {source: min(end, highest_ends.get(source, end)) for source, end in planned.items()}
        return _ArchiveReading(self._store, self._positions, planned, self._segments, self._read_ahead_bytes)


class _ArchiveReading:
    def __init__(
        self,
        store: ObjectStore,
        positions: Mapping[SourcePartition, int],
        ends: Mapping[SourcePartition, int],
        segments: Mapping[SourcePartition, Sequence[StoredSegment]],
        read_ahead_bytes: int,
    ) -> None:
        self.unknown: tuple[PlannedRange, ...] = ()
        self._store = store
        self._positions = positions
        self._ends = {source: end for source, end in ends.items() if positions[source] < end}
        self._segments = segments
        self._read_ahead_bytes = max(1, read_ahead_bytes // _PARTITIONS_AT_ONCE)
        self._end_by: Deadline | None = None
        self._is_finished: set[SourcePartition] = set()
        self.has_ended_early = False

    def end_by(self, end: Deadline) -> None:
        self._end_by = end

    def __iter__(self) -> Iterator[tuple[ReadPart, ...]]:
        """Yield windows of several partitions together. Raises ArchiveFormatError, ObjectMissingError, StoreUnreachableError."""
        waiting = deque(sorted(self._ends))
        open_readers: dict[SourcePartition, Generator[SegmentBatches]] = {}
        try:
            while waiting or open_readers:
                if self._end_by is not None and self._end_by.is_over():
                    self.has_ended_early = True
                    return
                while waiting and len(open_readers) < _PARTITIONS_AT_ONCE:
                    source = waiting.popleft()
                    open_readers[source] = self._read(source)
                parts: list[ReadPart] = []
                for source, reader in list(open_readers.items()):
                    batches = next(reader, None)
                    if batches is None:
                        self._is_finished.add(source)
                        del open_readers[source]
                    else:
                        parts.append(self._part_of(batches))
                if parts:
                    yield tuple(parts)
        finally:
            for reader in open_readers.values():
                reader.close()

    def _read(self, source: SourcePartition) -> Generator[SegmentBatches]:
        segments = self._segments.get(source, ())
        # The target verifies the checksum of every batch that it appends: one that was damaged at the source is refused there.
        reader = SegmentReader(
            self._store,
            segments,
            self._positions[source],
            self._ends[source],
            self._read_ahead_bytes,
            verifies_batches=False,
            is_read_once=True,
            buffers=_buffers,
        )
        return iter(reader)

    def _part_of(self, batches: SegmentBatches) -> ReadPart:
        source = batches.source
        return ReadPart(
            source,
            batches.end,  # of the range, or of a row that ends where the next lineage begins
            batches.index,
            batches.records,
            batches.aborted,
            start=batches.start,
            is_cut=True,
        )

    def reached(self) -> Mapping[SourcePartition, int]:
        return {source: self._ends[source] for source in self._is_finished}

    def unfinished(self) -> Mapping[SourcePartition, UnfinishedRange]:
        return {}
