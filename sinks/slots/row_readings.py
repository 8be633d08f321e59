"""Executor: rows that Spark hands over as the source of the batches of a slot."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

import pyarrow as pa

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.fetch import arrow_rows
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import CorruptBatchError, DataLossError, MirrorError
from shallow_mirror.sinks.slot_values import ReadPart, UnfinishedRange
from shallow_mirror.sinks.slots.batch_sources import NO_END, NO_END_LIMITS, ReadingLimits, SlotReading
from shallow_mirror.sinks.slots.direct_readings import DirectReading
from shallow_mirror.types import UNKNOWN_BYTES_PER_OFFSET, PlannedRange, SourcePartition
from shallow_mirror.wire.batches import index_batches


class RowReading:
    """Rows of `kafka-batches` that Spark hands over; offsets between the position and the first of them are read directly.

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
        """Nothing ends early: Spark hands over the rows behind these, whether or not these were read."""

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

        It must get a position all the same, or the next plan would begin behind the unread range.
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
        """Raise DataLossError if offsets expired: only the driver can give them up, as for a slot that reads the source."""
        position = self._reached.get(run.source, self._positions[run.source])
        if run.expired_until > position:
            detail = "retention or DeleteRecords removed it before it was copied"
            raise DataLossError(run.source.topic_partition, position, run.expired_until, detail)

    def _is_behind(self, run: arrow_rows.RowRun) -> bool:
        return self._reached.get(run.source, self._positions[run.source]) < run.start

    def _catch_up(self, run: arrow_rows.RowRun) -> Iterator[tuple[ReadPart, ...]]:
        """Read the offsets between the position and the first row of `run`.

        The position is behind Spark's plan if rows of the map were removed, or Spark's checkpoint is older or newer.
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


class RowReadingFactory:
    """Returns the one reading of rows that Spark hands over, and then readings of the source."""

    is_repeatable = False

    def __init__(self, reading: RowReading) -> None:
        self._reading = reading

    def begin(
        self, ends: Mapping[SourcePartition, int] | None, highest_ends: Mapping[SourcePartition, int] = NO_END_LIMITS
    ) -> SlotReading:
        # Spark hands over the rows of a task only once: another try, which has ends, reads the source.
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
    return ReadPart(run.source, NO_END, index, records, run.aborted)
