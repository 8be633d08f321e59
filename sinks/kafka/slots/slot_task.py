"""Executor: one slot of a micro-batch: read, admit, rebuild, restamp, produce, receipt, segments.

One call reads every range of the slot from its position on and writes what is admitted in one Kafka transaction, which
it leaves open: only the driver ends it, after the decision. A slot that has nothing to write opens no transaction.

What the target refuses for good has used no sequence number, but batches behind it have: where it may be quarantined, the
transaction is given up, and the next one goes as far as that batch, without it. The driver's next round goes on behind it.
So it is with a batch that was made of several, but that the next one takes each of them as it is.

A slot writes for `write.commit_interval` at the most, then it hands over what it has, also in the middle of a response. So what
is planned need not fit into the transaction timeout: each round moves the positions by what the link carries, a batch at least.

One broken partition does not stop the others: what cannot be read or written for now is left out of the ranges
(`unfinished`), and with `on_error: isolate` also what a person has to mend (sinks/kafka/slots/left_out_ranges.py).

Errors of this package go back to the driver as values, so that their type and fields survive Spark.
"""

from __future__ import annotations

import itertools
import logging
import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark import TaskContext

from shallow_mirror.broker.cluster.worker_clients import cluster_of_worker, freeze_imports_once
from shallow_mirror.broker.fetch.range_reader import PARTITION_PATIENCE_MS
from shallow_mirror.checkpoints.quarantined_batches import QuarantinedBatch
from shallow_mirror.checkpoints.segments import SegmentBuilder
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import (
    BatchRefusedError,
    CorruptBatchError,
    DataLossError,
    MirrorError,
    RetriableError,
    TopicAccessError,
)
from shallow_mirror.sinks.base import SlotTarget
from shallow_mirror.sinks.kafka.slots.batch_sources import (
    DirectReadings,
    ReadingLimits,
    Readings,
    RowReading,
    RowReadings,
    SlotReading,
    known_only,
)
from shallow_mirror.sinks.kafka.slots.left_out_ranges import isolated
from shallow_mirror.sinks.kafka.slots.quarantine_policy import QuarantineBudget, Refusal
from shallow_mirror.sinks.kafka.slots.slot_admission import KnownRefusals, admit_part
from shallow_mirror.sinks.kafka.slots.slot_job import SlotJob
from shallow_mirror.sinks.kafka.slots.slot_target import open_kafka_target
from shallow_mirror.sinks.kafka.slots.slot_transaction import CoalescedBatchRefusedError, QuarantinableBatchError
from shallow_mirror.sinks.kafka.slots.truncation_check import CheckedReadings
from shallow_mirror.sinks.slot_results import Side, SlotResult, UnfinishedRange
from shallow_mirror.types import (
    PlannedRange,
    SourcePartition,
)

_log = logging.getLogger(__name__)

SLOT_PATIENCE_MS = 10_000.0
"""A slot starts again by itself so long after its start; later failures go to the driver, whose supervisor shows them."""

RESULT_SCHEMA = "body binary"

_ARROW_RESULT_SCHEMA = pa.schema([("body", pa.binary())])


OpenTarget = Callable[[SlotJob, int, Deadline], SlotTarget]
"""Return where the slot of this number writes. Called on an executor."""


@dataclass(frozen=True, slots=True)
class SlotTask:
    """The function of `mapInArrow`: do `job` for the slot of one input partition."""

    job: SlotJob
    open_target: OpenTarget = open_kafka_target

    def __call__(self, arrow_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one pickled `SlotResult` or `MirrorError` for the rows of a slot; nothing where Spark has no rows for it.

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
            done = run_slot(self.job, rows, is_planned_ranges="range_end" in first.schema.names, open_target=self.open_target)
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


def run_slot(
    job: SlotJob, rows: Iterator[pa.RecordBatch], *, is_planned_ranges: bool, open_target: OpenTarget = open_kafka_target
) -> SlotResult:
    """Steps 3-5 for one slot. Raises `MirrorError`s; whatever it wrote then stays in an open transaction that nobody
    will commit, and the next InitProducerId aborts it."""
    deadline = Deadline.after_ms(job.time_left_ms, time.monotonic)
    patience_ms = PARTITION_PATIENCE_MS if job.leaves_out else None
    limits = ReadingLimits(isolation=job.isolation, fetch_bytes=job.fetch_bytes, deadline=deadline, patience_ms=patience_ms)
    source = cluster_of_worker(job.source)
    readings: Readings
    if is_planned_ranges:
        every = [one for arrow_batch in rows for one in ranges_of(arrow_batch)]
        ranges = [one for one in every if one.source not in job.left_out]
        planned = {one.source: job.positions[one.source] for one in ranges if one.source in job.positions}
        positions = known_only(planned, job.routes.keys())
        number, readings = every[0].slot, DirectReadings(source, ranges, positions, limits)
    else:
        positions = known_only(job.positions, job.routes.keys())
        number = _input_partition()
        readings = RowReadings(RowReading(source, rows, number, positions, limits, job.left_out))
    readings = CheckedReadings(readings, source, job.epoch_ends, deadline)
    target = open_target(job, number, deadline)
    return fill_slot(job, number, readings, positions, target, deadline, is_again=_spark_attempt() > 0)


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
    target: SlotTarget,
    deadline: Deadline,
    *,
    is_again: bool = False,
) -> SlotResult:
    """As often as it takes, each time under a new epoch. `is_again`: somebody else may have begun before."""
    patience, tries = deadline.sooner(SLOT_PATIENCE_MS), 0
    known: dict[tuple[SourcePartition, int], Refusal] = {}
    ends: Mapping[SourcePartition, int] | None = None
    retried = list[RetriableError]()
    isolated_ranges: dict[SourcePartition, UnfinishedRange] = {}
    while True:
        copying = _Copying(job, number, positions, target, known)
        try:
            if readings.is_repeatable or is_again or tries:  # asked for all of them now, none is read for nothing
                copying.leave_out_unavailable(positions)
            if is_again or tries:
                # Not where nothing can be asked: this transaction does not include those, so it cannot end anything there.
                target.clean_up([source for source in positions if source not in copying.left_out])
            limits = {source: one.reached for source, one in isolated_ranges.items()}
            limits |= {source: positions[source] for source in copying.left_out}
            done = copying.run(readings.begin(ends, limits), is_partial=ends is not None)
            unfinished = {one.source: one for one in done.unfinished} | isolated_ranges
            return replace(done, retried=tuple(retried), unfinished=tuple(unfinished.values()))
        except (BatchRefusedError, CorruptBatchError, DataLossError, TopicAccessError) as error:
            found = isolated(error, job, positions, is_writing=copying.is_writing)
            new = _further_back(found, isolated_ranges, positions)
            if not new:
                raise
            isolated_ranges |= new
            if ends is not None or not readings.is_repeatable:
                ends = {**copying.reached}
            _log.warning("slot %d starts again without what cannot be copied: %s", number, error)
        except QuarantinableBatchError as found:
            place = (found.source, found.refusal.error.base_offset)
            if place in known:
                raise found.refusal.error from found
            known[place], ends = found.refusal, {**copying.reached, found.source: found.end}
            _log.warning("slot %d starts again without a batch that the target refuses: %s", number, found)
        except CoalescedBatchRefusedError as refused:
            job, ends = job.without_coalescing(), {**copying.reached, refused.source: refused.end}
            _log.warning("slot %d starts again without making one batch of several: %s", number, refused)
        except RetriableError as error:
            if type(error) is not RetriableError or patience.is_over() or not (readings.is_repeatable or ends is not None):
                raise  # a fenced epoch may mean that another run took over: only the driver can tell
            _log.warning("slot %d starts again from its positions: %s", number, error)
            retried.append(error)
            target.pause(tries, patience)
        tries += 1


def _further_back(
    found: Sequence[UnfinishedRange], before: Mapping[SourcePartition, UnfinishedRange], positions: Mapping[SourcePartition, int]
) -> dict[SourcePartition, UnfinishedRange]:
    """Where the next try has to end in each partition: at its position, where an end in front of the error was of no use.

    Without partitions of which nothing was to be read any more: what is wrong with them is of no partition.
    """
    ranges: dict[SourcePartition, UnfinishedRange] = {}
    for one in found:
        last = before.get(one.source)
        if last is None:
            ranges[one.source] = one
        elif last.reached > positions[one.source]:
            ranges[one.source] = one if one.reached < last.reached else replace(one, reached=positions[one.source])
    return ranges


class _Copying:
    """One try of a slot. `reached`: up to where what was read of each partition has been written. `left_out`: what its target
    cannot take now. `is_writing`: what is raised comes from the target."""

    def __init__(
        self,
        job: SlotJob,
        number: int,
        positions: Mapping[SourcePartition, int],
        target: SlotTarget,
        known: KnownRefusals,
    ) -> None:
        self._job = job
        self._number = number
        self._positions = positions
        self._target = target
        self._writer = target.begin()
        self._known = known
        self.left_out: dict[SourcePartition, UnfinishedRange] = {}
        self.is_writing = False
        self._builders: dict[SourcePartition, SegmentBuilder] = {}
        self._quarantined: list[QuarantinedBatch] = []
        self._budget = None if job.quarantine is None else QuarantineBudget(job.quarantine)
        self.reached = dict(positions)

    def run(self, reading: SlotReading, *, is_partial: bool) -> SlotResult:
        """`is_partial`: there is more to read than `reading` brings."""
        for every in reading:
            self.leave_out_unavailable(part.source for part in every)
            parts = [part for part in every if part.source not in self.left_out]
            admitted = [admit_part(self._job, one, max(self.reached[one.source], one.start), self._known) for one in parts]
            self.is_writing = True
            self._writer.write(admitted, self._builder_of)
            self.is_writing = False
            for one in admitted:
                self.reached[one.part.source] = self._builder_of(one.part.source).position
                # Those behind the end of a slot that stopped in the middle are met again by the next round.
                self._set_aside([kept for kept in one.quarantined if kept.source_end <= self.reached[kept.source]])
            if self._writer.is_due or self._has_many_segments():
                is_partial = True
                break
        if not is_partial:
            for source, reached in reading.reached().items():
                if source not in self.left_out:
                    self._builder_of(source).close_at(reached)
        unfinished = {**reading.unfinished(), **self.left_out}
        self.is_writing = True
        segments = tuple(segment for builder in self._builders.values() for segment in builder.build())
        written = self._writer.close(is_partial=is_partial)
        return SlotResult(
            self._number,
            written.txn,
            segments,
            written.fetched_bytes,
            reading.unknown,
            is_partial,
            tuple(self._quarantined),
            unfinished=tuple(unfinished.values()),
            stamped_topics=written.stamped_topics,
            early_end=written.early_end,
        )

    def leave_out_unavailable(self, sources: Iterable[SourcePartition]) -> None:
        """Those whose target cannot take part in a transaction, before anything is sent to it."""
        if not self._job.leaves_out:
            return
        self.is_writing = True
        for source, error in self._target.unavailable(sources).items():
            self.left_out[source] = UnfinishedRange.of(source, self.reached[source], Side.TARGET, error)
        self.is_writing = False

    def _has_many_segments(self) -> bool:
        return sum(builder.segment_count for builder in self._builders.values()) > self._job.max_segments

    def _builder_of(self, source: SourcePartition) -> SegmentBuilder:
        if source not in self._builders:
            target = self._job.routes[source.topic].target_of(source)
            self._builders[source] = SegmentBuilder(source, target, self._positions[source])
        return self._builders[source]

    def _set_aside(self, batches: Sequence[QuarantinedBatch]) -> None:
        if self._budget is not None:
            self._budget.take(batches)
        self._quarantined += batches
