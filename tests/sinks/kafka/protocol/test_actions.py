"""The order of actions, seen from the outside. What crashes and faults make of it is shown in tests/model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.errors import FencedError, RecoverNeededError, RetriableError
from shallow_mirror.sinks import SlotResult
from shallow_mirror.sinks.kafka.protocol import LogEvidence, ReceiptEvidence, actions
from shallow_mirror.sinks.kafka.protocol.actions import drive
from shallow_mirror.types import Segment, SegmentKind, SlotTxn, SourcePartition, TargetPartition


def result_of(slot: int) -> SlotResult:
    segment = Segment(
        source=SourcePartition("t", "id", slot),
        source_start=0,
        source_end=2,
        kind=SegmentKind.DATA,
        target=TargetPartition("t", "id", slot),
        target_start=0,
        target_end=2,
    )
    return SlotResult(slot, SlotTxn(f"m-{slot}", 7, 0), (segment,))


TWO_SLOTS = (result_of(0), result_of(1))
ROWS = [DecidedSegment(segment, result.txn) for result in TWO_SLOTS for segment in result.segments]


def performer_of(results: Mapping[type, Any]) -> Any:
    """Return a performer that gives these responses, raises those that are errors, and does nothing else."""

    def perform(action: actions.Action) -> Any:
        perform_action = results.get(type(action))
        if isinstance(perform_action, Exception):
            raise perform_action
        return perform_action

    return perform


def names_of(steps: Any, results: Mapping[type, Any]) -> list[str]:
    names: list[str] = []
    drive(steps, performer_of(results), names.append)
    return names


def test_the_decision_comes_before_the_first_end_and_after_every_slot() -> None:
    results = {
        actions.TakeDecision: 2,
        actions.RunSlots: TWO_SLOTS,
        actions.EndTxn: True,
        actions.AwaitVisible: actions.Visibility(),
    }
    assert names_of(actions.run_micro_batch(()), results) == [
        "TakeDecision", "RunSlots", "RefuseHangingTxns", "Decide", "EndTxn", "EndTxn", "AwaitVisible", "AwaitVisible",
    ]  # fmt: skip


def test_a_micro_batch_with_nothing_to_account_for_decides_nothing() -> None:
    results = {actions.TakeDecision: 2, actions.RunSlots: (SlotResult(0, None, ()),)}
    assert names_of(actions.run_micro_batch(()), results) == ["TakeDecision", "RunSlots"]


def test_nothing_is_decided_behind_records_whose_marker_was_forgotten() -> None:
    results = {
        actions.TakeDecision: 2,
        actions.RunSlots: TWO_SLOTS,
        actions.RefuseHangingTxns: RetriableError("FORGOTTEN_MARKER", "t-0"),
        actions.Decide: AssertionError("decided"),
    }
    with pytest.raises(RetriableError, match="FORGOTTEN_MARKER"):
        drive(actions.run_micro_batch(()), performer_of(results))


WITHOUT_EVIDENCE = {
    actions.EndTxn: False,
    actions.ReadReceipt: ReceiptEvidence.ABSENT,
    actions.ReadTargetLog: (LogEvidence.NOTHING,),
}


def test_no_evidence_stops_instead_of_guessing() -> None:
    with pytest.raises(RecoverNeededError, match=r"m-0.*m-1"):
        drive(actions.start_up(ROWS, []), performer_of(WITHOUT_EVIDENCE))


def test_a_run_that_was_taken_over_says_so_instead_of_asking_the_operator() -> None:
    with pytest.raises(FencedError, match="the other"):
        drive(actions.start_up(ROWS, []), performer_of(WITHOUT_EVIDENCE | {actions.CheckOwnership: FencedError("the other")}))


ONE_TXN_ON_TWO_PARTITIONS = [DecidedSegment(segment, SlotTxn("m-0", 7, 0)) for result in TWO_SLOTS for segment in result.segments]
REPAIRED = {actions.EndTxn: True, actions.AwaitVisible: actions.Visibility(was_repaired=True)}


@pytest.mark.parametrize(
    ("evidence", "removals"),
    [
        ((LogEvidence.OURS, LogEvidence.OURS), []),
        ((LogEvidence.OURS, LogEvidence.NOTHING), []),
        ((LogEvidence.OURS, LogEvidence.OURS_ABORTED), [TargetPartition("t", "id", 1)]),
        ((LogEvidence.OURS_ABORTED, LogEvidence.OURS_ABORTED), [None]),
    ],
)
def test_what_a_repair_aborted_is_removed_and_nothing_else(
    evidence: tuple[LogEvidence, ...], removals: list[TargetPartition | None]
) -> None:
    perform_action, performed = performer_of(REPAIRED | {actions.ReadTargetLog: evidence}), list[actions.Action]()

    def perform(action: actions.Action) -> Any:
        performed.append(action)
        return perform_action(action)

    removed = drive(actions.start_up(ONE_TXN_ON_TWO_PARTITIONS, []), perform)
    settled = [action for action in performed if isinstance(action, actions.Settle)]
    assert [[removal.target for removal in action.removals] for action in settled] == [removals]
    assert removed == ((SlotTxn("m-0", 7, 0),) if removals else ())
