"""Executor: the task of one slot of a micro-batch: read, write, segments.

A task reads every range of its slot from the position on and writes it in one try of its target (for Kafka: one transaction,
which it leaves open for the driver to end). It writes for the commit interval at most, then hands over its results, also in the
middle of a response: what is planned need not fit into the transaction timeout, because each round moves the positions by what
the link carries, a batch at least.

Errors of this package are returned to the driver as values, so that their type and fields survive Spark.
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

from shallow_mirror.broker.cluster import cluster_of_worker, freeze_imports_once
from shallow_mirror.broker.fetch import PARTITION_PATIENCE_MS
from shallow_mirror.broker.net import may_be_missing
from shallow_mirror.checkpoints.logs import QuarantinedBatch
from shallow_mirror.checkpoints.rows import SegmentBuilder
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import (
    BatchRefusedError,
    CorruptBatchError,
    DataLossError,
    MirrorError,
    PreservedLogDamagedError,
    RetriableError,
    TopicAccessError,
    TopicGoneError,
    TopicSettingsError,
)
from shallow_mirror.sinks.base import SlotTarget, TryRepeatedError
from shallow_mirror.sinks.slot_values import ReadPart, Side, SlotResult, SteadyCopying, UnfinishedRange
from shallow_mirror.sinks.slots.batch_sources import (
    ReadingFactory,
    ReadingLimits,
    SlotReading,
    routed_positions,
)
from shallow_mirror.sinks.slots.direct_readings import DirectReadingFactory
from shallow_mirror.sinks.slots.left_out_ranges import ranges_to_isolate
from shallow_mirror.sinks.slots.planned_rows import holds_planned_ranges, ranges_of
from shallow_mirror.sinks.slots.quarantine_policy import QuarantineBudget
from shallow_mirror.sinks.slots.row_readings import RowReading, RowReadingFactory
from shallow_mirror.sinks.slots.slot_job import SlotJob
from shallow_mirror.sinks.slots.truncation_check import CheckedReadingFactory
from shallow_mirror.types import SourcePartition

_log = logging.getLogger(__name__)

SLOT_PATIENCE_MS = 10_000.0
"""How long after its start a slot starts again after an error; later ones go to the driver, whose supervisor reports them."""

RESULT_SCHEMA = "body binary"

_ARROW_RESULT_SCHEMA = pa.schema([("body", pa.binary())])


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotInput:
    """Input of one slot. `number`: of the slot. `positions`: first source offsets.

    `expected`: partitions that have something to read; empty if that shows only when it is read.
    """

    number: int
    readings: ReadingFactory
    positions: Mapping[SourcePartition, int]
    expected: frozenset[SourcePartition] = frozenset()


def answer_of(answer: object) -> pa.RecordBatch:
    """Return the only row of a task's output (RESULT_SCHEMA): its answer, pickled."""
    return pa.RecordBatch.from_arrays([pa.array([pickle.dumps(answer)], pa.binary())], schema=_ARROW_RESULT_SCHEMA)


OpenInput = Callable[[SlotJob, Iterator[pa.RecordBatch], bool, Deadline], SlotInput]
"""Return the input that the rows of an input partition describe. The flag: they are planned ranges, not batches."""

OpenTarget = Callable[[int, Deadline], SlotTarget]
"""Return the target of the slot of this number. Called on an executor."""


def open_source(job: SlotJob, rows: Iterator[pa.RecordBatch], is_planned_ranges: bool, deadline: Deadline) -> SlotInput:
    """Return the reading of the source cluster."""
    patience_ms = PARTITION_PATIENCE_MS if job.leaves_out else None
    limits = ReadingLimits.of_job(job, deadline, patience_ms)
    assert job.source is not None
    source = cluster_of_worker(job.source)
    if job.known_source is not None:
        source.learn(job.known_source)
    readings: ReadingFactory
    expected: frozenset[SourcePartition] = frozenset()
    if is_planned_ranges:
        every = [planned for arrow_batch in rows for planned in ranges_of(arrow_batch)]
        ranges = [planned for planned in every if planned.source not in job.left_out]
        starts = {planned.source: job.positions[planned.source] for planned in ranges if planned.source in job.positions}
        positions = routed_positions(starts, job.routes.keys())
        number, readings = every[0].slot, DirectReadingFactory(source, ranges, positions, limits)
        expected = frozenset(planned.source for planned in ranges if positions.get(planned.source, planned.end) < planned.end)
    else:
        positions = routed_positions(job.positions, job.routes.keys())
        number = _input_partition()
        readings = RowReadingFactory(RowReading(source, rows, number, positions, limits, job.left_out))
    return SlotInput(
        number=number,
        readings=CheckedReadingFactory(readings, source, job.epoch_ends, deadline),
        positions=positions,
        expected=expected,
    )


@dataclass(frozen=True, slots=True)
class SlotTask:
    """The function of `mapInArrow`: do `job` for the slot of one input partition."""

    job: SlotJob
    open_target: OpenTarget
    open_input: OpenInput = open_source

    def __call__(self, arrow_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one pickled `SlotResult` or `MirrorError` for the rows of a slot; nothing if Spark has no rows for it.

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
            done = run_slot(
                self.job,
                rows,
                is_planned_ranges=holds_planned_ranges(first.schema),
                open_target=self.open_target,
                open_input=self.open_input,
            )
            body = replace(done, duration_ms=(time.monotonic() - began) * 1000)
        except MirrorError as error:
            body = error
        yield answer_of(body)


def run_slot(
    job: SlotJob,
    rows: Iterator[pa.RecordBatch],
    *,
    is_planned_ranges: bool,
    open_target: OpenTarget,
    open_input: OpenInput = open_source,
) -> SlotResult:
    """Do steps 3 to 5 of docs/design/exactly-once.md for one slot.

    Raises `MirrorError`s: no decision names its writes then.
    """
    deadline = Deadline.after_ms(job.time_left_ms, time.monotonic)
    slot_input = open_input(job, rows, is_planned_ranges, deadline)
    target = open_target(slot_input.number, deadline)
    try:
        done = fill_slot(job, slot_input, target, deadline, is_again=spark_attempt() > 0)
        return done if job.source is None else replace(done, source_speeds=cluster_of_worker(job.source).path_speeds())
    except BaseException:
        target.abandon()
        raise


def spark_attempt() -> int:
    """Return how many attempts of this task there were before; 0 outside of Spark."""
    context = TaskContext.get()
    return 0 if context is None else int(context.attemptNumber())


def _input_partition() -> int:
    context = TaskContext.get()
    assert context is not None
    return int(context.partitionId())


def fill_slot(
    job: SlotJob, slot_input: SlotInput, target: SlotTarget, deadline: Deadline, *, is_again: bool = False
) -> SlotResult:
    """Read and write the ranges of one slot, in as many tries as it takes, each with a writer of its own.

    `is_again`: another task may have written for the slot before. Raises `MirrorError`s; nothing may be decided then.
    """
    number, readings, positions = slot_input.number, slot_input.readings, slot_input.positions
    patience, tries = deadline.sooner(SLOT_PATIENCE_MS), 0
    ends: Mapping[SourcePartition, int] | None = None
    retried = list[RetriableError]()
    isolated_ranges: dict[SourcePartition, UnfinishedRange] = {}
    while True:
        slot_try = _SlotTry(job, number, positions, target)
        try:
            # Partitions that cannot be written are not read either. Rows that Spark hands over have been read already: there the
            # first try checks each partition when its first rows come.
            if readings.is_repeatable or is_again or tries:
                # Nor are those that are left out from their positions on: asking about one may fail as it did before.
                slot_try.leave_out_unavailable(
                    source
                    for source, position in positions.items()
                    if source not in isolated_ranges or isolated_ranges[source].reached > position
                )
            if is_again or tries:
                # What hangs of the earlier try would end with the marker of this one. Partitions that are left out need
                # no look: this transaction does not include them, so its marker ends nothing there.
                target.clean_up([partition for partition in positions if partition not in slot_try.left_out])
            highest_ends = {partition: left_out.reached for partition, left_out in isolated_ranges.items()}
            highest_ends |= {partition: positions[partition] for partition in slot_try.left_out}
            if not (is_again or tries):
                slot_try.expect(slot_input.expected)
            done = slot_try.run(readings.begin(ends, highest_ends), is_partial=ends is not None)
            unfinished = {left_out.source: left_out for left_out in done.unfinished} | isolated_ranges
            return replace(
                done,
                retried=tuple(retried),
                unfinished=tuple(unfinished.values()),
                has_unanswered=is_again or bool(retried) or done.has_unanswered,
            )
        except (
            BatchRefusedError,
            CorruptBatchError,
            DataLossError,
            PreservedLogDamagedError,
            TopicAccessError,
            TopicGoneError,
            TopicSettingsError,
        ) as error:
            isolated_now = ranges_to_isolate(error, job, positions, is_writing=slot_try.is_writing)
            new = _new_ends(isolated_now, isolated_ranges, positions)
            if not new:
                raise
            isolated_ranges |= new
            # Rows of Spark are read once: the next try reads the source itself, and only as far as this one came.
            if ends is not None or not readings.is_repeatable:
                ends = {**slot_try.reached}
            _log.warning("slot %d starts again without what cannot be copied: %s", number, error)
        except TryRepeatedError as repeated:
            # What was refused has used no sequence number, batches behind it have: this transaction can no longer be committed.
            # The next one ends behind what was refused; the driver's next round continues there.
            ends = {**slot_try.reached, repeated.source: repeated.end}
            _log.warning("slot %d starts again: %s", number, repeated)
        except RetriableError as error:
            # Subclasses concern the transaction, and are for the driver: a fenced epoch may mean that another run took over, and
            # a blocked id needs another one. Nor is there another try once the time is over, or where the rows of Spark, which
            # are read once, are all there is to read: only a try with `ends` reads the source itself.
            if type(error) is not RetriableError or patience.is_over():
                raise
            if ends is None and not readings.is_repeatable:
                if not may_be_missing(error.error_name):
                    raise
                ends = {**slot_try.reached}  # the next try does without the topic, and reads the source itself
            _log.warning("slot %d starts again from its positions: %s", number, error)
            retried.append(error)
            target.pause(tries, patience)
        tries += 1


def _new_ends(
    isolated_now: Sequence[UnfinishedRange],
    before: Mapping[SourcePartition, UnfinishedRange],
    positions: Mapping[SourcePartition, int],
) -> dict[SourcePartition, UnfinishedRange]:
    """Return the end of the next try in each partition: at its position, if an end in front of the error did not help.

    Partitions that were already to be read up to their positions only are left out: their error is not one of the partition.
    """
    ranges: dict[SourcePartition, UnfinishedRange] = {}
    for left_out in isolated_now:
        last = before.get(left_out.source)
        if last is None:
            ranges[left_out.source] = left_out
        elif last.reached > positions[left_out.source]:
            ranges[left_out.source] = (
                left_out if left_out.reached < last.reached else replace(left_out, reached=positions[left_out.source])
            )
    return ranges


class _SlotTry:
    """One try of a slot.

    `reached`: offset up to which each partition has been written. `left_out`: partitions whose target cannot be written
    now. `is_writing`: an error comes from the target.
    """

    def __init__(
        self,
        job: SlotJob,
        number: int,
        positions: Mapping[SourcePartition, int],
        target: SlotTarget,
    ) -> None:
        self._job = job
        self._number = number
        self._positions = positions
        self._target = target
        self._writer = target.begin()
        self.left_out: dict[SourcePartition, UnfinishedRange] = {}
        self.is_writing = False
        self._builders: dict[SourcePartition, SegmentBuilder] = {}
        self._quarantined: list[QuarantinedBatch] = []
        self._budget = None if job.quarantine is None else QuarantineBudget(job.quarantine)
        self.reached = dict(positions)

    def expect(self, sources: Iterable[SourcePartition]) -> None:
        """Let the target prepare for the partitions to read, as far as they can be written."""
        self._writer.expect(source for source in sources if source not in self.left_out)

    def run(self, reading: SlotReading, *, is_partial: bool) -> SlotResult:
        """Copy the batches of `reading`. `is_partial`: there is more to read than that."""
        first: tuple[float, int] | None = None  # when the first response was there, and its size
        for response in self._responses_of(reading):
            if first is None and response:
                first = time.monotonic(), sum(int(part.index.size_bytes.sum()) for part in response)
            self.leave_out_unavailable(part.source for part in response)
            parts = [part for part in response if part.source not in self.left_out]
            self.is_writing = True
            self._record(self._writer.write(parts, self._builder_of))
            self.is_writing = False
            segment_count = sum(builder.segment_count for builder in self._builders.values())
            if self._writer.is_due or segment_count > self._job.max_segments:
                is_partial = True
                break
            if self._writer.until is not None:  # nothing that arrives later is sent with this try
                reading.end_by(self._writer.until)
        self.is_writing = True
        self._record(self._writer.finish(self._builder_of))
        finished_at = time.monotonic()
        is_partial = is_partial or reading.has_ended_early
        if not is_partial:
            for source, reached in reading.reached().items():
                if source not in self.left_out:
                    self._builder_of(source).close_at(reached)
        unfinished = {**reading.unfinished(), **self.left_out}
        segments = tuple(segment for builder in self._builders.values() for segment in builder.build())
        written = self._writer.close(segments, is_partial=is_partial)
        steady = None
        if first is not None and written.fetched_bytes > first[1]:
            steady = SteadyCopying(written.fetched_bytes - first[1], finished_at - first[0])
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
            stored=written.stored,
            early_end=written.early_end,
            shared_producers=written.shared_producers,
            has_unanswered=written.has_unanswered,
            stable_ends=written.stable_ends,
            target_speeds=written.target_speeds,
            steady=steady,
        )

    def _responses_of(self, reading: SlotReading) -> Iterator[tuple[ReadPart, ...]]:
        """Yield the responses. Before an error of the source is raised, written batches are recorded: the next try ends there."""
        try:
            yield from reading
        except MirrorError:
            self._record(self._writer.finish(self._builder_of))
            raise

    def leave_out_unavailable(self, sources: Iterable[SourcePartition]) -> None:
        """Leave out the partitions whose target cannot be written now, before anything is sent to it.

        Raises errors that need an operator, if `on_error` is not isolate.
        """
        if not self._job.leaves_out:
            return
        self.is_writing = True
        for source, error in self._target.unavailable(sources).items():
            if not isinstance(error, RetriableError) and not self._job.isolates:
                raise error
            self.left_out[source] = UnfinishedRange.of(source, self.reached[source], Side.TARGET, error)
        self.is_writing = False

    def _builder_of(self, source: SourcePartition) -> SegmentBuilder:
        if source not in self._builders:
            target = self._job.routes[source.topic].target_of(source)
            lineage = self._job.lineages.get(source, 0)
            self._builders[source] = SegmentBuilder(source, target, self._positions[source], lineage=lineage)
        return self._builders[source]

    def _record(self, quarantined: Sequence[QuarantinedBatch]) -> None:
        """Take over the writes of the meantime, and the batches of it that are quarantined."""
        self.reached.update((source, builder.position) for source, builder in self._builders.items())
        # Where the slot stopped in the middle, the next round reads the batches behind that end again.
        batches = [batch for batch in quarantined if batch.source_end <= self.reached[batch.source]]
        if self._budget is not None:
            self._budget.take(batches)
        self._quarantined += batches
