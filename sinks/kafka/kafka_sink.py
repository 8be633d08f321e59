"""Driver: the Kafka sink: every slot writes in a transaction of its own, and one commit to the offset map decides them all.

Theory of operation. A round is the generator `actions.run_micro_batch`; `KafkaSink._perform` carries out its actions in order:

    RunSlots            tasks read the source and write to the target, invisible to readers of committed records
    RefuseHangingTxns   nothing older is open in front of what was written
    Decide              one Delta commit with the rows and the transactions of all slots: from here on, the round counts
    EndTxn              commit of each transaction; then AwaitVisible, and Settle if one was not committed

The order is the same everywhere. What differs is which round trips a micro-batch waits for:

- Near target: nothing is asked ahead that a task can ask itself for less than a millisecond.
- Far target (`_is_target_far`, by measured speeds): round trips are what a small micro-batch costs. When everything of a round is
  visible, `_prepare_next_round` requests the next producer epochs and metadata, and the answers arrive while Spark plans. Before
  the tasks start, `_additions` adds the planned partitions to the transactions. Slots ask for last stable offsets behind their
  last batches, and `RefuseHangingTxns` uses those answers. A task keeps more responses in flight.
- Preserved offsets: no transaction. The broker itself rejects a batch that is not at its offset, since the sequence is made from
  the offset and all writers of a partition share a producer id. Its records are visible before the decision: a crash leaves
  records without rows, and the next task finds them at the end of the log and records them.

Before a decision, `guard` (`protocol/run_guard.py`) shows that no other run with a copy of the tables has begun. It has to be
asked after the last producer epoch was taken: if all were taken ahead, the response that was requested with them counts.
"""

from __future__ import annotations

import functools
import logging
import operator
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from shallow_mirror.broker import KnownCluster, PathSpeeds
from shallow_mirror.broker.admin import delete_records
from shallow_mirror.broker.net import UNKNOWN_TOPIC_OR_PARTITION, error_name
from shallow_mirror.checkpoints import DecidedSegment, Position
from shallow_mirror.checkpoints.ledger import LedgerOwner
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, MirrorError, RetriableError, TransactionBlockedError
from shallow_mirror.sinks.base import Observer, RoundRepeatedError, RunSlots, SlotRound, TaskFunction
from shallow_mirror.sinks.kafka.preserved.held_records import HeldRecords
from shallow_mirror.sinks.kafka.protocol import actions
from shallow_mirror.sinks.kafka.protocol.run_guard import RunGuard
from shallow_mirror.sinks.kafka.protocol.stall_detector import StallDetector
from shallow_mirror.sinks.kafka.protocol.txn_inspection import FORGOTTEN_MARKER, TRANSACTION_ABORTED, is_nothing_hanging
from shallow_mirror.sinks.kafka.protocol.txn_outcome import DecidedTxn
from shallow_mirror.sinks.kafka.protocol.txn_performer import TxnPerformer
from shallow_mirror.sinks.kafka.targets.settings.preserved_settings import PreservedSettings
from shallow_mirror.sinks.kafka.targets.target_topics import TargetTopics
from shallow_mirror.sinks.kafka.targets.txn_ids import id_count, transactional_id
from shallow_mirror.sinks.kafka.writers.kafka_slot_job import (
    FAR_RESPONSES,
    NEAR_RESPONSES,
    KafkaSlotJob,
    PreparedTxn,
    positions_in,
    target_ends_of,
)
from shallow_mirror.sinks.kafka.writers.slot_target import open_kafka_target
from shallow_mirror.sinks.kafka.writers.slot_transaction import STABLE_FOR_MS
from shallow_mirror.sinks.slot_values import MicroBatchOutcome, SlotResult, require_committed
from shallow_mirror.sinks.slots.slot_job import CompactDict
from shallow_mirror.sinks.slots.slot_task import OpenInput, SlotTask, open_source
from shallow_mirror.types import EpochEnd, PlannedRange, SegmentKind, SlotTxn, SourcePartition, TopicPartition

_log = logging.getLogger(__name__)

_ABORT_PATIENCE_MS = 5_000

_UNKNOWN_TOPIC = error_name(UNKNOWN_TOPIC_OR_PARTITION)

_DEFINITE_OF_TRANSACTIONS = frozenset({FORGOTTEN_MARKER, TRANSACTION_ABORTED})
"""Errors of RefuseHangingTxns for partitions that do answer."""

RECHECK_EVERY_S = 2.0
RECHECK_MS = 10_000
"""How often, and for how long, the driver looks whether unavailable parts of the target can be used again."""


_NOT_MEASURED = PathSpeeds()

RECENT_ROUNDS = 10
"""Ids and topics of so many rounds are asked for ahead: with light traffic, one round fills more slots than another."""


class _Used(NamedTuple):
    """Transactional ids and topics of a round."""

    names: frozenset[str]
    topics: frozenset[str]
    source_topics: frozenset[str]


class KafkaSink:
    """The Kafka transactions of a query (a `Sink`), for the owner of the map, after its recovery.

    `watch` says which step takes longer than is usual, to any thread.
    """

    def __init__(
        self,
        *,
        job: KafkaSlotJob,
        slots: int,
        owner: LedgerOwner,
        performer: TxnPerformer,
        targets: TargetTopics,
        observer: Observer,
        open_input: OpenInput = open_source,
        planned_ranges: Callable[[], Sequence[PlannedRange]] = tuple,
        target_speeds: PathSpeeds = _NOT_MEASURED,
        clock: Callable[[], float] = time.monotonic,
        guard: RunGuard | None = None,
        settings: PreservedSettings | None = None,
        held: HeldRecords | None = None,
        refuse_rows: Callable[[Sequence[DecidedSegment], Deadline], None] = lambda _rows, _deadline: None,
    ) -> None:
        """`job` is the template of every slot's, without the values of one round. `open_input`: opens the input of slots.

        `planned_ranges`: returns the known ranges of the next round. `target_speeds`: of the paths to
        the target, as an earlier sink has seen them. `guard`: as `recover` has taken it. `settings`, `held`: None if no topic
        is preserved. `refuse_rows`: raises ConfigError for rows that must not be decided.
        """
        self._job = job
        self._slots = slots
        self._owner = owner
        self._performer = performer
        self._targets = targets
        self._observer = observer
        self.open_input = open_input
        self._clock = clock
        self._recheck_at = 0.0
        self._unclean_at = clock()
        """When a request of another writer, or one of ours without an answer, may have been on its way the last time."""
        self._stable_ends: Mapping[TopicPartition, int] = {}
        self._planned_ranges = planned_ranges
        self._guard, self._settings, self._held = guard, settings, held
        self._refuse_rows = refuse_rows
        self._prepared: frozenset[SlotTxn] = frozenset()
        """The transactions of this round whose producer epochs were taken before the guard was asked for."""
        self._source_speeds, self._target_speeds = _NOT_MEASURED, target_speeds
        self._recent: deque[_Used] = deque(maxlen=RECENT_ROUNDS)
        self.watch = StallDetector(job.source, job.target, job.transaction_timeout_ms, clock)

    @property
    def round_timeout_ms(self) -> int:
        return self._job.transaction_timeout_ms

    @property
    def commit_interval_ms(self) -> float:
        return self._job.commit_interval_ms

    @property
    def micro_batch(self) -> int:
        return self._owner.micro_batch

    def positions(self) -> Mapping[SourcePartition, Position]:
        return self._owner.positions()

    def check_ownership(self) -> None:
        self._owner.check_ownership()

    def settle(self) -> None:
        self._owner.settle()

    def recheck_unavailable(self) -> None:
        """Find out whether partitions and ids of the target that could not be used can be used again.

        Raises RetriableError if rows were removed: positions have fallen back. Raises OutcomeUnknownError.
        """
        if self._performer.availability.is_complete or self._clock() < self._recheck_at:
            return
        removed: Sequence[SlotTxn] = ()
        try:
            removed = self._performer.recheck_unavailable(Deadline.after_ms(RECHECK_MS, self._clock))
        except RetriableError as error:
            _log.info("the target's unavailable partitions are checked again later: %s", error)
        # After an error as well: a target that does not answer is not asked in every micro-batch.
        self._recheck_at = self._clock() + RECHECK_EVERY_S
        require_committed(removed)

    def task_of(self, round_: SlotRound) -> TaskFunction:
        """Return the task of every slot. Raises RetriableError if too few transactional ids can be used."""
        numbers = self._slot_numbers()
        deadline = Deadline.after_ms(round_.time_left_ms, self._clock)
        next_round = self._performer.next_round
        epochs = next_round.take_epochs(deadline)
        self._prepared = frozenset(epochs.values())
        if self._guard is not None and epochs:
            # After the last epoch was taken: an earlier answer would not show a run that began in between.
            self._guard.begin(deadline)
        names = [transactional_id(self._job.mirror, number) for number in numbers]
        known_target = next_round.take_target(names, self._target_speeds, deadline)
        additions = self._additions([epochs.get(name) for name in names], known_target, round_)
        next_round.begin_additions(additions, deadline)
        positions = positions_in(self._targets.routes, self._owner.positions())
        job = replace(
            self._job,
            decision=round_.decision,
            positions=CompactDict(round_.positions, SourcePartition, int),
            epoch_ends=CompactDict(round_.epoch_ends, SourcePartition, EpochEnd),
            target_ends=CompactDict(target_ends_of(positions), TopicPartition, int),
            routes=dict(self._targets.routes),
            id_numbers=numbers,
            held=self._performer.availability.held_partitions(),
            time_left_ms=round_.time_left_ms,
            commit_interval_ms=round_.commit_interval_ms,
            left_out=round_.left_out,
            shared_producers=CompactDict(self._shared_producers(), SourcePartition, int),
            origins={at.target.topic_partition: at.origin for at in positions if at.origin},
            unfit={} if self._settings is None else self._settings.problems(self._targets.routes, deadline),
            quiet_for_ms=(self._clock() - self._unclean_at) * 1000,
            responses_in_flight=FAR_RESPONSES if self._is_target_far() else NEAR_RESPONSES,
            follow_ms=self._job.follow_ms if round_.is_one_wave and self._is_all_preserved() else 0.0,
            prepared={name: PreparedTxn(txn, frozenset(additions.get(txn, ()))) for name, txn in epochs.items()},
            known_target=known_target,
            known_source=next_round.take_source(self._source_speeds, deadline),
        )
        return SlotTask(job, functools.partial(open_kafka_target, job), self.open_input)

    def _additions(
        self, txns: Sequence[SlotTxn | None], known: KnownCluster | None, round_: SlotRound
    ) -> dict[SlotTxn, list[TopicPartition]]:
        """Return the partitions to add to the transaction of each slot while Spark starts the tasks.

        That spares a far target's tasks a round trip. As they do, it leaves out partitions that could not take a marker.
        `txns`: prepared, by slot.
        """
        additions: dict[SlotTxn, set[TopicPartition]] = {}
        # Near the target the tasks' own requests take no time, and old metadata may name leaders that are gone.
        if known is None or not known.is_new or not self._is_target_far():
            return {}
        held = self._performer.availability.held_partitions()
        for planned in self._planned_ranges():
            source = planned.source
            txn = txns[planned.slot] if 0 <= planned.slot < len(txns) else None
            route = self._targets.routes.get(source.topic)
            # A partition with preserved offsets is part of no transaction.
            if txn is None or route is None or route.is_preserved or source in round_.left_out:
                continue
            target = route.target_of(source).topic_partition
            # EndTxn writes a marker to every partition that was added: also to one of which everything is copied already.
            if round_.positions.get(source, planned.end) >= planned.end or target in held:
                continue
            if known.metadata.is_in_sync(target):
                additions.setdefault(txn, set()).add(target)
        return {txn: sorted(targets) for txn, targets in additions.items()}

    def with_copied(self, rows: Sequence[DecidedSegment], deadline: Deadline) -> tuple[DecidedSegment, ...]:
        """Return rows of expired offsets. Records of an earlier run that a log with preserved offsets holds count as copied."""
        if self._held is None:
            return tuple(rows)
        return self._held.replace_expired(rows, self._shared_producers(), deadline)

    def _shared_producers(self) -> dict[SourcePartition, int]:
        """Return the producer id of each partition with preserved offsets, in target topics as they are now.

        A former one of the same name was written with another: a broker that does not know it has forgotten nothing.
        """
        return {
            source: position.shared_producer_id
            for source, position in self._owner.positions().items()
            if position.shared_producer_id is not None
            and (route := self._targets.routes.get(source.topic)) is not None
            and route.is_preserved
            and route.target_topic_id == position.target.topic_id
        }

    def _is_all_preserved(self) -> bool:
        """Return whether all that tasks write is visible without a decision, so that they may read beyond their plan."""
        return bool(self._targets.routes) and all(route.is_preserved for route in self._targets.routes.values())

    def _run_slots(self, run_slots: RunSlots, decision: int) -> tuple[SlotResult, ...]:
        try:
            results = run_slots(decision)
        # Whatever ended the tasks, requests of them may still be on their way.
        except BaseException:
            self._unclean_at = self._clock()
            raise
        if any(result.has_unanswered for result in results):
            self._unclean_at = self._clock()
        return results

    def run_round(
        self,
        first_rows: Sequence[DecidedSegment],
        run_slots: RunSlots,
        deadline: Deadline,
        on_step: Callable[[str, float], None],
    ) -> MicroBatchOutcome:
        """Run the protocol of a micro-batch (`protocol/actions.py`). A step is an action of it."""

        def perform(action: actions.Action) -> Any:
            began, name = self._clock(), type(action).__name__
            with self.watch.doing(name):
                answer = self._perform(action, run_slots, deadline)
            on_step(name, (self._clock() - began) * 1000)
            return answer

        outcome = actions.drive(actions.run_micro_batch(first_rows), perform, self._observer)
        self._prepare_next_round(outcome, deadline)
        return outcome

    def _prepare_next_round(self, outcome: MicroBatchOutcome, deadline: Deadline) -> None:
        """Ask the target ahead for the next round of the same slots: all of this round is visible, and none of it open."""
        # Nothing of the ids may be unsettled; and without rows no transaction shows which ids the next round uses.
        if not outcome.rows or outcome.not_committed or not self._performer.availability.is_complete:
            return
        written = [row for row in outcome.rows if row.txn is not None]
        self._recent.append(
            _Used(
                frozenset(row.txn.transactional_id for row in written if row.txn is not None),
                frozenset(row.segment.target.topic for row in written),
                frozenset(row.segment.source.topic for row in written),
            )
        )
        self._performer.next_round.begin(
            sorted(filter(self._performer.availability.is_usable, frozenset().union(*(used.names for used in self._recent)))),
            sorted(frozenset().union(*(used.topics for used in self._recent))),
            sorted(frozenset().union(*(used.source_topics for used in self._recent))),
            deadline,
        )

    def _perform(self, action: actions.Action, run_slots: RunSlots, deadline: Deadline) -> Any:
        match action:
            case actions.RunSlots(decision):
                began = self._clock()
                results = self._run_slots(run_slots, decision)
                txns = [result.txn for result in results if result.txn is not None]
                # The answers to additions that were sent ahead: a task does not wait for them, the decision does.
                self._require_added(txns, deadline)
                if self._guard is not None and txns:
                    self._guard.require(deadline, is_begun_enough=self._prepared.issuperset(txns))
                self._stable_ends = _new_stable_ends(results, (self._clock() - began) * 1000)
                # Here and not after the round: whether the target is far matters already for the next action.
                # Each task has measured the paths it used, and of several measurements of a path any will do. A path that no task
                # used this time is forgotten and measured anew: it may have changed.
                self._source_speeds = functools.reduce(operator.or_, (result.source_speeds for result in results), _NOT_MEASURED)
                self._target_speeds = functools.reduce(operator.or_, (result.target_speeds for result in results), _NOT_MEASURED)
                return results
            case actions.RefuseHangingTxns(decided):
                # The slots have asked already, while their last batches were on their way. That is older than asking now, so it
                # counts only where it spares a long round trip.
                if self._is_target_far() and is_nothing_hanging(decided, self._stable_ends):
                    return None
                try:
                    return self._performer.perform(action, deadline)
                except RetriableError as error:
                    self._withdraw(decided, error, deadline)
                    raise RoundRepeatedError(str(error)) from error
            case actions.Decide(_, rows):
                # The map keeps the highest number that was ever used: a start initialises, and so fences, all ids up to it.
                slots = [int(row.txn.transactional_id.rpartition("-")[2]) for row in rows if row.txn is not None]
                self._require_decidable(rows, deadline)
                self._delete_leading_fillers(rows, deadline)
                return self._owner.decide(rows, highest_slot=max(slots, default=-1))
            case _:
                return self._performer.perform(action, deadline)

    def _require_decidable(self, rows: Sequence[DecidedSegment], deadline: Deadline) -> None:
        """Raise as `refuse_rows`, after the transactions of the round are aborted."""
        try:
            self._refuse_rows(rows, deadline)
        except ConfigError:
            self.abandon(deadline)
            raise

    def _require_added(self, txns: Sequence[SlotTxn], deadline: Deadline) -> None:
        """Raise RoundRepeatedError if a topic that was added to a transaction is not there: a task leaves it out."""
        try:
            self._performer.next_round.require_added(txns, deadline)
        except RetriableError as error:
            if not self._job.leaves_out or error.error_name != _UNKNOWN_TOPIC:
                raise
            raise RoundRepeatedError(str(error)) from error

    def _is_target_far(self) -> bool:
        return any(speed.is_far for speed in self._target_speeds.sending.values())

    def _delete_leading_fillers(self, rows: Sequence[DecidedSegment], deadline: Deadline) -> None:
        """Let the logs of partitions with preserved offsets begin at the log start of the source, with their first records.

        Before the decision that names the records: after it, no other run would do it. The position is no such begin: earlier
        decisions may have accounted for offsets without a record.
        """
        positions = self._owner.positions()
        starts = {
            row.segment.target: positions[row.segment.source].start
            for row in rows
            if row.shared_producer_id is not None and row.segment.kind is SegmentKind.DATA and row.segment.source in positions
        }
        # Nothing is in front of the first records of a log from offset 0. Earlier decisions have done it in logs with records,
        # which those of former target topics of the same names are not.
        written = {position.target for position in positions.values() if position.target_end > 0 or position.start == 0}
        # Brokers refuse it of compacted topics, where compaction removes the fillers: they have one key.
        compacted = {route.target_topic for route in self._targets.routes.values() if route.is_compacted}
        leading = {
            target.topic_partition: offset
            for target, offset in starts.items()
            if target not in written and target.topic not in compacted
        }
        if leading:
            delete_records(self._performer.target, leading, deadline)

    def _withdraw(self, decided: Sequence[DecidedTxn], error: RetriableError, deadline: Deadline) -> None:
        """Abort the undecided transactions if a target partition does not answer about them: others need not wait for it.

        A start of the query would do the same, but it takes many times as long. Raises `error` if every partition of these
        transactions answers now: then it is not one that the next round would leave out.
        """
        if not self._job.leaves_out or type(error) is not RetriableError or error.error_name in _DEFINITE_OF_TRANSACTIONS:
            raise error
        # Before ids are fenced: a run that has taken over the map would lose its transactions.
        self._owner.check_ownership()
        names = tuple(decided_txn.txn.transactional_id for decided_txn in decided)
        for name in names:
            # Aborts what is open under the id, and fences requests of its task that are still on their way.
            self._performer.perform(actions.InitProducerId(name), deadline)
        partitions = tuple(sorted({written.topic_partition for decided_txn in decided for written in decided_txn.written}))
        self._performer.perform(actions.AbortHangingTxns(names, partitions), deadline)
        is_held = not self._performer.availability.held_partitions().keys().isdisjoint(partitions)
        if not is_held and error.error_name != _UNKNOWN_TOPIC:  # a task leaves out a topic that is gone
            raise error
        _log.warning(
            "%d slot transactions are aborted and copied again without partitions that do not respond: %s", len(names), error
        )

    def can_avoid(self, error: MirrorError) -> bool:
        """Note a transactional id whose last transaction does not complete: the next round takes another one for its slot."""
        if not isinstance(error, TransactionBlockedError):
            return False
        self._performer.availability.block(error)
        return True

    def abandon(self, deadline: Deadline) -> None:
        """Abort open transactions of slots: readers of the target should not wait for the transaction timeout.

        Nothing is decided yet and everything before is settled, so no transaction is lost by it.
        """
        try:
            for number in self._slot_numbers():
                name = transactional_id(self._job.mirror, number)
                self._performer.perform(actions.InitProducerId(name), deadline.sooner(_ABORT_PATIENCE_MS))
        except MirrorError as error:
            _log.warning("open transactions on the target end by their timeout: %s", error)

    def _slot_numbers(self) -> tuple[int, ...]:
        """Return the number in the transactional id of each slot: ids whose last transaction does not complete are passed over.

        Raises RetriableError if too few are left.
        """
        numbers = [
            number
            for number in range(id_count(self._slots))
            if self._performer.availability.is_usable(transactional_id(self._job.mirror, number))
        ]
        if len(numbers) < self._slots:
            blocked = id_count(self._slots) - len(numbers)
            raise RetriableError(
                "NO_TRANSACTIONAL_ID",
                f"{blocked} transactional ids wait for target partitions that do not accept markers of their last transactions",
            )
        return tuple(numbers[: self._slots])


def _new_stable_ends(results: Sequence[SlotResult], all_slots_ms: float) -> dict[TopicPartition, int]:
    """Return the last stable offsets of the slots that ended a moment ago, while others still ran."""
    return {
        topic_partition: end
        for result in results
        if all_slots_ms - result.duration_ms <= STABLE_FOR_MS
        for topic_partition, end in result.stable_ends.items()
    }
