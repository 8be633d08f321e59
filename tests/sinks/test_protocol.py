"""The protocol against a model of one target cluster and one offset map: a crash after every action, lost replies."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from shallow_mirror.checkpoints.schema import DecidedSegment
from shallow_mirror.errors import RecoverNeeded
from shallow_mirror.sinks import protocol
from shallow_mirror.sinks.protocol import drive
from shallow_mirror.sinks.resolve import LogEvidence, ReceiptEvidence, decided_txns
from shallow_mirror.types import Segment, SegmentKind, SlotTxn, SourcePartition, TargetPartition

SLOTS = 2
END = 4


class Crash(Exception):
    pass


@dataclass
class Txn:
    epoch: int
    records: list[tuple[int, int]] = field(default_factory=list)
    state: str = "ongoing"


@dataclass
class World:
    """Two slots, one source partition each with offsets 0..END. Two records a micro-batch and slot."""

    epochs: dict[str, int] = field(default_factory=dict)
    txns: dict[tuple[str, int], Txn] = field(default_factory=dict)
    rows: list[DecidedSegment] = field(default_factory=list)
    decision: int = 2
    last_decision: list[DecidedSegment] = field(default_factory=list)
    is_settled: bool = True
    receipts: dict[str, int] = field(default_factory=dict)
    receipts_expire: bool = False
    log_is_cleaned: bool = False
    forgets_aborts: bool = False
    """Aborts write no markers; the next marker of the same transactional id then ends the forgotten transaction too."""
    times_out: Callable[[str], bool] = lambda _name: False

    def position(self, slot: int) -> int:
        return max((row.segment.source_end for row in self.rows if row.segment.source.partition == slot), default=0)

    def init(self, name: str) -> int:
        epoch = self.epochs.get(name, -1)
        if (name, epoch) in self.txns and self.txns[name, epoch].state == "ongoing":
            self.abort(self.txns[name, epoch])
        self.epochs[name] = epoch + 1
        return epoch + 1

    def abort(self, txn: Txn) -> None:
        txn.state = "forgotten" if self.forgets_aborts else "aborted"

    def of_name(self, name: str, state: str) -> list[Txn]:
        return [txn for (owner, _), txn in self.txns.items() if owner == name and txn.state == state]

    def perform(self, action: protocol.Action) -> Any:
        match action:
            case protocol.TakeDecision():
                return self.decision
            case protocol.RunSlots():
                return tuple(self.run_slot(slot) for slot in range(SLOTS))
            case protocol.Decide(_, rows):
                assert self.is_settled, "a decision before the last one was settled"
                self.rows.extend(rows)
                self.last_decision, self.is_settled = list(rows), False
                self.decision += 2
            case protocol.EndTxn(txn):
                assert any(row.txn == txn for row in self.rows), "EndTxn before the decision"
                kept = self.txns[txn.transactional_id, txn.producer_epoch]
                if self.times_out(txn.transactional_id) and kept.state == "ongoing":
                    self.abort(kept)
                    self.epochs[txn.transactional_id] += 1
                if self.epochs[txn.transactional_id] != txn.producer_epoch:
                    return False
                assert kept.state in ("ongoing", "committed")
                for ended in (kept, *self.of_name(txn.transactional_id, "forgotten")):
                    ended.state = "committed"
                self.receipts[txn.transactional_id] = txn.producer_epoch
                return True
            case protocol.AwaitVisible(decided):
                assert self.txns[decided.txn.transactional_id, decided.txn.producer_epoch].state == "committed"
                self.is_settled = all(
                    self.txns[one.txn.transactional_id, one.txn.producer_epoch].state == "committed"
                    for one in decided_txns(self.rows)
                )
            case protocol.InitProducerId(name):
                self.init(name)
            case protocol.AbortForgotten(names):
                for name in names:
                    for forgotten in self.of_name(name, "forgotten"):
                        forgotten.state = "aborted"
            case protocol.ReadReceipt(decided):
                if self.of_name(decided.txn.transactional_id, "forgotten"):
                    return ReceiptEvidence.PENDING
                assert self.epochs[decided.txn.transactional_id] > decided.txn.producer_epoch, "evidence before fencing"
                receipt = self.receipts.get(decided.txn.transactional_id)
                if receipt is None or self.receipts_expire:
                    return ReceiptEvidence.ABSENT
                return ReceiptEvidence.OURS if receipt == decided.txn.producer_epoch else ReceiptEvidence.ANOTHERS
            case protocol.ReadTargetLog(decided):
                state = self.txns[decided.txn.transactional_id, decided.txn.producer_epoch].state
                if self.log_is_cleaned:
                    return (LogEvidence.NOTHING,)
                if state == "forgotten":
                    return (LogEvidence.OPEN,)
                return (LogEvidence.OURS if state == "committed" else LogEvidence.OURS_ABORTED,)
            case protocol.RemoveRows(txn):
                self.rows = [row for row in self.rows if row.txn != txn]
            case protocol.Settle():
                assert all(
                    self.txns[one.txn.transactional_id, one.txn.producer_epoch].state == "committed"
                    for one in decided_txns(self.rows)
                ), "settled with an open transaction"
                self.is_settled = True
            case protocol.ReportFate():
                pass
        return None

    def run_slot(self, slot: int) -> protocol.SlotResult:
        start = self.position(slot)
        end = min(start + 2, END)
        if start == end:
            return protocol.SlotResult(slot, None, ())
        name = f"m-{slot}"
        epoch = self.init(name)
        written = self.txns[name, epoch] = Txn(epoch)
        written.records.extend((slot, offset) for offset in range(start, end))
        segment = Segment(
            source=SourcePartition("t", "id", slot),
            source_start=start,
            source_end=end,
            kind=SegmentKind.DATA,
            target=TargetPartition("t", "id", slot),
            target_start=start,
            target_end=end,
        )
        return protocol.SlotResult(slot, SlotTxn(name, 7, epoch), (segment,))

    def visible(self) -> list[tuple[int, int]]:
        return [record for txn in self.txns.values() if txn.state == "committed" for record in txn.records]


def live_until_done(world: World, crashes: list[int]) -> None:
    """Processes, one after another: each crashes after that many actions, the one after the last runs to the end."""
    for budget in (*crashes, 10_000):
        left = itertools.count(budget, -1)

        def perform(action: protocol.Action, left: Any = left) -> Any:
            if next(left) == 0:
                raise Crash
            return world.perform(action)

        unsettled = [] if world.is_settled else [row for row in world.last_decision if row in world.rows]
        try:
            drive(protocol.start_up(unsettled, [f"m-{slot}" for slot in range(SLOTS)]), perform)
            while any(world.position(slot) < END for slot in range(SLOTS)):
                drive(protocol.run_micro_batch(()), perform)
        except Crash:
            continue


EVERYTHING = [(slot, offset) for slot in range(SLOTS) for offset in range(END)]


@pytest.mark.parametrize("first", range(27))
@pytest.mark.parametrize("second", [0, 1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("forgets_aborts", [False, True])
def test_a_crash_after_any_two_actions_loses_and_repeats_nothing(first: int, second: int, forgets_aborts: bool) -> None:
    world = World(forgets_aborts=forgets_aborts)
    live_until_done(world, [first, second])
    assert sorted(world.visible()) == EVERYTHING


@pytest.mark.parametrize("timed_out", [{"m-0"}, {"m-1"}, {"m-0", "m-1"}])
@pytest.mark.parametrize("receipts_expire", [False, True])
@pytest.mark.parametrize("forgets_aborts", [False, True])
@pytest.mark.parametrize("crash", range(27))
def test_a_transaction_that_timed_out_before_its_end_is_removed_and_read_again(
    timed_out: set[str], receipts_expire: bool, forgets_aborts: bool, crash: int
) -> None:
    timeouts = itertools.count()
    world = World(
        receipts_expire=receipts_expire,
        forgets_aborts=forgets_aborts,
        times_out=lambda name: name in timed_out and next(timeouts) < 2,
    )
    live_until_done(world, [crash])
    assert sorted(world.visible()) == EVERYTHING


def test_no_evidence_stops_instead_of_guessing() -> None:
    world = World(receipts_expire=True, log_is_cleaned=True, times_out=lambda name: name == "m-0")
    with pytest.raises(RecoverNeeded, match="m-0"):
        live_until_done(world, [])


def test_the_decision_comes_before_the_first_end_and_after_every_slot() -> None:
    world = World()
    names: list[str] = []
    drive(protocol.run_micro_batch(()), world.perform, names.append)
    assert names == ["TakeDecision", "RunSlots", "Decide", "EndTxn", "EndTxn", "AwaitVisible", "AwaitVisible"]


def test_a_micro_batch_with_nothing_to_account_for_decides_nothing() -> None:
    world = World()
    world.rows = [
        DecidedSegment(
            Segment(
                source=SourcePartition("t", "id", slot),
                source_start=0,
                source_end=END,
                kind=SegmentKind.GAP,
                target=TargetPartition("t", "id", slot),
            ),
            None,
        )
        for slot in range(SLOTS)
    ]
    names: list[str] = []
    drive(protocol.run_micro_batch(()), world.perform, names.append)
    assert names == ["TakeDecision", "RunSlots"]


def ends_before_deciding(first_rows: Any) -> Any:
    """run_micro_batch with the planted bug."""
    decision = yield protocol.TakeDecision()
    results = yield protocol.RunSlots(decision)
    rows = tuple(DecidedSegment(segment, result.txn) for result in results for segment in result.segments)
    for one in decided_txns(rows):
        yield protocol.EndTxn(one.txn)
    yield protocol.Decide(decision, rows)


def test_the_model_finds_an_end_before_the_decision() -> None:
    with pytest.raises(AssertionError, match="before the decision"):
        drive(ends_before_deciding(()), World().perform)
