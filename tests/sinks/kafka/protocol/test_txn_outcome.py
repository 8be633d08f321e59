from __future__ import annotations

import pytest

from shallow_mirror.sinks.kafka.protocol.txn_outcome import LogEvidence, ReceiptEvidence, TxnFate, judge

OURS, ABORTED, OPEN, NOTHING = LogEvidence.OURS, LogEvidence.OURS_ABORTED, LogEvidence.OPEN, LogEvidence.NOTHING
COMMITTED, NOT_COMMITTED, UNDECIDABLE = TxnFate.COMMITTED, TxnFate.NOT_COMMITTED, TxnFate.UNDECIDABLE


@pytest.mark.parametrize("receipt", [ReceiptEvidence.ABSENT, ReceiptEvidence.PENDING])
@pytest.mark.parametrize(
    ("log", "fate"),
    [
        ((), UNDECIDABLE),
        ((NOTHING,), UNDECIDABLE),
        ((NOTHING, OURS), COMMITTED),
        ((OPEN, OURS), COMMITTED),
        ((ABORTED, OURS), COMMITTED),
        ((OPEN, ABORTED), NOT_COMMITTED),
        ((OPEN, OPEN), NOT_COMMITTED),
        ((OPEN, NOTHING), UNDECIDABLE),
        ((ABORTED, NOTHING), UNDECIDABLE),
    ],
)
def test_without_a_receipt_one_commit_marker_proves_the_commit_and_a_missing_log_proves_nothing(
    receipt: ReceiptEvidence, log: tuple[LogEvidence, ...], fate: TxnFate
) -> None:
    assert judge(receipt, log) is fate


@pytest.mark.parametrize("log", [(), (NOTHING,), (OURS,), (ABORTED,), (OPEN,), (ABORTED, NOTHING)])
def test_a_receipt_of_ours_proves_the_commit(log: tuple[LogEvidence, ...]) -> None:
    assert judge(ReceiptEvidence.OURS, log) is COMMITTED


@pytest.mark.parametrize(
    ("log", "fate"),
    [
        ((), NOT_COMMITTED),
        ((NOTHING,), NOT_COMMITTED),
        ((ABORTED, OPEN), NOT_COMMITTED),
        ((ABORTED, OURS), COMMITTED),
        ((NOTHING, OURS), COMMITTED),
    ],
)
def test_the_receipt_of_another_transaction_counts_only_where_no_partition_was_committed(
    log: tuple[LogEvidence, ...], fate: TxnFate
) -> None:
    assert judge(ReceiptEvidence.ANOTHERS, log) is fate
