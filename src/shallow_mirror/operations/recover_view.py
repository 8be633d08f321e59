"""Driver, for the cli: the transactions of the last decision as text, for the operator who has to choose."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console

from shallow_mirror.operations.recover import SlotReport, UnknownState
from shallow_mirror.plurals import counted
from shallow_mirror.sinks.kafka.protocol import LogEvidence, ReceiptEvidence, TxnFate

_RECEIPTS = {
    ReceiptEvidence.OURS: "present, written by this transaction: it was committed",
    ReceiptEvidence.ANOTHERS: "present, but written by another transaction: this one was not committed",
    ReceiptEvidence.ABSENT: "absent: never committed, or expired (offsets.retention.minutes), or deleted: no evidence",
    ReceiptEvidence.PENDING: "pending: its transaction has not ended: no evidence",
}
_LOGS = {
    LogEvidence.OURS: "holds our records, committed",
    LogEvidence.OURS_ABORTED: "holds our records, aborted",
    LogEvidence.OPEN: "holds our records, in a transaction that has not ended",
    LogEvidence.GONE: "was deleted, or created again since",
    LogEvidence.NOTHING: "holds none of our records in that range (retention, truncation, compaction): no evidence",
}
_FATES = {
    None: "probably not ended: `run` commits it, or copies it again if it is too late for that",
    TxnFate.COMMITTED: "committed, or being committed: `run` keeps it",
    TxnFate.NOT_COMMITTED: "not committed: `run` copies it again",
    TxnFate.UNDECIDABLE: "there is no evidence whether it was committed",
}
_CHOICE = """Find out whether those records are in the target topic (a consumer, an application that read them), then
  shallow-mirror recover CONF --commit   they are present, or may be missing: they are not copied again
  shallow-mirror recover CONF --redo     they are missing, or may be repeated: they are copied again
For one slot only: --slot N. Stop applications first that must not see a repeated record."""


def show(reports: Sequence[SlotReport], console: Console, *, as_json: bool = False) -> None:
    if as_json:
        print(json.dumps([report.document() for report in reports]), file=console.file)
        return
    for report in reports:
        console.print("\n".join(_lines(report)), markup=False)
    if any(report.needs_choice for report in reports):
        console.print(_CHOICE, markup=False)
    else:
        console.print("Nothing needs a choice: `shallow-mirror run CONF` continues automatically.", markup=False)


def _lines(report: SlotReport) -> list[str]:
    txn, coordinator = report.decided.txn, report.coordinator
    if isinstance(coordinator, UnknownState):
        state = coordinator.value
    elif coordinator is None:
        state = "no such transactional id (expired)"
    else:
        state = f"{coordinator.state}, producer id {coordinator.producer_id}, epoch {coordinator.producer_epoch}"
    lines = [f"slot {report.slot}: Kafka transaction {txn}, {counted(report.record_count, 'record')}"]
    lines += [
        f"  copied from {source.topic}-{source.partition} [{start}, {end})" for source, (start, end) in report.copied.items()
    ]
    lines += [f"  coordinator: {state}", f"  receipt: {_RECEIPTS[report.receipt]}"]
    for written, evidence in zip(report.decided.written, report.log, strict=True):
        lost = "; its log ends before the end of the range: the target has lost records" if written in report.lost else ""
        repeated = "; --redo writes it a second time" if written in report.repeated_by_redo else ""
        lines.append(f"  target {written}: {_LOGS[evidence]}{lost}{repeated}")
    verdict = "committed, but lost by the target since" if report.fate is not TxnFate.UNDECIDABLE else _FATES[report.fate]
    lines.append(f"  => {f'{verdict}: YOUR CHOICE' if report.needs_choice else _FATES[report.fate]}")
    return lines
