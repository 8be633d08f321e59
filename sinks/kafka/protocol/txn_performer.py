"""Driver: the protocol's actions, performed on the offset map and the target cluster."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from shallow_mirror.broker import Cluster, CoordinatorKind
from shallow_mirror.broker.admin import (
    OpenTxn,
    ProducersOfMap,
    abort_hanging,
    blocking_producers,
    open_partitions,
    open_transactions,
    write_markers,
)
from shallow_mirror.broker.cluster import listed_partitions
from shallow_mirror.broker.net import BegunCall
from shallow_mirror.broker.produce.txn import (
    BegunRequest,
    EndTxnAnswer,
    begin_end_txn,
    begin_init_producer_id,
    blocked_txn,
    end_txn,
    init_producer_id,
)
from shallow_mirror.checkpoints.ledger import LedgerOwner
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import OlderTablesError, RetriableError, TransactionBlockedError
from shallow_mirror.plurals import counted
from shallow_mirror.sinks.base import Observer, observe_nothing
from shallow_mirror.sinks.kafka.protocol import actions
from shallow_mirror.sinks.kafka.protocol.next_round import NextRound
from shallow_mirror.sinks.kafka.protocol.run_guard import RunGuard
from shallow_mirror.sinks.kafka.protocol.target_availability import TargetAvailability
from shallow_mirror.sinks.kafka.protocol.txn_inspection import (
    READ_PATIENCE_MS,
    gone_ranges,
    inspect_logs,
    inspect_receipt,
    lost_ranges,
    readable_ends,
    refuse_hanging,
    require_known_receipts,
)
from shallow_mirror.sinks.kafka.protocol.txn_outcome import DecidedTxn, ReceiptEvidence, TxnFate, WrittenRange
from shallow_mirror.sinks.kafka.targets.txn_ids import transactional_ids
from shallow_mirror.types import IsolationLevel, SlotTxn, TopicPartition

_log = logging.getLogger(__name__)

SETTLE_PATIENCE_MS = 1_000
"""How long markers may take before the target is asked whether our transaction is still open there."""

LOSS_PATIENCE_MS = 30_000
"""How long records must be missing from the target before they count as lost: a broker that starts, and a leader whose followers
are away, report lower log ends than there are."""

LEADER_PATIENCE_MS = 5_000
"""How long a target partition may have no leader, or too few in-sync replicas, before the others continue without it."""

PENDING_PATIENCE_MS = 5_000
"""How long receipts may stay pending, after the transactions of a decision were ended, before their markers count as forgotten.

For all of them together: a coordinator that was killed forgets those of every slot, and a start that waited for one after the
other would end at its deadline, again and again.
"""

POLLS_AHEAD_MS = (5, 5, 10, 20, 40, 80)
"""Pauses before last stable offsets are asked for while EndTxn is not answered: near, it is answered before the first one is."""

_POLL_MS = (2, 5, 10, 20, 50, 100)

_Outcome = TypeVar("_Outcome")


class TxnPerformer:
    """Performer of every action but `RunSlots` and `Decide`, which belong to a micro-batch.

    Every action may be performed again after a crash: each is idempotent or fenced. `availability` names the
    partitions and coordinators of the target that cannot be used now; `recheck_unavailable` checks them again.
    """

    def __init__(
        self,
        owner: LedgerOwner,
        target: Cluster,
        *,
        transaction_timeout_ms: int,
        observer: Observer = observe_nothing,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        availability: TargetAvailability | None = None,
        source: Cluster | None = None,
    ) -> None:
        """`source`: cluster that the tasks of `next_round` read; None if they read none."""
        self._owner, self._target = owner, target
        self._transaction_timeout_ms = transaction_timeout_ms
        self._observer = observer
        self._clock = clock
        self._sleep = sleep
        self.availability = TargetAvailability() if availability is None else availability
        self.next_round = NextRound(
            target, self.availability, transaction_timeout_ms=transaction_timeout_ms, clock=clock, source=source
        )
        self._receipts_patience: Deadline | None = None
        """Begins with the first pending receipt after an EndTxn."""
        self._begun_ends: dict[SlotTxn, BegunRequest] = {}
        self._begun_epochs: dict[str, BegunRequest] = {}
        self._stable: dict[TopicPartition, int] = {}
        """Last stable offsets as they were after the last EndTxn."""
        self._polls: list[BegunCall[dict[TopicPartition, int]]] = []
        """Requests for last stable offsets that were sent before EndTxn was answered."""

    @property
    def target(self) -> Cluster:
        return self._target

    def perform(self, action: actions.Action, deadline: Deadline) -> Any:
        match action:
            case actions.TakeDecision():
                self._owner.check_ownership()
                return self._owner.next_decision()
            case actions.RefuseHangingTxns(decided):
                own_producer_ids = {txn.producer_id for txn in self.availability.fenced.values()}
                return refuse_hanging(self._target, decided, own_producer_ids, deadline.sooner(LEADER_PATIENCE_MS))
            case actions.EndTxn(txn, together, written):
                self._receipts_patience = None
                return self._end(txn, together, written, deadline)
            case actions.AwaitVisible(decided, together):
                visibility = self._await_visible(decided, together, deadline)
                if visibility.pending:
                    self.availability.pending[decided.txn] = visibility.pending
                return visibility
            case actions.InitProducerId(name, together):
                return self._init_producer_id(name, deadline, together)
            case actions.AbortHangingTxns(names, partitions):
                return self._abort_hanging(names, partitions, deadline, named=self._owner.finished_producer_ids)
            case actions.ReadReceipt(decided):
                return self._receipt_evidence(decided, deadline)
            case actions.ReadTargetLog(decided):
                return inspect_logs(self._target, decided.txn, decided.written, deadline, self._pause)
            case actions.Settle(removals, pending, confirmed):
                self._owner.settle(removals, pending, confirmed)
                for txn in confirmed:
                    self.availability.pending.pop(txn, None)
                return None
            case actions.CheckOwnership():
                return self._owner.check_ownership()
            case actions.ReportFate(txn, fate):
                _log.warning(
                    "recovery: slot txn %s: %s",
                    txn,
                    "removed, will be read again" if fate is TxnFate.NOT_COMMITTED else fate.value,
                )
                return None
        raise AssertionError(f"not an action of this performer: {action}")

    def run(self, steps: Generator[actions.Action, Any, _Outcome], deadline: Deadline) -> _Outcome:
        """Perform the actions of a protocol until it returns."""
        return actions.drive(steps, lambda action: self.perform(action, deadline), self._observer)

    def require_known_receipts(self, names: Sequence[str], deadline: Deadline) -> None:
        """Raise OlderTablesError if receipts are newer than the offset map, ConfigError if they are of another one.

        Raises FencedError if another run has taken over these tables.
        """
        try:
            owner = self._owner
            require_known_receipts(self._target, names, owner.map_id, owner.recorded(), owner.run_id_of, deadline)
        except OlderTablesError:
            # The other run may have decided since this one read the tables: only what this run knows of them is older then.
            self._owner.check_ownership()
            raise

    def require_visible(self) -> None:
        """Raise RetriableError if a decided transaction is not visible in all of its partitions yet."""
        if self.availability.pending:
            ranges = next(iter(self.availability.pending.values()))
            name = ranges[0].topic_partition
            raise RetriableError("MARKER_PENDING", f"target {name}: {self.availability.held_partitions()[name]}")

    def recheck_unavailable(self, deadline: Deadline) -> tuple[SlotTxn, ...]:
        """Check whether unavailable parts of the target can be used again. Returns transactions whose rows were removed.

        Raises RetriableError, OutcomeUnknownError; earlier results count.
        """
        for name in [name for name in self.availability.blocked if blocked_txn(self._target, name, deadline) is None]:
            self._init_producer_id(name, deadline)
            self.require_known_receipts([name], deadline)  # at the start the markers of its last transaction were missing
        removed = self._confirm_pending(deadline)
        # What was deleted holds nothing open.
        self.availability.unchecked &= frozenset(listed_partitions(self._target, self.availability.unchecked, deadline))
        # Micro-batches wait for this look: nothing is asked of partitions that are still without a leader.
        readable = readable_ends(self._target, sorted(self.availability.unchecked), deadline)
        if readable:
            # A partition with a pending transaction comes last: what is open there is to be committed, not aborted.
            self._abort_hanging(tuple(self.availability.fenced), tuple(readable), deadline)
        return removed

    def _confirm_pending(self, deadline: Deadline) -> tuple[SlotTxn, ...]:
        complete = [txn for txn, ranges in self.availability.pending.items() if self._is_complete(txn, ranges, deadline)]
        if not complete:
            return ()
        rows = [row for row in self._owner.pending_rows() if row.txn in complete]
        return self.run(actions.confirm_pending(rows), deadline)

    def _is_complete(self, txn: SlotTxn, ranges: Sequence[WrittenRange], deadline: Deadline) -> bool:
        """Return whether all partitions have leaders and markers, and readers wait for no other producer's transaction alone."""
        gone = gone_ranges(self._target, ranges, deadline)
        left = [written for written in ranges if written not in gone]
        partitions = sorted({written.topic_partition for written in left})
        stable = readable_ends(self._target, partitions, deadline)
        if len(stable) < len(partitions) or blocked_txn(self._target, txn.transactional_id, deadline) is not None:
            return False
        waiting = {written.topic_partition for written in self._not_in(stable, left)}
        transactions = open_transactions(self._target, sorted(waiting), deadline)
        blockers = blocking_producers(self._target, transactions, txn.producer_id, self._own_ids())
        self.availability.note_blockers(partitions, blockers)
        return not waiting or blockers.keys() != waiting

    def _init_producer_id(self, name: str, deadline: Deadline, together: Sequence[str] = ()) -> bool:
        """Fence an id. Return False if its last transaction cannot complete: its fate is durable, the id cannot be used."""
        self.next_round.forget(name, deadline)
        self.availability.fenced.pop(name, None)
        timeout_ms, begun = self._transaction_timeout_ms, self._begun_epochs.pop(name, None)
        if begun is None and len(together) > 1:
            self._target.find_coordinators(CoordinatorKind.TXN, together, deadline)
            self._begun_epochs = {other: begin_init_producer_id(self._target, other, timeout_ms, deadline) for other in together}
            begun = self._begun_epochs.pop(name)
        try:
            self.availability.fenced[name] = init_producer_id(self._target, name, timeout_ms, deadline, begun=begun)
        except TransactionBlockedError as blocked:
            self.availability.block(blocked)
            return False
        if self.availability.blocked.pop(name, None) is not None:
            _log.info("transactional id %s can be used again", name)
        return True

    def _abort_hanging(
        self,
        names: Sequence[str],
        partitions: Collection[TopicPartition] | None,
        deadline: Deadline,
        *,
        named: ProducersOfMap | None = None,
    ) -> None:
        """Abort open transactions in the partitions that can be read; the others are held until they have been checked.

        `named` only right after InitProducerId of `names`: later a slot may have got another producer id.
        """
        for name in names:
            self.next_round.forget(name, deadline)  # an abort that is written again takes a new producer epoch
        if partitions is None:
            partitions = {position.target.topic_partition for position in self._owner.positions().values()}
        listed = self._target.metadata(sorted({partition.topic for partition in partitions}), deadline)
        existing = {partition for partition in partitions if listed.has(partition)}  # what was deleted holds nothing open
        ends = readable_ends(self._target, sorted(existing), deadline, is_patient=True)
        readable = ends.keys() - self.availability.pending_partitions()
        # The last transaction of a blocked id ends without us: its markers are being written.
        fenced = [self.availability.fenced[name] for name in names if name in self.availability.fenced]
        abort_hanging(self._target, fenced, sorted(readable), self._transaction_timeout_ms, deadline, named=named)
        self.availability.unchecked = (self.availability.unchecked | existing) - readable

    def _end(self, txn: SlotTxn, together: Sequence[SlotTxn], written: Sequence[TopicPartition], deadline: Deadline) -> bool:
        """Commit a transaction; the requests for those that are ended next are sent with the first one: one round trip."""
        begun = self._begun_ends.pop(txn, None)
        if begun is None:
            self._stable = {}
            self._begun_ends = {
                slot_txn: begin_end_txn(self._target, slot_txn, True, deadline) for slot_txn in together or (txn,)
            }
            begun = self._begun_ends.pop(txn)
            self._polls = self._begin_polls(begun, written, deadline)
        return end_txn(self._target, txn, True, deadline, begun=begun) is not EndTxnAnswer.AMBIGUOUS

    def _begin_polls(
        self, begun: BegunRequest, written: Sequence[TopicPartition], deadline: Deadline
    ) -> list[BegunCall[dict[TopicPartition, int]]]:
        """Ask for last stable offsets while EndTxn is on its way, in case its answer takes long: markers come before the answer.

        An answer counts only if EndTxn has committed.
        """
        polls: list[BegunCall[dict[TopicPartition, int]]] = []
        try:
            for pause_ms in POLLS_AHEAD_MS if written else ():
                if begun.wait(pause_ms):
                    break
                polls += self._target.begin_latest_offsets(written, IsolationLevel.READ_COMMITTED, deadline)
        except RetriableError as error:
            _log.debug("last stable offsets are asked for after EndTxn: %s", error)
        return polls

    def _finish_polls(self, waiting: Sequence[WrittenRange], deadline: Deadline) -> None:
        """Take the answers of `_begin_polls`, until everything is visible. The caller repeats failed ones."""
        while self._polls and self._not_in(self._stable, waiting):
            try:
                self._stable |= self._polls.pop(0).receive(deadline.sooner(READ_PATIENCE_MS))
            except RetriableError as error:
                _log.debug("last stable offsets are asked for after EndTxn: %s", error)

    def _await_visible(self, decided: DecidedTxn, together: Sequence[DecidedTxn], deadline: Deadline) -> actions.Visibility:
        """Wait until readers see all that a committed transaction wrote. Write markers again that never came.

        Partitions without a leader, with too few in-sync replicas, or with an open transaction of another producer are not waited
        for longer than LEADER_PATIENCE_MS.
        """
        ranges = [written for decided_txn in together or (decided,) for written in decided_txn.written]
        self._finish_polls(ranges, deadline)
        if self._not_in(self._stable, decided.written):
            self._stable = readable_ends(self._target, sorted({written.topic_partition for written in ranges}), deadline)
        # Five clocks. `deadline` is that of the round, and the only one whose end raises; each look at log ends has at most
        # READ_PATIENCE_MS of it. The other three say how long to wait before something is done, and begin at different moments:
        #   patience         SETTLE_PATIENCE_MS  begins here and after each check: how often the expensive requests are sent
        #   leader_patience  LEADER_PATIENCE_MS  begins here: the other partitions continue without those that accept no marker
        #   loss_patience    LOSS_PATIENCE_MS    begins when these ranges look lost for the first time: then they count as lost
        # The last stable offset never goes back: what it has passed once is visible.
        waiting, polls = self._not_in(self._stable, decided.written), 0
        patience = deadline.sooner(SETTLE_PATIENCE_MS)
        # Slots are checked one after the other: a broker that the first has waited for is not waited for again.
        leader_patience = deadline.sooner(0 if self.availability.pending else LEADER_PATIENCE_MS)
        suspected: tuple[WrittenRange, ...] = ()
        was_repaired = False
        blockers: Mapping[TopicPartition, str] = {}
        while waiting:
            held_back = "".join(f"; {text}" for text in blockers.values())
            deadline.require(f"the last stable offset of {waiting[0].topic_partition} to pass {waiting[0].end}{held_back}")
            # Markers come a moment after EndTxn's answer: only what takes longer is worth the requests below.
            if patience.is_over():
                unavailable = self._unavailable(decided.txn, waiting, deadline)
                # Requests to a partition without a leader are retried until the deadline: the others would wait for it.
                readable = [written.topic_partition for written in waiting if written not in unavailable]
                if readable:
                    # One request shows both whether own markers are missing and who else holds back the last stable offset.
                    transactions = open_transactions(self._target, readable, deadline)
                    was_repaired |= self._repair(decided, transactions, deadline)
                    own_ids = self._own_ids(each.txn for each in together)
                    blockers = blocking_producers(self._target, transactions, decided.txn.producer_id, own_ids)
                # A broker that starts, and a leader whose followers are away, report lower log ends than there are: records
                # count as lost once they are missing in two checks that far apart.
                gone = gone_ranges(self._target, waiting, deadline)
                waiting = tuple(written for written in waiting if written not in gone)
                unavailable = tuple(written for written in unavailable if written not in gone)
                if gone:
                    _log.warning(
                        "%s: the target topic of %s is gone, and what was written to it", decided.txn, ", ".join(map(str, gone))
                    )
                if not waiting:
                    break
                lost = lost_ranges(self._target, waiting, deadline)
                # Another result than before begins the wait anew: the target is still changing.
                if lost != suspected:
                    suspected, loss_patience = lost, deadline.sooner(LOSS_PATIENCE_MS)
                elif lost == waiting and loss_patience.is_over():
                    return actions.Visibility(lost, was_repaired)
                # The commit is durable, so the others need not wait for a partition that cannot accept its marker, nor for one
                # whose readers wait for another producer's transaction.
                is_held = all(written in unavailable or written.topic_partition in blockers for written in waiting)
                if is_held and not lost and leader_patience.is_over():
                    self.availability.note_blockers([written.topic_partition for written in waiting], blockers)
                    return actions.Visibility((), was_repaired, waiting)
                patience = deadline.sooner(SETTLE_PATIENCE_MS)
            self._pause(polls)
            polls += 1
            # Ranges whose partition has no leader or is gone stay, as those that the last stable offset has not passed.
            waiting = self._not_in(
                readable_ends(self._target, [written.topic_partition for written in waiting], deadline), waiting
            )
        return actions.Visibility(was_repaired=was_repaired)

    def _own_ids(self, ended: Iterable[SlotTxn] = ()) -> dict[int, str]:
        """Return transactional ids of this run by producer id. `ended`: transactions that are ended together."""
        txns = (*self.availability.fenced.values(), *self.availability.pending, *ended)
        return {txn.producer_id: txn.transactional_id for txn in txns}

    def _unavailable(self, txn: SlotTxn, waiting: tuple[WrittenRange, ...], deadline: Deadline) -> tuple[WrittenRange, ...]:
        """Return the ranges whose partitions do not accept the marker: all while the coordinator still writes markers."""
        blocked = blocked_txn(self._target, txn.transactional_id, deadline)
        if blocked is not None and blocked.producer_id == txn.producer_id:
            return waiting
        partitions = [written.topic_partition for written in waiting]
        readable = readable_ends(self._target, partitions, deadline)
        return tuple(written for written in waiting if written.topic_partition not in readable)

    @staticmethod
    def _not_in(stable: Mapping[TopicPartition, int], written: Sequence[WrittenRange]) -> tuple[WrittenRange, ...]:
        return tuple(
            written_range for written_range in written if stable.get(written_range.topic_partition, -1) < written_range.end
        )

    def _pause(self, polls: int) -> None:
        self._sleep(_POLL_MS[min(polls, len(_POLL_MS) - 1)] / 1000)

    def _receipt_evidence(self, decided: DecidedTxn, deadline: Deadline) -> ReceiptEvidence:
        """Return the evidence of the receipt. While it is pending, fence and look again, for PENDING_PATIENCE_MS.

        A pending receipt belongs to a transaction that was only just ended, or its marker was forgotten.
        """
        while (evidence := inspect_receipt(self._target, decided, self._owner.map_id, deadline)) is ReceiptEvidence.PENDING:
            if self._receipts_patience is None:
                self._receipts_patience = deadline.sooner(PENDING_PATIENCE_MS)
            if self._receipts_patience.is_over():
                break
            # InitProducerId waits for a transaction that is being completed, and aborts one that is still open.
            self._init_producer_id(decided.txn.transactional_id, deadline)
            self._pause(len(_POLL_MS))
        return evidence

    def _repair(self, decided: DecidedTxn, transactions: Sequence[OpenTxn], deadline: Deadline) -> bool:
        """Write the markers that a killed coordinator forgot, with an empty commit over the same partitions.

        Return False if nothing of the transaction is open: that of another producer holds back the last stable offset.
        """
        partitions = open_partitions(transactions, decided.txn.producer_id)
        if not partitions:
            return False
        _log.warning("recovery: %s was committed but its markers are missing: writing them with an empty commit", decided.txn)
        name = decided.txn.transactional_id
        write_markers(self._target, name, partitions, True, self._transaction_timeout_ms, deadline)
        return True


def recover(
    owner: LedgerOwner,
    performer: TxnPerformer,
    *,
    mirror: str,
    deadline: Deadline,
    choices: actions.Choices = actions.NO_CHOICES,
    guard: RunGuard | None,
) -> None:
    """Resolve the last decision, fence all slots that the last run may have used, and settle. To be called after the take-over.

    `guard`: taken before, against runs with a copy of the tables; None if the caller is sure that there is none (tests).

    Raises OlderTablesError, RecoverNeededError, and errors of actions; may be called again after any error.
    """
    unsettled = owner.unsettled()
    if not unsettled:
        _log.info("recovery: nothing to resolve")
    count = owner.highest_slot + 1
    # Before anything of the target is touched: a run that has the newer tables is not disturbed.
    performer.require_known_receipts(transactional_ids(mirror, count), deadline)
    if guard is not None:
        guard.take(deadline)
        count = guard.slot_count(count, deadline)
    names = transactional_ids(mirror, count)
    removed = performer.run(actions.start_up(unsettled, names, choices), deadline)
    # Again, now that all ids are fenced: nothing that the tables do not name can be committed any more.
    performer.require_known_receipts(names, deadline)
    if removed:
        _log.warning("recovery: not committed: %s; the same ranges are read again", counted(len(removed), "slot transaction"))
