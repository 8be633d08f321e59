"""Driver: the rounds of a DataFrame sink: tasks write, one commit to the table decides, the transactions are committed.

The order is `actions.run_micro_batch`, as for a mirror. A round is a whole micro-batch: what is decided is all of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.errors import PySparkException

from shallow_mirror.checkpoints import DecidedSegment, WrittenBy
from shallow_mirror.checkpoints.ledger import LedgerOwner
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MicroBatchInDoubtError, MirrorError, RetriableError
from shallow_mirror.sinks.base import Observer, observe_nothing
from shallow_mirror.sinks.kafka.kafka_sink import RECHECK_MS
from shallow_mirror.sinks.kafka.protocol import actions
from shallow_mirror.sinks.kafka.protocol.run_guard import RunGuard
from shallow_mirror.sinks.kafka.protocol.txn_performer import TxnPerformer
from shallow_mirror.sinks.kafka.targets.txn_ids import id_count, transactional_id
from shallow_mirror.sinks.micro_batches.spark_tasks import SlotRows, most_actionable, run_tasks
from shallow_mirror.sinks.records.micro_batch_identity import MicroBatchId, Plan
from shallow_mirror.sinks.records.record_job import RecordJob, RecordSlotResult
from shallow_mirror.sinks.records.record_task import RecordTask
from shallow_mirror.sinks.slot_values import SlotResult, require_committed
from shallow_mirror.types import TargetPartition

_log = logging.getLogger(__name__)

_ABORT_PATIENCE_MS = 5_000


@dataclass(frozen=True, slots=True)
class Written:
    """The outcome of a micro-batch. `rows`: of the table. `duration_ms`: by action of the protocol."""

    batch: MicroBatchId
    rows: tuple[DecidedSegment, ...] = ()
    stamped_topics: frozenset[str] = frozenset()
    duration_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def record_count(self) -> int:
        return sum(row.segment.record_count for row in self.rows)

    @property
    def size_bytes(self) -> int:
        return sum(row.segment.size_bytes for row in self.rows)


class RecordSink:
    """The Kafka transactions of one run, for the owner of the table, after its recovery. Not for several threads."""

    def __init__(
        self,
        job: RecordJob,
        *,
        slots: int,
        owner: LedgerOwner,
        performer: TxnPerformer,
        guard: RunGuard,
        observer: Observer = observe_nothing,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`job`: without the values of a round. `guard`: as `recover` has taken it."""
        self._job, self._slots = job, slots
        self._owner, self._performer, self._guard = owner, performer, guard
        self._observer = observer
        self._clock = clock

    def write(self, rows: SlotRows, batch: MicroBatchId, plan: Plan) -> Written:
        """Write a micro-batch as planned: each input partition of `rows` is a slot, at most `slots`. Evaluates them once.

        Raises errors of tasks, then nothing is decided, FencedError, OutcomeUnknownError, and RetriableError, also if it was
        decided and a transaction was not committed: the table says then what is left to write.
        """
        deadline = Deadline.after_ms(self._job.transaction_timeout_ms, self._clock)
        results: tuple[RecordSlotResult, ...] = ()
        attributed: tuple[DecidedSegment, ...] = ()
        durations: dict[str, float] = {}

        def perform(action: actions.Action) -> Any:
            nonlocal results, attributed
            began, answer = self._clock(), None
            match action:
                case actions.RunSlots(decision):
                    results = self._run_slots(rows, decision, batch, plan, deadline)
                    answer = tuple(SlotResult(result.slot, result.txn, result.segments) for result in results)
                case actions.Decide(_, decided):
                    attributed = self._attributed(decided, results, batch)
                    self._decide(attributed)
                case _:
                    answer = self._performer.perform(action, deadline)
            durations[type(action).__name__] = durations.get(type(action).__name__, 0.0) + (self._clock() - began) * 1000
            return answer

        if not self._performer.availability.is_complete:
            require_committed(self._performer.recheck_unavailable(deadline.sooner(RECHECK_MS)))
        outcome = actions.drive(actions.run_micro_batch(()), perform, self._observer)
        require_committed(outcome.not_committed)
        # Spark forgets a micro-batch that is done. So it is done only when nothing of it can turn out to be aborted any more.
        self._performer.require_visible()
        self._owner.settle()
        self._observer("Settled")
        self._owner.compact_if_due()
        stamped = frozenset(topic for result in results for topic in result.stamped_topics)
        return Written(batch, attributed, stamped, durations)

    def _run_slots(
        self, rows: SlotRows, decision: int, batch: MicroBatchId, plan: Plan, deadline: Deadline
    ) -> tuple[RecordSlotResult, ...]:
        names = self._names()
        job = replace(
            self._job,
            decision=decision,
            micro_batch=batch.in_receipt(),
            time_left_ms=deadline.remaining_ms(),
            id_numbers=tuple(int(name.rpartition("-")[2]) for name in names),
            held=self._performer.availability.held_partitions(),
            target_ends={TargetPartition(*target): at.target_end for target, at in self._owner.positions().items()},
            committed=plan.committed,
        )
        try:
            results = _results_of(run_tasks(rows, RecordTask(job)))
            _require_whole(results, plan)
        except (MirrorError, PySparkException) as error:
            self._owner.check_ownership()  # a fenced producer epoch may mean that another run took over
            if not isinstance(error, RetriableError):  # else the next try fences the same ids
                self._abort(names, deadline)
            raise
        if any(result.txn is not None for result in results):
            # Behind the last InitProducerId: an earlier answer would not show a run that began in between.
            self._guard.require(deadline, is_begun_enough=False)
        return results

    def _abort(self, names: Sequence[str], deadline: Deadline) -> None:
        """Abort the transactions of tasks at once: nothing is decided, and readers need not wait for the transaction timeout."""
        try:
            for name in names:
                self._performer.perform(actions.InitProducerId(name, tuple(names)), deadline.sooner(_ABORT_PATIENCE_MS))
        except MirrorError as error:
            _log.warning("open transactions on the target end by their timeout: %s", error)

    def _decide(self, rows: Sequence[DecidedSegment]) -> None:
        numbers = [int(row.txn.transactional_id.rpartition("-")[2]) for row in rows if row.txn is not None]
        self._owner.decide(rows, highest_slot=max(numbers, default=-1))

    def _attributed(
        self, rows: Sequence[DecidedSegment], results: Sequence[RecordSlotResult], batch: MicroBatchId
    ) -> tuple[DecidedSegment, ...]:
        """Return the rows with the micro-batch and the slot that wrote them."""
        record_count = sum(result.content.record_count for result in results)
        written_by = {
            result.txn: WrittenBy(
                batch.query_id,
                batch.batch_id,
                batch.job_id,
                batch.source_offsets,
                record_count,
                result.slot,
                result.content.record_count,
                result.content.crc32c,
            )
            for result in results
        }
        return tuple(replace(row, written_by=written_by[row.txn]) for row in rows)

    def _names(self) -> list[str]:
        """Return the transactional id of each slot, without those whose last transaction does not complete.

        Raises RetriableError if too few are left.
        """
        every = [transactional_id(self._job.name, number) for number in range(id_count(self._slots))]
        usable = [name for name in every if self._performer.availability.is_usable(name)]
        if len(usable) < self._slots:
            raise RetriableError(
                "NO_TRANSACTIONAL_ID",
                f"{len(every) - len(usable)} transactional ids wait for target partitions that do not accept markers of their "
                "last transactions",
            )
        return usable[: self._slots]


def _results_of(answers: Sequence[object]) -> tuple[RecordSlotResult, ...]:
    """Return the results of all tasks. Raises the error of one of them."""
    errors = [answer for answer in answers if isinstance(answer, MirrorError)]
    if errors:
        raise most_actionable(errors)
    return tuple(answer for answer in answers if isinstance(answer, RecordSlotResult))


def _require_whole(results: Sequence[RecordSlotResult], plan: Plan) -> None:
    """Raise MicroBatchInDoubtError if a replay of a micro-batch that is committed in part has other records."""
    if plan.record_count is None:
        return
    found = sum(result.content.record_count for result in results)
    missing = plan.committed.keys() - {result.slot for result in results}
    if missing or found != plan.record_count:
        raise MicroBatchInDoubtError(
            f"the micro-batch was committed in part: it had {plan.record_count} records, and its replay has {found}"
        )
