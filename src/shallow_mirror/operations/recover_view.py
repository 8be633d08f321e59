"""Driver, for the cli: what is known of the last decision, for the one who has to choose."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console

from shallow_mirror.operations.recover import SlotReport, UnknownState
from shallow_mirror.plurals import counted
from shallow_mirror.sinks.kafka.protocol.txn_outcome import LogEvidence, ReceiptEvidence, TxnFate

_RECEIPTS = {
    ReceiptEvidence.OURS: "there, written by this transaction: it was committed",
    ReceiptEvidence.ANOTHERS: "there, but another transaction's: this one was not committed",
    ReceiptEvidence.ABSENT: "absent: never committed, or expired (offsets.retention.minutes), or deleted: no evidence",
    ReceiptEvidence.PENDING: "pending: its transaction is not over: no evidence",
}
_LOGS = {
    LogEvidence.OURS: "holds our records, committed",
    LogEvidence.OURS_ABORTED: "holds our records, aborted",
    LogEvidence.OPEN: "holds our records, in a transaction that is not over",
    LogEvidence.NOTHING: "holds none of our records there (retention, truncation, compaction): no evidence",
}
_FATES = {
    None: "not over, as far as can be seen: `run` commits it, or copies it again where that comes too late",
    TxnFate.COMMITTED: "committed, or about to be: `run` keeps it",
    TxnFate.NOT_COMMITTED: "not committed: `run` copies it again",
    TxnFate.UNDECIDABLE: "nothing says whether it was committed",
}
_CHOICE = """Find out whether those records are in the target topic (a consumer, an application that read them), then
  shallow-mirror recover CONF --commit   they are there, or may be missing: they are never copied (again)
  shallow-mirror recover CONF --redo     they are not there, or may be repeated: they are copied again
For one slot only: --slot N. Stop applications first that must not see a repeated record."""


def show(reports: Sequence[SlotReport], console: Console, *, as_json: bool = False) -> None:
    if as_json:
        print(json.dumps([one.document() for one in reports]), file=console.file)
        return
    for one in reports:
        console.print("\n".join(_lines(one)), markup=False)
    if any(one.needs_choice for one in reports):
        console.print(_CHOICE, markup=False)
    else:
        console.print("Nothing needs a choice: `shallow-mirror run CONF` goes on by itself.", markup=False)


def _lines(report: SlotReport) -> list[str]:
    txn, found = report.decided.txn, report.coordinator
    if isinstance(found, UnknownState):
        state = found.value
    elif found is None:
        state = "does not know it any more"
    else:
        state = f"{found.state}, producer id {found.producer_id}, epoch {found.producer_epoch}"
    lines = [f"slot {report.slot}: Kafka transaction {txn}, {counted(report.record_count, 'record')}"]
    lines += [f"  copied from {one.topic}-{one.partition} [{start}, {end})" for one, (start, end) in report.copied.items()]
    lines += [f"  coordinator: {state}", f"  receipt: {_RECEIPTS[report.receipt]}"]
    for written, evidence in zip(report.decided.written, report.log, strict=True):
        lost = "; its log ends before the end of the range: the target has lost records" if written in report.lost else ""
        lines.append(f"  target {written}: {_LOGS[evidence]}{lost}")
    verdict = "committed, but lost by the target since" if report.fate is not TxnFate.UNDECIDABLE else _FATES[report.fate]
    lines.append(f"  => {f'{verdict}: YOUR CHOICE' if report.needs_choice else _FATES[report.fate]}")
    return lines
