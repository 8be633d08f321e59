"""Bugs planted on purpose, each as a context in which the product has it: what broke earlier versions of the protocol.

The search has to find every one of them; otherwise it would not have found the bug either.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from tests.model import slot
from tests.model.driver import PlannedFrame
from tests.model.moves import Delivery, Kind, Move
from tests.model.scenarios import ONE_SLOT, POISON
from tests.model.source import Scenario
from tests.model.target_cluster import Markers

from shallow_mirror.broker.produce.txn import init_producer_id
from shallow_mirror.checkpoints import DecidedSegment, Removal
from shallow_mirror.checkpoints.ledger import LedgerOwner, offset_map_writer
from shallow_mirror.checkpoints.logs import QuarantineEntry
from shallow_mirror.checkpoints.rows.positions import POSITION_COLUMNS, positions_of
from shallow_mirror.checkpoints.tables import Comparison
from shallow_mirror.sinks.kafka import KafkaSink
from shallow_mirror.sinks.kafka.protocol import TxnPerformer, actions, txn_inspection, txn_outcome, txn_performer
from shallow_mirror.sinks.micro_batches import MicroBatchSink
from shallow_mirror.sinks.slot_values import MicroBatchOutcome
from shallow_mirror.types import SlotTxn

FIRST_DECISION_OF_TASKS = 4
"""Of a run that found an empty map: n of its version; the one before decides the first rows."""

Patch = Callable[[pytest.MonkeyPatch], None]


@contextlib.contextmanager
def planted(patch: Patch) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        patch(monkeypatch)
        yield


def skip_the_read_back(patch: pytest.MonkeyPatch) -> None:
    def commit(self: Any, record: Any, write: Callable[[Any], None]) -> None:
        self._highest_version = record.version
        write(self._snapshot())
        self._recorded = record

    patch.setattr(LedgerOwner, "_commit", commit)


def end_before_deciding(patch: pytest.MonkeyPatch) -> None:
    def run_micro_batch(first_rows: Sequence[DecidedSegment]) -> Generator[Any, Any, MicroBatchOutcome]:
        decision = yield actions.TakeDecision()
        results = yield actions.RunSlots(decision)
        rows = (*first_rows, *(DecidedSegment(segment, result.txn) for result in results for segment in result.segments))
        if not rows:
            return MicroBatchOutcome(slots=results)
        ended = yield from actions.end_all(txn_outcome.decided_txns(rows))
        yield actions.Decide(decision, rows)
        return MicroBatchOutcome(rows, ended.removed, results)

    patch.setattr(actions, "run_micro_batch", run_micro_batch)


def reuse_a_producer_epoch(patch: pytest.MonkeyPatch) -> None:
    """Plant a worker that keeps what InitProducerId answered for its first micro-batch: of a fresh cluster, epoch 1."""
    init, play = init_producer_id, slot.SlotTask.play
    is_later = [False]

    def kept(target: Any, name: str, timeout_ms: int, deadline: Any) -> SlotTxn:
        return SlotTxn(name, 1000, 1) if is_later[0] else init(target, name, timeout_ms, deadline)

    def remembering(self: slot.SlotTask, port: Any) -> Any:
        is_later[0] = self.decision & 0xFFFF_FFFF > FIRST_DECISION_OF_TASKS
        return play(replace(self, prepared=()), port)

    patch.setattr(slot, "init_producer_id", kept)
    patch.setattr(slot.SlotTask, "play", remembering)


def prepare_the_next_round_before_the_end(patch: pytest.MonkeyPatch) -> None:
    """Plant a driver that takes producer epochs ahead when it has decided, and not when the transactions have ended."""
    perform = KafkaSink._perform

    def prepare(self: Any, action: actions.Action, run_slots: Any, deadline: Any) -> Any:
        response = perform(self, action, run_slots, deadline)
        if isinstance(action, actions.Decide):
            names = sorted({row.txn.transactional_id for row in action.rows if row.txn is not None})
            self._performer.next_round.begin(names, (), (), deadline)
        return response

    patch.setattr(KafkaSink, "_perform", prepare)


def forget_to_resolve_one_slot(patch: pytest.MonkeyPatch) -> None:
    end_all = actions.end_all

    def all_but_one(
        decided: Sequence[txn_outcome.DecidedTxn], *choices: Any, reads_log: bool = False
    ) -> Generator[Any, Any, actions.Ended]:
        return end_all(decided[:1] if reads_log else decided, *choices, reads_log=reads_log)

    patch.setattr(actions, "end_all", all_but_one)


def trust_the_batch_id(patch: pytest.MonkeyPatch) -> None:
    call = MicroBatchSink.__call__

    def unless_seen(self: Any, planned: PlannedFrame, batch_id: int) -> None:
        if batch_id >= self._sink.micro_batch - 1:  # the first decision is that of the first rows
            call(self, planned, batch_id)

    patch.setattr(MicroBatchSink, "__call__", unless_seen)


def read_evidence_before_fencing(patch: pytest.MonkeyPatch) -> None:
    def resolve_unfenced(decided_txn: txn_outcome.DecidedTxn) -> Generator[Any, Any, txn_outcome.TxnFate]:
        receipt = yield actions.ReadReceipt(decided_txn)
        log = () if receipt is txn_outcome.ReceiptEvidence.OURS else (yield actions.ReadTargetLog(decided_txn))
        yield actions.InitProducerId(decided_txn.txn.transactional_id)
        return txn_outcome.judge(receipt, log)

    def look(self: Any, decided: txn_outcome.DecidedTxn, deadline: Any) -> txn_outcome.ReceiptEvidence:
        return txn_inspection.inspect_receipt(self._target, decided, self._owner.map_id, deadline)

    patch.setattr(actions, "_resolve", resolve_unfenced)
    patch.setattr(TxnPerformer, "_receipt_evidence", look)


def take_an_absent_receipt_for_no(patch: pytest.MonkeyPatch) -> None:
    absent = txn_outcome.ReceiptEvidence.ABSENT

    def judge(receipt: txn_outcome.ReceiptEvidence, log: Sequence[txn_outcome.LogEvidence]) -> txn_outcome.TxnFate:
        return txn_outcome.TxnFate.NOT_COMMITTED if receipt is absent else txn_outcome.judge(receipt, log)

    patch.setattr(actions, "judge", judge)


def take_anything_else_in_the_log_for_no(patch: pytest.MonkeyPatch) -> None:
    def judge(receipt: txn_outcome.ReceiptEvidence, log: Sequence[txn_outcome.LogEvidence]) -> txn_outcome.TxnFate:
        fate = txn_outcome.judge(receipt, log)
        return txn_outcome.TxnFate.NOT_COMMITTED if fate is txn_outcome.TxnFate.UNDECIDABLE else fate

    patch.setattr(actions, "judge", judge)


def wait_for_a_pending_receipt(patch: pytest.MonkeyPatch) -> None:
    def receipt(self: Any, decided: txn_outcome.DecidedTxn, deadline: Any) -> txn_outcome.ReceiptEvidence:
        while (
            evidence := txn_inspection.inspect_receipt(self._target, decided, self._owner.map_id, deadline)
        ) is txn_outcome.ReceiptEvidence.PENDING:
            deadline.require("the receipt")
            self._pause(0)
        return evidence

    patch.setattr(TxnPerformer, "_receipt_evidence", receipt)


def leave_marker_rows_behind(patch: pytest.MonkeyPatch) -> None:
    rows_of = offset_map_writer.rows_of_removal
    patch.setattr(offset_map_writer, "rows_of_removal", lambda removal: (*rows_of(removal), Comparison("kind", "=", "data")))


def remove_by_slot(patch: pytest.MonkeyPatch) -> None:
    rows_of = offset_map_writer.rows_of_removal
    patch.setattr(offset_map_writer, "rows_of_removal", lambda removal: rows_of(removal)[:1])


def write_no_settled_mark(patch: pytest.MonkeyPatch) -> None:
    settle = LedgerOwner.settle

    def without_a_mark(self: Any, removals: Sequence[Removal] = (), *others: Any) -> None:
        if removals:
            settle(self, removals, *others)
        self._is_resolved = True

    patch.setattr(LedgerOwner, "settle", without_a_mark)


def take_the_response_to_end_txn_for_the_end(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TxnPerformer, "_await_visible", lambda *_: actions.Visibility())


def go_on_before_every_slot_is_definite(patch: pytest.MonkeyPatch) -> None:
    def end_all(decided: Sequence[txn_outcome.DecidedTxn], *_: object, **__: object) -> Generator[Any, Any, actions.Ended]:
        for decided_txn in decided:
            if (yield actions.EndTxn(decided_txn.txn)):
                yield actions.AwaitVisible(decided_txn)
        return actions.Ended()

    patch.setattr(actions, "end_all", end_all)


def return_normally_after_a_removal(patch: pytest.MonkeyPatch) -> None:
    def copy(self: Any, planned: Any) -> None:
        self._round(planned, ())

    patch.setattr(MicroBatchSink, "_copy", copy)


def take_any_receipt_of_the_slot_for_ours(patch: pytest.MonkeyPatch) -> None:
    anothers, ours = txn_outcome.ReceiptEvidence.ANOTHERS, txn_outcome.ReceiptEvidence.OURS

    def look(*arguments: Any) -> txn_outcome.ReceiptEvidence:
        evidence = txn_inspection.inspect_receipt(*arguments)
        return ours if evidence is anothers else evidence

    patch.setattr(txn_performer, "inspect_receipt", look)


def use_a_micro_batch_number_again(patch: pytest.MonkeyPatch) -> None:
    decide = LedgerOwner.decide

    def after_what_is_there(self: Any, rows: Any, highest_slot: int) -> None:
        numbers = self._snapshot().read(columns=["micro_batch"]).column("micro_batch").to_pylist()
        self._highest_micro_batch = max(numbers, default=0)
        decide(self, rows, highest_slot)

    patch.setattr(LedgerOwner, "decide", after_what_is_there)


def keep_the_positions_of_before_the_resolution(patch: pytest.MonkeyPatch) -> None:
    settle = LedgerOwner.settle

    def and_forget_that_they_moved(self: Any, removals: Sequence[Removal] = (), *others: Any) -> None:
        before = self._positions or positions_of(self._snapshot().batches(columns=POSITION_COLUMNS))
        settle(self, removals, *others)
        if removals:
            self._positions = before

    patch.setattr(LedgerOwner, "settle", and_forget_that_they_moved)


def forget_the_forgotten_abort_marker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(txn_performer, "abort_hanging", lambda *_, **__: None)
    patch.setattr(txn_performer, "refuse_hanging", lambda *_: None)
    patch.setattr(slot, "abort_hanging", lambda *_: None)


def fence_other_slots_after_the_decision(patch: pytest.MonkeyPatch) -> None:
    def start_up(
        unsettled: Sequence[Any], transactional_ids: Sequence[str], choices: actions.Choices
    ) -> Generator[Any, Any, tuple[SlotTxn, ...]]:
        ended = yield from actions.end_all(txn_outcome.decided_txns(unsettled), choices, reads_log=True)
        for transactional_id in transactional_ids:
            yield actions.InitProducerId(transactional_id)
        yield ended.settle
        yield actions.AbortHangingTxns(tuple(transactional_ids))
        return ended.removed

    patch.setattr(actions, "start_up", start_up)


def refuse_only_what_the_writing_producer_forgot(patch: pytest.MonkeyPatch) -> None:
    refuse_hanging = txn_inspection.refuse_hanging
    patch.setattr(
        txn_performer, "refuse_hanging", lambda target, decided, _own, deadline: refuse_hanging(target, decided, (), deadline)
    )


def decide_behind_forgotten_records(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(txn_performer, "refuse_hanging", lambda *_: None)


def take_a_repair_for_done(patch: pytest.MonkeyPatch) -> None:
    def fate_of(
        decided_txn: txn_outcome.DecidedTxn, is_definite: bool, _together: object, *, reads_log: bool
    ) -> Generator[Any, Any, Any]:
        fate = txn_outcome.TxnFate.COMMITTED if is_definite else (yield from actions._resolve(decided_txn))
        visibility = (yield actions.AwaitVisible(decided_txn)) if fate is txn_outcome.TxnFate.COMMITTED else actions.Visibility()
        return fate, visibility, ()

    patch.setattr(actions, "_fate_of", fate_of)


def remove_before_settling(patch: pytest.MonkeyPatch) -> None:
    """Rows go in a commit of their own, which leaves the decision unsettled."""
    settle = LedgerOwner.settle

    def in_two_commits(self: Any, removals: Sequence[Removal] = (), *others: Any) -> None:
        if removals:
            conditions = tuple(map(offset_map_writer.rows_of_removal, removals))
            row_count = self._recorded.row_count - self._row_count_of(conditions)
            removal = replace(self._recorded, version=self._next_version(is_odd=False), row_count=row_count)
            self._positions = None
            self._commit(removal, lambda snapshot: self._writer.delete(snapshot, conditions, removal.version, removal.metadata()))
        settle(self, (), *others)

    patch.setattr(LedgerOwner, "settle", in_two_commits)


def let_a_receipt_outweigh_the_log(patch: pytest.MonkeyPatch) -> None:
    anothers = txn_outcome.ReceiptEvidence.ANOTHERS

    def judge(receipt: txn_outcome.ReceiptEvidence, log: Sequence[txn_outcome.LogEvidence]) -> txn_outcome.TxnFate:
        return txn_outcome.TxnFate.NOT_COMMITTED if receipt is anothers else txn_outcome.judge(receipt, log)

    patch.setattr(actions, "judge", judge)


def trust_the_response_to_end_txn_at_a_start(patch: pytest.MonkeyPatch) -> None:
    fate_of = actions._fate_of

    def without_the_log(*arguments: Any, reads_log: bool) -> Generator[Any, Any, Any]:
        return fate_of(*arguments, reads_log=False)

    patch.setattr(actions, "_fate_of", without_the_log)


def forget_what_is_pending(patch: pytest.MonkeyPatch) -> None:
    """Let a committed transaction count as settled while a partition has not taken its marker."""
    settle = LedgerOwner.settle
    patch.setattr(LedgerOwner, "settle", lambda self, removals=(), _pending=(), confirmed=(): settle(self, removals))


def abort_what_is_pending(patch: pytest.MonkeyPatch) -> None:
    """Abort what is open where a leader is back, whatever the map says of it."""

    def recheck_unavailable(self: Any, deadline: Any) -> tuple[SlotTxn, ...]:
        topic_partitions = tuple(self.availability.pending_partitions())
        self.availability.pending.clear()
        self.perform(actions.AbortHangingTxns(tuple(self.availability.fenced), topic_partitions), deadline)
        return ()

    patch.setattr(TxnPerformer, "recheck_unavailable", recheck_unavailable)


def release_what_was_released(patch: pytest.MonkeyPatch) -> None:
    """Plant a retry that goes by the quarantined rows alone, which stay."""
    patch.setattr(QuarantineEntry, "is_released", property(lambda _entry: False))


def set_aside_behind_the_decision(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MicroBatchSink, "_write_quarantine", lambda *_: None)


def start_where_spark_says(patch: pytest.MonkeyPatch) -> None:
    """Positions are those of the plan: Spark's checkpoint counts as progress."""
    play = slot.SlotTask.play

    def from_the_plan(self: slot.SlotTask, port: Any) -> Any:
        starts = {planned_range.source: planned_range.start for planned_range in self.ranges}
        positions = tuple((source, starts.get(source, position)) for source, position in self.positions)
        return play(replace(self, positions=positions), port)

    patch.setattr(slot.SlotTask, "play", from_the_plan)


class Planted(NamedTuple):
    """A mutation, what it leads to, and a search that is large enough to show it: `allows` says which deviations it needs."""

    patch: Patch
    leads_to: str
    deviations: int
    scenario: Scenario = Scenario(logs=("rm", "r"), plan_sizes=(2,))
    allows: Callable[[Move], bool] = lambda move: move.kind is Kind.TIME_OUT


def _only(*kinds: Kind) -> Callable[[Move], bool]:
    return lambda move: move.kind in kinds


def _late_end_txn(move: Move) -> bool:
    is_late = move.kind is Kind.PERFORM and move.delivery in (Delivery.LATE, Delivery.NOT_DURABLE)
    return is_late or move.kind is Kind.LETTER


def _zombie_forgotten(move: Move) -> bool:
    is_forgotten = move.kind is Kind.TASK and move.markers is Markers.FORGOTTEN
    return is_forgotten or move.kind is Kind.ZOMBIE or (move.kind is Kind.CRASH and move.who == 0)


TWO_BATCHES = Scenario(logs=("rr", "r"), plan_sizes=(1,))

PLANTED = (
    Planted(skip_the_read_back, "not decided", 2, replace(ONE_SLOT, is_spark_writer=True), _only(Kind.START, Kind.SWITCH)),
    Planted(end_before_deciding, "not decided", 0),
    Planted(reuse_a_producer_epoch, "does not end", 0, ONE_SLOT),
    Planted(prepare_the_next_round_before_the_end, "does not end", 0, ONE_SLOT),
    Planted(forget_to_resolve_one_slot, "a settled row says", 1, allows=_only(Kind.CRASH)),
    Planted(trust_the_batch_id, "the map ends", 2, TWO_BATCHES, _only(Kind.CRASH, Kind.LOSE_CHECKPOINT)),
    Planted(start_where_spark_says, "OffsetMapConflictError", 1, allows=_only(Kind.CRASH)),
    Planted(read_evidence_before_fencing, "not decided", 3, ONE_SLOT, _late_end_txn),
    Planted(take_an_absent_receipt_for_no, "not decided", 2, replace(ONE_SLOT, keeps_receipts=False), _only(Kind.CRASH)),
    Planted(
        take_anything_else_in_the_log_for_no,
        "not decided",
        2,
        replace(ONE_SLOT, keeps_receipts=False, keeps_logs=False),
        _only(Kind.CRASH),
    ),
    Planted(wait_for_a_pending_receipt, "does not end", 1, replace(ONE_SLOT, forgets_aborts=True)),
    Planted(take_any_receipt_of_the_slot_for_ours, "a settled row says", 1, replace(ONE_SLOT, keeps_logs=False)),
    Planted(leave_marker_rows_behind, "a row covers", 1),
    Planted(remove_by_slot, "settled are gone", 1, TWO_BATCHES),
    Planted(write_no_settled_mark, "without recording", 0),
    Planted(
        take_the_response_to_end_txn_for_the_end,
        "a settled row says",
        1,
        replace(ONE_SLOT, forgets_commits=True, has_zombies=False),
        lambda move: move.markers is Markers.FORGOTTEN,
    ),
    Planted(go_on_before_every_slot_is_definite, "a settled row says", 1),
    Planted(return_normally_after_a_removal, "the map ends", 1),
    Planted(use_a_micro_batch_number_again, "used again", 1, ONE_SLOT),
    Planted(keep_the_positions_of_before_the_resolution, "the map ends", 1),
    Planted(forget_the_forgotten_abort_marker, "duplicated", 1, replace(ONE_SLOT, forgets_aborts=True)),
    Planted(release_what_was_released, "released twice", 2, replace(POISON, retries=True), _only(Kind.CRASH)),
    Planted(set_aside_behind_the_decision, "the table quarantine lacks", 0, POISON),
    Planted(decide_behind_forgotten_records, "duplicated", 3, replace(ONE_SLOT, forgets_aborts=True), _zombie_forgotten),
)
