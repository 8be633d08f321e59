"""Driver: performs the protocol's actions on the offset map and the target cluster, and gathers the evidence it asks for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from shallow_mirror.broker.cluster import Cluster
from shallow_mirror.broker.forgotten_markers import abort_forgotten, open_places, write_markers
from shallow_mirror.broker.range_reader import RangeReader, ReadRange
from shallow_mirror.broker.txn import EndTxnAnswer, Receipt, end_txn, init_producer_id, read_receipt
from shallow_mirror.checkpoints.offset_map_owner import OffsetMapOwner
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import DataLoss, MirrorError, Retriable
from shallow_mirror.sinks import protocol
from shallow_mirror.sinks.resolve import DecidedTxn, LogEvidence, ReceiptEvidence, TxnFate, WrittenRange
from shallow_mirror.sinks.slot_task import Observer, observe_nothing, transactional_id
from shallow_mirror.types import IsolationLevel, SlotTxn

_log = logging.getLogger(__name__)

SETTLE_PATIENCE_MS = 1_000
"""How long markers may take before the target is asked whether our transaction is still open there."""

PENDING_PATIENCE_MS = 5_000
"""How long a receipt may stay pending before its marker counts as forgotten."""

_POLL_MS = (2, 5, 10, 20, 50, 100)
_EVIDENCE_FETCH_BYTES = 1 << 20

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
                return tuple(self._log_evidence(decided.txn, one, deadline) for one in decided.written)
            case protocol.RemoveRows(txn):
                return self._owner.remove(txn)
            case protocol.Settle():
                return self._owner.settle()
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

    def _await_visible(self, decided: DecidedTxn, deadline: Deadline) -> None:
        """EndTxn's 0 is not the end: wait until readers can see all of it, and write markers again that never came."""
        waiting = decided.written
        patience = deadline.sooner(SETTLE_PATIENCE_MS)
        polls = 0
        while True:
            listed = self._target.list_offsets(
                {one.topic_partition: -1 for one in waiting}, IsolationLevel.READ_COMMITTED, deadline
            )
            waiting = tuple(one for one in waiting if listed[one.topic_partition].offset < one.end)
            if not waiting:
                return
            deadline.require(f"the last stable offset of {waiting[0].topic_partition} to pass {waiting[0].end}")
            if patience.is_over():
                self._repair_if_open(decided, waiting, deadline)
                patience = deadline.sooner(SETTLE_PATIENCE_MS)
            self._sleep(_POLL_MS[min(polls, len(_POLL_MS) - 1)] / 1000)
            polls += 1

    def _repair_if_open(self, decided: DecidedTxn, waiting: tuple[WrittenRange, ...], deadline: Deadline) -> None:
        """An empty commit over the same partitions writes the markers that a killed coordinator forgot.

        Somebody else's open transaction may hold the LSO as well: then there is nothing to repair, only to wait.
        """
        if not open_places(self._target, {decided.txn.producer_id}, [one.topic_partition for one in waiting], deadline):
            return
        _log.warning("recovery: %s was committed but its markers are missing: writing them with an empty commit", decided.txn)
        places = [one.topic_partition for one in decided.written]
        write_markers(self._target, decided.txn.transactional_id, places, True, self._transaction_timeout_ms, deadline)

    def _receipt_evidence(self, decided: DecidedTxn, deadline: Deadline) -> ReceiptEvidence:
        """88 (a commit is pending): the transaction was only just ended, so fence again and read again, for a while."""
        patience = deadline.sooner(PENDING_PATIENCE_MS)
        while True:
            answer = read_receipt(self._target, decided.txn.transactional_id, decided.receipt_partition, deadline)
            if answer is None:
                return ReceiptEvidence.ABSENT
            if isinstance(answer, Receipt):
                ours = (answer.producer_id, answer.producer_epoch) == (decided.txn.producer_id, decided.txn.producer_epoch)
                return ReceiptEvidence.OURS if ours else ReceiptEvidence.ANOTHERS
            if patience.is_over():
                return ReceiptEvidence.PENDING
            init_producer_id(self._target, decided.txn.transactional_id, self._transaction_timeout_ms, deadline)
            self._sleep(_POLL_MS[-1] / 1000)

    def _log_evidence(self, txn: SlotTxn, written: WrittenRange, deadline: Deadline) -> LogEvidence:
        """Looks at the batch that holds the first recorded offset. Retention and truncation leave no evidence."""
        place = written.topic_partition
        metadata = self._target.metadata([place.topic], deadline).topics.get(place.topic)
        if metadata is None or place.partition not in metadata.partitions:
            return LogEvidence.NOTHING
        ends = self._target.list_offsets({place: -1}, IsolationLevel.READ_UNCOMMITTED, deadline)
        if ends[place].offset <= written.start:  # nothing will ever come: a Fetch would only wait
            return LogEvidence.NOTHING
        polls = 0
        while self._target.list_offsets({place: -1}, IsolationLevel.READ_COMMITTED, deadline)[place].offset <= written.start:
            if open_places(self._target, {txn.producer_id}, [place], deadline):
                return LogEvidence.OPEN
            deadline.require(f"the last stable offset of {place} to pass {written.start}")
            self._sleep(_POLL_MS[min(polls, len(_POLL_MS) - 1)] / 1000)
            polls += 1
        reader = RangeReader(
            self._target,
            [ReadRange(place, metadata.partitions[place.partition].leader_epoch, written.start, written.start + 1, 1.0)],
            isolation=IsolationLevel.READ_COMMITTED,
            fetch_bytes=_EVIDENCE_FETCH_BYTES,
            deadline=deadline,
        )
        try:
            for response in reader:
                for fetched in response:
                    headers = fetched.index.headers
                    holds = (headers["base_offset"] <= written.start) & (fetched.index.last_offset >= written.start)
                    ours = holds & (headers["producer_id"] == txn.producer_id) & (headers["producer_epoch"] == txn.producer_epoch)
                    if not ours.any():
                        continue
                    is_aborted = any(
                        producer_id == txn.producer_id and first_offset <= written.start
                        for producer_id, first_offset in fetched.aborted
                    )
                    return LogEvidence.OURS_ABORTED if is_aborted else LogEvidence.OURS
        except DataLoss:
            return LogEvidence.NOTHING
        return LogEvidence.NOTHING


def recover(owner: OffsetMapOwner, performer: TxnPerformer, *, mirror: str, slots: int, deadline: Deadline) -> None:
    """A start after the take-over: resolve what the last run decided, fence all slots it may have used, settle."""
    unsettled = owner.unsettled()
    if not unsettled:
        _log.info("recovery: nothing to resolve")
    used = max(slots, owner.highest_slot + 1)
    removed = performer.run(protocol.start_up(unsettled, [transactional_id(mirror, slot) for slot in range(used)]), deadline)
    if removed:
        _log.warning("recovery: %d slot transactions were not committed; their ranges are read again", len(removed))


def most_telling(errors: list[MirrorError]) -> MirrorError:
    """Of several slots' errors the one a person must act on: definite before retriable."""
    return next((error for error in errors if not isinstance(error, Retriable)), errors[0])
