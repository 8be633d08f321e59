"""Executor: one slot of a micro-batch: read, admit, rebuild, restamp, produce, receipt, segments.

One call reads every range of the slot from its position on and writes what is admitted in one Kafka transaction, which
it leaves open: only the driver ends it, after the decision. A slot that has nothing to write opens no transaction.

What the target refuses for good has used no sequence number, but batches behind it have: where it may be quarantined, the
transaction is given up, and the next one goes as far as that batch, without it. The driver's next round goes on behind it.
So it is with a batch that was made of several, but that the next one takes each of them as it is.

Errors of this package go back to the driver as values, so that their type and fields survive Spark.
"""

from __future__ import annotations

import itertools
import logging
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark import TaskContext

from shallow_mirror.broker.client_config import ClientConfig
from shallow_mirror.broker.cluster import Cluster
from shallow_mirror.broker.worker import cluster_of_worker, freeze_imports_once
from shallow_mirror.checkpoints.quarantined_batches import QuarantinedBatch
from shallow_mirror.checkpoints.segments import SegmentBuilder
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError, Retriable
from shallow_mirror.sinks.open_slot import CoalescedRefused, OpenSlot, PoisonFound
from shallow_mirror.sinks.poison import QuarantineBudget, QuarantineLimits, Refusal
from shallow_mirror.sinks.protocol import SlotResult
from shallow_mirror.sinks.slot_admission import KnownRefusals, admit_part
from shallow_mirror.sinks.slot_reading import (
    DirectReadings,
    ReadingLimits,
    Readings,
    RowReading,
    RowReadings,
    SlotReading,
    known_only,
)
from shallow_mirror.sinks.source_log import CheckedReadings
from shallow_mirror.types import (
    BatchLimits,
    EpochEnd,
    IsolationLevel,
    PlannedRange,
    SourcePartition,
    TargetPartition,
    TopicPartition,
)

_log = logging.getLogger(__name__)

SLOT_PATIENCE_MS = 10_000.0
"""A slot starts again by itself so long after its start; later failures go to the driver, whose supervisor shows them."""

RESULT_SCHEMA = "body binary"

_ARROW_RESULT_SCHEMA = pa.schema([("body", pa.binary())])

Observer = Callable[[str], None]
"""Called with the name of each point a task passes; tests use it to kill processes at that point."""


def observe_nothing(_point: str) -> None:
    """The observer of every run that is not a test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedTopic:
    """Where the batches of one source topic go, and what its target topic accepts."""

    target_topic: str
    target_topic_id: str
    limits: BatchLimits

    def target_of(self, source: SourcePartition) -> TargetPartition:
        return TargetPartition(self.target_topic, self.target_topic_id, source.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotJob:
    """Everything a task needs, carried in the closure of one micro-batch.

    `positions` are source offsets from the offset map, `epoch_ends` up to where it knows a leader epoch of the source,
    `target_ends` the ends of what it knows on the target.
    `time_left_ms` is what remains of the micro-batch's deadline when the task starts (clocks of different machines are
    never compared). `max_segments` bounds the rows a slot may return: it stops at a batch boundary and the rest is read in
    another round. `quarantine` bounds the batches that are set aside; None: what cannot be copied is an error.
    """

    mirror: str
    map_id: str
    run_id: str
    decision: int
    source: ClientConfig
    target: ClientConfig
    routes: Mapping[str, RoutedTopic]
    positions: Mapping[SourcePartition, int]
    epoch_ends: Mapping[SourcePartition, EpochEnd]
    target_ends: Mapping[TopicPartition, int]
    isolation: IsolationLevel
    fetch_bytes: int
    in_flight_requests: int
    in_flight_bytes: int
    max_segments: int
    transaction_timeout_ms: int
    time_left_ms: float
    quarantine: QuarantineLimits | None = None
    observer: Observer = observe_nothing

    @property
    def quarantines(self) -> bool:
        return self.quarantine is not None

    def without_coalescing(self) -> SlotJob:
        routes = {
            topic: replace(route, limits=replace(route.limits, coalesce_bytes=None)) for topic, route in self.routes.items()
        }
        return replace(self, routes=routes)

    def __call__(self, arrow_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function of `mapInArrow`: rows of one slot in, one pickled result or `MirrorError` out.

        The rows are planned ranges, or record batches of `kafka-batches`; an input partition is a slot.
        """
        first = next(arrow_batches, None)
        if first is None:
            return
        began = time.monotonic()
        freeze_imports_once()
        rows = itertools.chain([first], arrow_batches)
        body: SlotResult | MirrorError
        try:
            done = run_slot(self, rows, is_planned_ranges="range_end" in first.schema.names)
            body = replace(done, duration_ms=(time.monotonic() - began) * 1000)
        except MirrorError as error:
            body = error
        columns = [pa.array([pickle.dumps(body)], pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, schema=_ARROW_RESULT_SCHEMA)


def ranges_of(batch: pa.RecordBatch) -> list[PlannedRange]:
    """Rows of `shallow-mirror-ranges` as values."""
    return [
        PlannedRange(
            slot=row["slot"],
            source=SourcePartition(row["topic"], row["topic_id"], row["partition"]),
            start=row["range_start"],
            end=row["range_end"],
            bytes_per_offset=row["bytes_per_offset"],
        )
        for row in batch.to_pylist()
    ]


def run_slot(job: SlotJob, rows: Iterator[pa.RecordBatch], *, is_planned_ranges: bool) -> SlotResult:
    """Steps 3-5 for one slot. Raises `MirrorError`s; whatever it wrote then stays in an open transaction that nobody
    will commit, and the next InitProducerId aborts it."""
    deadline = Deadline.after_ms(job.time_left_ms, time.monotonic)
    limits = ReadingLimits(isolation=job.isolation, fetch_bytes=job.fetch_bytes, deadline=deadline)
    source = cluster_of_worker(job.source)
    readings: Readings
    if is_planned_ranges:
        ranges = [one for arrow_batch in rows for one in ranges_of(arrow_batch)]
        planned = {one.source: job.positions[one.source] for one in ranges if one.source in job.positions}
        positions = known_only(planned, job.routes.keys())
        number, readings = ranges[0].slot, DirectReadings(source, ranges, positions, limits)
    else:
        positions = known_only(job.positions, job.routes.keys())
        number = _input_partition()
        readings = RowReadings(RowReading(source, rows, number, positions, limits))
    readings = CheckedReadings(readings, source, job.epoch_ends, deadline)
    return fill_slot(job, number, readings, positions, cluster_of_worker(job.target), deadline, is_again=_spark_attempt() > 0)


def _spark_attempt() -> int:
    context = TaskContext.get()
    return 0 if context is None else int(context.attemptNumber())


def _input_partition() -> int:
    context = TaskContext.get()
    assert context is not None
    return int(context.partitionId())


def fill_slot(
    job: SlotJob,
    number: int,
    readings: Readings,
    positions: Mapping[SourcePartition, int],
    target: Cluster,
    deadline: Deadline,
    *,
    is_again: bool = False,
) -> SlotResult:
    """As often as it takes, each time under a new epoch. `is_again`: somebody else may have begun before."""
    places = [job.routes[one.topic].target_of(one).topic_partition for one in positions]
    patience, tries = deadline.sooner(SLOT_PATIENCE_MS), 0
    known: dict[tuple[SourcePartition, int], Refusal] = {}
    ends: Mapping[SourcePartition, int] | None = None
    retried = list[Retriable]()
    while True:
        slot = OpenSlot(job, number, target, deadline)
        copying = _Copying(job, positions, slot, known)
        try:
            if is_again or tries:
                slot.clean_up(places)
            return replace(copying.run(readings.begin(ends), is_partial=ends is not None), retried=tuple(retried))
        except PoisonFound as found:
            place = (found.source, found.refusal.error.base_offset)
            if place in known:
                raise found.refusal.error from found
            known[place], ends = found.refusal, {**copying.reached, found.source: found.end}
            _log.warning("slot %d starts again without a batch that the target refuses: %s", number, found)
        except CoalescedRefused as refused:
            job, ends = job.without_coalescing(), {**copying.reached, refused.source: refused.end}
            _log.warning("slot %d starts again without making one batch of several: %s", number, refused)
        except Retriable as error:
            if type(error) is not Retriable or patience.is_over() or not (readings.is_repeatable or ends is not None):
                raise  # a fenced epoch may mean that another run took over: only the driver can tell
            _log.warning("slot %d starts again from its positions: %s", number, error)
            retried.append(error)
            target.pause(tries, patience)
        tries += 1


class _Copying:
    """One try of a slot. `reached`: up to where what was read of each partition has been written."""

    def __init__(self, job: SlotJob, positions: Mapping[SourcePartition, int], slot: OpenSlot, known: KnownRefusals) -> None:
        self._job, self._positions, self._slot, self._known = job, positions, slot, known
        self._builders: dict[SourcePartition, SegmentBuilder] = {}
        self._quarantined: list[QuarantinedBatch] = []
        self._budget = None if job.quarantine is None else QuarantineBudget(job.quarantine)
        self.reached = dict(positions)

    def run(self, reading: SlotReading, *, is_partial: bool) -> SlotResult:
        """`is_partial`: there is more to read than `reading` brings."""
        for parts in reading:
            admitted = [admit_part(self._job, one, max(self.reached[one.source], one.start), self._known) for one in parts]
            for one in admitted:
                self._set_aside(one.quarantined)
            self._slot.copy(admitted, self._builder_of)
            self.reached.update({one.part.source: one.admission.next_position for one in admitted})
            if sum(builder.segment_count for builder in self._builders.values()) > self._job.max_segments:
                is_partial = True
                break
        if not is_partial:
            for source, reached in reading.reached().items():
                self._builder_of(source).close_at(reached)
        segments = tuple(segment for builder in self._builders.values() for segment in builder.build())
        slot = self._slot
        slot.write_receipt()
        return SlotResult(
            slot.number, slot.txn, segments, slot.fetched_bytes, reading.unknown, is_partial, tuple(self._quarantined)
        )

    def _builder_of(self, source: SourcePartition) -> SegmentBuilder:
        if source not in self._builders:
            target = self._job.routes[source.topic].target_of(source)
            self._builders[source] = SegmentBuilder(source, target, self._positions[source])
        return self._builders[source]

    def _set_aside(self, batches: Sequence[QuarantinedBatch]) -> None:
        if self._budget is not None:
            self._budget.take(batches)
        self._quarantined += batches
