"""Driver: the foreachBatch body: launch the slots, decide, end, settle."""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.checkpoints.offset_map_writer import OffsetMapOwner
from shallow_mirror.checkpoints.positions import Position
from shallow_mirror.checkpoints.quarantine_tables import QuarantineTable
from shallow_mirror.checkpoints.quarantined_batches import QuarantinedBatch
from shallow_mirror.checkpoints.schema import DecidedSegment
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import (
    BatchRefusedError,
    DataLossError,
    LogTruncatedError,
    MirrorError,
    RetriableError,
    TransactionBlockedError,
)
from shallow_mirror.sinks.base import Observer
from shallow_mirror.sinks.kafka.expired_offsets import expired_rows
from shallow_mirror.sinks.kafka.protocol import actions
from shallow_mirror.sinks.kafka.protocol.actions import drive
from shallow_mirror.sinks.kafka.protocol.recovery import TxnPerformer, most_telling
from shallow_mirror.sinks.kafka.protocol.stall_detector import StepWatch
from shallow_mirror.sinks.kafka.slots.compact_pickle import Travelling
from shallow_mirror.sinks.kafka.slots.quarantine_policy import NO_LIMITS, QuarantineBudget
from shallow_mirror.sinks.kafka.slots.slot_job import SlotJob, target_ends_of
from shallow_mirror.sinks.kafka.slots.slot_task import RESULT_SCHEMA, SlotTask
from shallow_mirror.sinks.kafka.slots.slot_time import SlotTime
from shallow_mirror.sinks.kafka.spark_failures import lost_worker
from shallow_mirror.sinks.kafka.targets.target_topics import TargetTopics
from shallow_mirror.sinks.kafka.targets.transactional_ids import ids_of, transactional_id
from shallow_mirror.sinks.kafka.truncated_logs import TruncatedLogs
from shallow_mirror.sinks.slot_results import EarlyEnd, MicroBatchOutcome, SlotResult, UnfinishedRange
from shallow_mirror.types import EpochEnd, SlotTxn, SourcePartition, TopicPartition

_log = logging.getLogger(__name__)

_ABORT_PATIENCE_MS = 5_000

BETWEEN, SLOWEST_SLOT, TOTAL = "Between", "SlowestSlot", "Total"
"""Steps of a round besides its actions. `Between`: since the round before, for Spark's log, its planning and waiting for data;
`SlowestSlot`: the part of RunSlots that a task itself took; `Total`: of the round, without `Between`."""

LOOK_AGAIN_EVERY_S = 2.0
LOOK_AGAIN_MS = 10_000
"""How often, and for how long, the driver looks whether the target can do again what it could not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchReport:
    """What one round did. Durations in ms by step name; `retried`: what made a slot start again, and which; `early_ends`: of the
    slots that the commit interval ended; `stamped_topics`: target topics whose broker gave batches its own time; `truncated`:
    logs of the source that were cut below the position, behind which the mirror continued."""

    micro_batch: int
    rows: tuple[DecidedSegment, ...]
    fetched_bytes: int
    duration_ms: Mapping[str, float]
    quarantined: tuple[QuarantinedBatch, ...] = ()
    retried: tuple[tuple[int, RetriableError], ...] = ()
    stamped_topics: frozenset[str] = frozenset()
    early_ends: tuple[EarlyEnd, ...] = ()
    truncated: tuple[LogTruncatedError, ...] = ()


LeftOutReport = Callable[[Sequence[UnfinishedRange], Mapping[SourcePartition, Position]], None]


def nothing_left_out(unfinished: Sequence[UnfinishedRange], _positions: Mapping[SourcePartition, Position]) -> None:
    """Refuse to leave anything out. Raises RetriableError."""
    for one in unfinished:
        raise RetriableError(one.error_name, f"{one.source.topic_partition}: {one.reason}")


class StoppedBeforeMicroBatchError(Exception):
    """Raised into Spark so that a micro-batch, or a further round of one, that was only about to start does not begin."""


class _SlotBlockedError(Exception):
    """The transactional id of a slot cannot be used. Raised by RunSlots only: behind a decision it would skip its resolution."""


class MicroBatchSink:
    """Called by Spark with each micro-batch; the query's only side effect.

    `failure` holds the error that ended the query: Spark passes on its text only.
    """

    def __init__(
        self,
        *,
        job: SlotJob,
        slots: int,
        owner: OffsetMapOwner,
        performer: TxnPerformer,
        targets: TargetTopics,
        source: Cluster,
        report: Callable[[MicroBatchReport], None],
        observer: Observer,
        goes_on_after_data_loss: bool = False,
        quarantine: QuarantineTable | None = None,
        left_out: LeftOutReport = nothing_left_out,
        register: Callable[[], None] = lambda: None,
        slot_time: SlotTime | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`quarantine` is there where the job may quarantine, `left_out` where it may leave partitions out: it is called at
        the end of each micro-batch with what was left out and the positions of the map. What it raises ends the query,
        because Spark would continue behind the ranges that were left out. `register` adds the first rows of partitions that
        appeared since; it is called in front of each micro-batch, and by `register_if_idle`. `slot_time`: what earlier
        sinks of the run have seen."""
        self._quarantine, self._left_out, self._register = quarantine, left_out, register
        self._unfinished: dict[SourcePartition, UnfinishedRange] = {}
        self._slot_time = SlotTime(slots) if slot_time is None else slot_time
        self._budget = QuarantineBudget(NO_LIMITS)
        self._job, self._slots, self._owner, self._performer, self._targets = job, slots, owner, performer, targets
        self._source, self._report, self._observer, self._clock = source, report, observer, clock
        self._goes_on_after_data_loss = goes_on_after_data_loss
        self._truncated = TruncatedLogs()
        self.failure: BaseException | None = None
        self._running = threading.Lock()
        self._ended_at = clock()
        self._look_again_at = 0.0
        self._is_stopping = False
        self.watch = StepWatch(job.source, job.target, job.transaction_timeout_ms, clock)

    def stop(self) -> None:
        """Let no further micro-batch begin, and wait for the one that runs."""
        self._is_stopping = True
        with self._running:
            pass

    def settle_if_idle(self, quiet_s: float) -> None:
        """From another thread than Spark's: record that all rows hold once no micro-batch ran for `quiet_s` seconds.

        Without it readers would not see the last micro-batch of a mirror that has nothing to do. Raises as `settle`.
        """
        if not self._running.acquire(blocking=False):
            return
        try:
            if self.failure is None and self._clock() - self._ended_at >= quiet_s:
                self._owner.settle()
                self._look_again()
        finally:
            self._running.release()

    def register_if_idle(self) -> None:
        """From another thread than Spark's: register new partitions unless a micro-batch runs, which does so when it begins.

        Raises what `register` raises.
        """
        if not self._running.acquire(blocking=False):
            return
        try:
            if self.failure is None:
                self._register()
        finally:
            self._running.release()

    def __call__(self, planned: DataFrame, spark_batch_id: int) -> None:
        with self._running:
            if self._is_stopping:
                raise StoppedBeforeMicroBatchError(f"stopped before Spark batch {spark_batch_id}")
            try:
                self._register()  # here as well: between two micro-batches the lock may never be free for the driver's loop
                self._copy(planned)
            except StoppedBeforeMicroBatchError:
                raise
            except BaseException as error:
                self.failure = error
                raise
            finally:
                self._ended_at = self._clock()

    def _copy(self, planned: DataFrame) -> None:
        """Rounds until every planned range is done, or left out; one, but for slots that stopped early and offsets that are
        given up.

        A range that is left out is as done for Spark: its plan would be replayed for ever otherwise. Positions are in the map,
        and the planner leads Spark back to them.
        """
        self._look_again()
        first_rows: tuple[DecidedSegment, ...] = ()
        self._unfinished = {}
        self._budget = QuarantineBudget(self._job.quarantine or NO_LIMITS)
        while True:
            try:
                outcome = self._round(planned, first_rows)
            except DataLossError as loss:
                first_rows += self._after_data_loss(loss, first_rows)
                continue
            except _SlotBlockedError:
                continue  # nothing of the round is decided: the next one takes another id for that slot
            _require_committed(outcome.not_committed)
            unknown = [one for result in outcome.slots for one in result.unknown]
            if unknown:
                # Only a plan that others wrote can name such a partition: this mirror's planner plans what is registered. The
                # query begins again, and with it the registration of what the source has.
                raise RetriableError(
                    "PARTITION_NOT_REGISTERED", f"{unknown[0].source.topic_partition} is planned, the offset map does not know it"
                )
            self._unfinished.update({one.source: one for result in outcome.slots for one in result.unfinished})
            if not any(result.is_partial for result in outcome.slots):
                self._left_out(tuple(self._unfinished.values()), self._owner.positions())
                return
            if self._is_stopping:
                # On a slow link what is planned may take many rounds more. The next start finds the same plan in Spark's
                # checkpoint, and reads it from the positions that this round has reached.
                raise StoppedBeforeMicroBatchError("stopped between two rounds of a micro-batch")
            first_rows = ()

    def _look_again(self) -> None:
        """Find out whether partitions and ids of the target that could not be used can be used again.

        Raises RetriableError where rows were removed: positions have fallen back. Raises OutcomeUnknownError.
        """
        if self._performer.availability.is_complete or self._clock() < self._look_again_at:
            return
        removed: Sequence[SlotTxn] = ()
        try:
            removed = self._performer.look_again(Deadline.after_ms(LOOK_AGAIN_MS, self._clock))
        except RetriableError as error:
            _log.info("the target's unavailable partitions are looked at again later: %s", error)
        self._look_again_at = self._clock() + LOOK_AGAIN_EVERY_S
        _require_committed(removed)

    def _slot_numbers(self) -> tuple[int, ...]:
        """Return the number in the transactional id of each slot: ids whose last transaction does not complete are passed over.

        Raises RetriableError where too few are left.
        """
        numbers = [
            number
            for number in range(ids_of(self._slots))
            if self._performer.availability.is_usable(transactional_id(self._job.mirror, number))
        ]
        if len(numbers) < self._slots:
            blocked = ids_of(self._slots) - len(numbers)
            raise RetriableError(
                "NO_TRANSACTIONAL_ID",
                f"{blocked} transactional ids wait for target partitions that do not take the markers of their last transactions",
            )
        return tuple(numbers[: self._slots])

    def _round(self, planned: DataFrame, first_rows: Sequence[DecidedSegment]) -> MicroBatchOutcome:
        deadline = Deadline.after_ms(self._job.transaction_timeout_ms, self._clock)
        started = self._clock()
        steps = {BETWEEN: (started - self._ended_at) * 1000}

        def perform(action: actions.Action) -> Any:
            began, name = self._clock(), type(action).__name__
            with self.watch.doing(name):
                answer = self._perform(action, planned, first_rows, deadline)
            steps[name] = steps.get(name, 0.0) + (self._clock() - began) * 1000
            return answer

        outcome = drive(actions.run_micro_batch(first_rows), perform, self._observer)
        steps[SLOWEST_SLOT] = max((result.duration_ms for result in outcome.slots), default=0.0)
        steps[TOTAL], self._ended_at = (self._clock() - started) * 1000, self._clock()
        if outcome.rows:
            self._report(
                MicroBatchReport(
                    micro_batch=self._owner.micro_batch,
                    rows=outcome.rows,
                    fetched_bytes=sum(result.fetched_bytes for result in outcome.slots),
                    duration_ms=steps,
                    quarantined=tuple(one for result in outcome.slots for one in result.quarantined),
                    retried=tuple((result.slot, error) for result in outcome.slots for error in result.retried),
                    stamped_topics=frozenset(topic for result in outcome.slots for topic in result.stamped_topics),
                    early_ends=tuple(result.early_end for result in outcome.slots if result.early_end is not None),
                    truncated=self._truncated.take_unreported(),
                )
            )
        return outcome

    def _perform(
        self, action: actions.Action, planned: DataFrame, first_rows: Sequence[DecidedSegment], deadline: Deadline
    ) -> Any:
        match action:
            case actions.RunSlots(decision):
                return self._run_slots(planned, decision, first_rows, deadline)
            case actions.Decide(_, rows):
                slots = [int(row.txn.transactional_id.rpartition("-")[2]) for row in rows if row.txn is not None]
                return self._owner.decide(rows, highest_slot=max(slots, default=-1))
            case _:
                return self._performer.perform(action, deadline)

    def _run_slots(
        self, planned: DataFrame, decision: int, first_rows: Sequence[DecidedSegment], deadline: Deadline
    ) -> tuple[SlotResult, ...]:
        known = self._owner.positions()
        time_left_ms = self._slot_time.time_left_ms(self._job.transaction_timeout_ms)
        job = replace(
            self._job,
            decision=decision,
            positions=Travelling(_positions_after(known, first_rows), SourcePartition, int),
            epoch_ends=Travelling(self._truncated.epoch_ends(known), SourcePartition, EpochEnd),
            target_ends=Travelling(target_ends_of(known.values()), TopicPartition, int),
            routes=dict(self._targets.known),
            id_numbers=self._slot_numbers(),
            held=self._performer.availability.held(),
            time_left_ms=time_left_ms,
            commit_interval_ms=self._slot_time.commit_interval_ms(self._job.commit_interval_ms, self._job.transaction_timeout_ms),
            left_out=frozenset(self._unfinished),
        )
        task = SlotTask(job)
        slots = planned.mapInArrow(lambda batches: task(batches), RESULT_SCHEMA)
        began = self._clock()
        try:
            table = slots.toArrow()  # the only evaluation of this round
        except (PySparkException, Py4JError) as failure:
            lost = lost_worker(str(failure))
            if lost is None:
                raise
            raise RetriableError("WORKER_LOST", f"Spark lost a Python worker or executor of the slots: {lost}") from failure
        answers = [pickle.loads(body) for body in table.column("body").to_pylist()]
        errors = [answer for answer in answers if isinstance(answer, MirrorError)]
        results = [answer for answer in answers if isinstance(answer, SlotResult)]
        # Seen before the decision: where the first transactions have timed out, the next try already gives each slot less time.
        all_tasks_ms = (self._clock() - began) * 1000
        if errors:
            self._slot_time.saw_failure(all_tasks_ms, time_left_ms, len(answers))
        else:
            self._slot_time.saw(all_tasks_ms, max((result.duration_ms for result in results), default=0.0), len(answers))
        try:
            self._budget.take(one for result in results for one in result.quarantined)
        except BatchRefusedError as excess:
            errors.append(excess)
        if errors:
            self._owner.check_ownership()  # a fenced producer epoch may mean that another run took over
            error = most_telling(errors)
            if isinstance(error, TransactionBlockedError):
                self._performer.availability.block(error)
                raise _SlotBlockedError(str(error)) from error
            if not isinstance(error, RetriableError):
                self._abort_open_slots(deadline)
            raise error
        self._set_aside(results, decision)
        return tuple(sorted(results, key=lambda result: result.slot))

    def _set_aside(self, results: Sequence[SlotResult], decision: int) -> None:
        """In front of the decision: rows that no decision follows count for nothing."""
        batches = [one for result in results for one in result.quarantined]
        if not batches:
            return
        assert self._quarantine is not None
        self._quarantine.add(batches, decision)
        self._observer("quarantine.written")
        for one in batches:
            _log.warning("quarantined, unless this micro-batch is not decided: %s", one)

    def _abort_open_slots(self, deadline: Deadline) -> None:
        """The run is about to end: readers of the target should not wait for the transaction timeout of what it left open.

        Nothing is decided yet and everything before is settled, so no transaction is lost by it.
        """
        try:
            for number in self._slot_numbers():
                name = transactional_id(self._job.mirror, number)
                self._performer.perform(actions.InitProducerId(name), deadline.sooner(_ABORT_PATIENCE_MS))
        except MirrorError as error:
            _log.warning("open transactions on the target end by their timeout: %s", error)

    def _after_data_loss(self, loss: DataLossError, first_rows: Sequence[DecidedSegment]) -> tuple[DecidedSegment, ...]:
        """Rows to put in the place of what is lost; none behind a log that was cut, where the next round just continues.

        Raises `loss` where nothing can be put there, or nothing may, and RetriableError.
        """
        if not self._goes_on_after_data_loss:
            raise loss
        deadline = Deadline.after_ms(self._job.transaction_timeout_ms, self._clock)
        known = self._owner.positions()
        if isinstance(loss, LogTruncatedError):
            self._truncated.accept(loss, _positions_after(known, first_rows))
            return ()
        targets = {source: position.target for source, position in known.items()}
        targets.update({row.segment.source: row.segment.target for row in first_rows})
        return expired_rows(loss, _positions_after(known, first_rows), targets, self._source, deadline)


def _require_committed(removed: Sequence[SlotTxn]) -> None:
    """Raises RetriableError where rows of a decision were removed: only a new query plans their ranges again."""
    if removed:
        raise RetriableError(
            "SLOT_NOT_COMMITTED", f"{len(removed)} slot transactions were not committed; their ranges are read again"
        )


def _positions_after(
    known: Mapping[SourcePartition, Position], first_rows: Sequence[DecidedSegment]
) -> dict[SourcePartition, int]:
    positions = {source: position.offset for source, position in known.items()}
    return positions | {row.segment.source: row.segment.source_end for row in first_rows}
