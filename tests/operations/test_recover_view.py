"""What an operator is told of a transaction whose coordinator does not tell (Kafka before 3.0)."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from shallow_mirror.operations.recover import SlotReport, UnknownState
from shallow_mirror.operations.recover_view import show
from shallow_mirror.sinks.kafka.protocol import DecidedTxn, LogEvidence, ReceiptEvidence, TxnFate, WrittenRange
from shallow_mirror.sinks.kafka.protocol.actions import Unclear
from shallow_mirror.types import SlotTxn, TargetPartition

WRITTEN = tuple(WrittenRange(TargetPartition("t", "id", partition), 0, 10) for partition in range(2))


def report(receipt: ReceiptEvidence, *log: LogEvidence) -> SlotReport:
    return SlotReport(
        decided=DecidedTxn(SlotTxn("m-0", 7, 3), WRITTEN),
        copied={},
        record_count=20,
        coordinator=UnknownState.BEFORE_KAFKA_3,
        receipt=receipt,
        log=log,
        lost=(),
    )


@pytest.mark.parametrize(
    ("receipt", "log", "fate"),
    [
        (ReceiptEvidence.PENDING, (LogEvidence.OPEN, LogEvidence.OPEN), None),
        (ReceiptEvidence.ABSENT, (LogEvidence.NOTHING, LogEvidence.OPEN), None),
        (ReceiptEvidence.PENDING, (LogEvidence.OURS, LogEvidence.OPEN), TxnFate.COMMITTED),
        (ReceiptEvidence.PENDING, (LogEvidence.OPEN, LogEvidence.OURS_ABORTED), TxnFate.NOT_COMMITTED),
        (ReceiptEvidence.ANOTHERS, (LogEvidence.OPEN, LogEvidence.OPEN), TxnFate.NOT_COMMITTED),
        (ReceiptEvidence.ABSENT, (LogEvidence.NOTHING, LogEvidence.NOTHING), TxnFate.UNDECIDABLE),
    ],
)
def test_only_what_is_open_everywhere_it_shows_is_left_to_the_next_start(
    receipt: ReceiptEvidence, log: tuple[LogEvidence, ...], fate: TxnFate | None
) -> None:
    actual = report(receipt, *log)
    assert actual.fate is fate
    assert actual.needs_choice is (fate is TxnFate.UNDECIDABLE)


def test_the_ranges_that_redo_writes_a_second_time_are_named_where_a_part_of_a_transaction_is_lost() -> None:
    actual, console = report(ReceiptEvidence.OURS, LogEvidence.NOTHING, LogEvidence.OURS), Console(file=io.StringIO(), width=200)
    assert actual.repeated_by_redo == ()
    partly = replace(actual, lost=WRITTEN[:1])
    show([partly], console)
    output = console.file.getvalue()  # type: ignore[attr-defined]
    assert "t-1 [0, 10): holds our records, committed; --redo writes it a second time\n" in output
    assert output.count("--redo writes it a second time") == 1
    assert [written["is_repeated_by_redo"] for written in partly.document()["written"]] == [False, True]
    assert "`recover --redo` writes a second time what it still has at t-1 [0, 10)" in str(Unclear(actual.decided, WRITTEN[:1]))
    assert "--redo" not in str(Unclear(actual.decided, WRITTEN))


def test_the_silence_of_the_coordinator_is_reported_and_no_choice_required() -> None:
    actual, console = report(ReceiptEvidence.PENDING, LogEvidence.OPEN, LogEvidence.OPEN), Console(file=io.StringIO(), width=200)
    show([actual], console)
    output = console.file.getvalue()  # type: ignore[attr-defined]
    assert "  coordinator: not known (Kafka before 3.0)\n" in output
    assert "=> probably not ended: `run` commits it, or copies it again if it is too late for that\n" in output
    assert "YOUR CHOICE" not in output
    document = json.loads(json.dumps(actual.document()))
    assert (document["fate"], document["needs_choice"]) == (None, False)
    assert document["coordinator"] == {"state": "not known (Kafka before 3.0)", "producer_id": None, "producer_epoch": None}
