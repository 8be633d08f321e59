"""Driver: performs the protocol's actions on the offset map and the target cluster, and gathers the evidence it asks for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

from shallow_mirror.broker.cluster import Cluster
from shallow_mirror.broker.forgotten_markers import abort_forgotten, open_places, write_markers
from shallow_mirror.broker.txn import EndTxnAnswer, end_txn, init_producer_id
from shallow_mirror.checkpoints.offset_map_owner import OffsetMapOwner
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError, Retriable
from shallow_mirror.sinks import protocol
from shallow_mirror.sinks.evidence import look_at_logs, look_at_receipt, lost_ranges, refuse_foreign_receipts, refuse_forgotten
from shallow_mirror.sinks.resolve import DecidedTxn, ReceiptEvidence, TxnFate, WrittenRange
from shallow_mirror.sinks.slot_names import transactional_ids
from shallow_mirror.sinks.slot_task import Observer, observe_nothing
from shallow_mirror.types import IsolationLevel, SlotTxn

_log = logging.getLogger(__name__)

SETTLE_PATIENCE_MS = 1_000
"""How long markers may take before the target is asked whether our transaction is still open there."""

LOSS_PATIENCE_MS = 30_000
"""How long records must be missing from the target before they count as lost: a broker that starts, and a leader whose followers
are away, say less than there is."""

PENDING_PATIENCE_MS = 5_000
"""How long a receipt may stay pending before its marker counts as forgotten."""

_POLL_MS = (2, 5, 10, 20, 50, 100)

_Outcome = TypeVar("_Outcome")


class TxnPerformer:
    """Carries out every action but `RunSlots` and `Decide`, which belong to a micro-batch.

    Every action may be carried out again after a crash: each is idempotent or fenced.
    """

    def __init__(
        self,
        owner: OffsetMapOwner,
        target: Cluster,
        *,
        transaction_timeout_ms: int,
        observer: Observer = observe_nothing,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._owner, self._target = owner, target
        self._transaction_timeout_ms = transaction_timeout_ms
        self._observer, self._clock, self._sleep = observer, clock, sleep
        self._fenced: dict[str, SlotTxn] = {}

    def perform(self, action: protocol.Action, deadline: Deadline) -> Any:
        match action:
            case protocol.TakeDecision():
                self._owner.check_ownership()
                return self._owner.next_decision()
            case protocol.RefuseForgotten(decided):
                return refuse_forgotten(self._target, decided, deadline)
            case protocol.EndTxn(txn):
                return end_txn(self._target, txn, True, deadline) is EndTxnAnswer.ENDED
            case protocol.AwaitVisible(decided):
                return self._await_visible(decided, deadline)
            case protocol.InitProducerId(name):
                self._fenced[name] = init_producer_id(self._target, name, self._transaction_timeout_ms, deadline)
                return None
            case protocol.AbortForgotten(names, places):
                if places is None:
                    places = tuple({one.target.topic_partition for one in self._owner.positions().values()})
                fenced = [self._fenced[name] for name in names]
                return abort_forgotten(self._target, fenced, places, self._transaction_timeout_ms, deadline)
            case protocol.ReadReceipt(decided):
                return self._receipt_evidence(decided, deadline)
            case protocol.ReadTargetLog(decided):
                return look_at_logs(self._target, decided.txn, decided.written, deadline, self._pause)
            case protocol.Settle(removals):
                return self._owner.settle(removals)
            case protocol.CheckOwnership():
                return self._owner.check_ownership()
            case protocol.ReportFate(txn, fate):
                _log.warning(
                    "recovery: slot txn %s: %s",
                    txn,
                    "removed, will be read again" if fate is TxnFate.NOT_COMMITTED else fate.value,
                )
                return None
        raise AssertionError(f"not an action of this performer: {action}")

    def run(self, steps: Generator[protocol.Action, Any, _Outcome], deadline: Deadline) -> _Outcome:
        """The short loop: perform, answer, until the protocol returns."""
        return protocol.drive(steps, lambda action: self.perform(action, deadline), self._observer)

    def refuse_foreign_receipts(self, names: Sequence[str], deadline: Deadline) -> None:
        """Before the first of them is fenced: a mirror that another offset map belongs to goes on undisturbed."""
        refuse_foreign_receipts(self._target, names, self._owner.map_id, deadline)

    def _await_visible(self, decided: DecidedTxn, deadline: Deadline) -> protocol.Visibility:
        """EndTxn's 0 is not the end: wait until readers can see all of it, and write markers again that never came."""
        waiting, polls = self._still_hidden(decided.written, deadline), 0
        patience = deadline.sooner(SETTLE_PATIENCE_MS)
        suspected: tuple[WrittenRange, ...] = ()
        was_repaired = False
        while waiting:
            deadline.require(f"the last stable offset of {waiting[0].topic_partition} to pass {waiting[0].end}")
            if patience.is_over():
                was_repaired |= self._repair_if_open(decided, waiting, deadline)
                lost = lost_ranges(self._target, waiting, deadline)
                if lost != suspected:
                    suspected, loss_patience = lost, deadline.sooner(LOSS_PATIENCE_MS)
                elif lost == waiting and loss_patience.is_over():
                    return protocol.Visibility(lost, was_repaired)
                patience = deadline.sooner(SETTLE_PATIENCE_MS)
            self._pause(polls)
            polls += 1
            waiting = self._still_hidden(waiting, deadline)
        return protocol.Visibility(was_repaired=was_repaired)

    def _still_hidden(self, written: tuple[WrittenRange, ...], deadline: Deadline) -> tuple[WrittenRange, ...]:
        """Those that the last stable offset has not passed. A topic without a leader, or without existence, hides all."""
        latest = {one.topic_partition: -1 for one in written}
        try:
            stable = self._target.list_offsets(latest, IsolationLevel.READ_COMMITTED, deadline.sooner(SETTLE_PATIENCE_MS))
        except Retriable as error:
            _log.info("settling: %s", error)
            return written
        return tuple(one for one in written if stable[one.topic_partition].offset < one.end)

    def _pause(self, polls: int) -> None:
        self._sleep(_POLL_MS[min(polls, len(_POLL_MS) - 1)] / 1000)

    def _receipt_evidence(self, decided: DecidedTxn, deadline: Deadline) -> ReceiptEvidence:
        """A pending receipt belongs to a transaction that was only just ended: fence again and look again, for a while."""
        patience = deadline.sooner(PENDING_PATIENCE_MS)
        while (found := look_at_receipt(self._target, decided, self._owner.map_id, deadline)) is ReceiptEvidence.PENDING:
            if patience.is_over():
                break
            init_producer_id(self._target, decided.txn.transactional_id, self._transaction_timeout_ms, deadline)
            self._pause(len(_POLL_MS))
        return found

    def _repair_if_open(self, decided: DecidedTxn, waiting: tuple[WrittenRange, ...], deadline: Deadline) -> bool:
        """An empty commit over the same partitions writes the markers that a killed coordinator forgot.

        Somebody else's open transaction may hold the LSO as well: then there is nothing to repair, only to wait.
        """
        if not open_places(self._target, {decided.txn.producer_id}, [one.topic_partition for one in waiting], deadline):
            return False
        _log.warning("recovery: %s was committed but its markers are missing: writing them with an empty commit", decided.txn)
        places = [one.topic_partition for one in decided.written]
        write_markers(self._target, decided.txn.transactional_id, places, True, self._transaction_timeout_ms, deadline)
        return True


def recover(
    owner: OffsetMapOwner,
    performer: TxnPerformer,
    *,
    mirror: str,
    deadline: Deadline,
    choices: protocol.Choices = protocol.NO_CHOICES,
) -> None:
    """A start after the take-over: resolve what the last run decided, fence all slots it may have used, settle.

    Raises RecoverNeeded, and what actions raise; may be called again after any error.
    """
    unsettled = owner.unsettled()
    if not unsettled:
        _log.info("recovery: nothing to resolve")
    names = transactional_ids(mirror, owner.highest_slot + 1)
    performer.refuse_foreign_receipts(names, deadline)
    removed = performer.run(protocol.start_up(unsettled, names, choices), deadline)
    if removed:
        _log.warning("recovery: %d slot transactions were not committed; their ranges are read again", len(removed))


def most_telling(errors: list[MirrorError]) -> MirrorError:
    """Of several slots' errors the one a person must act on: definite before retriable."""
    return next((error for error in errors if not isinstance(error, Retriable)), errors[0])
