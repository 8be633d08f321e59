"""The commit protocol: actions, outcomes of transactions, recovery."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.sinks.kafka.protocol import actions as actions
    from shallow_mirror.sinks.kafka.protocol.txn_inspection import (
        gone_ranges as gone_ranges,
        inspect_logs as inspect_logs,
        inspect_receipt as inspect_receipt,
        lost_ranges as lost_ranges,
        readable_ends as readable_ends,
        refuse_used_ids as refuse_used_ids,
        require_known_receipts as require_known_receipts,
    )
    from shallow_mirror.sinks.kafka.protocol.txn_outcome import (
        DecidedTxn as DecidedTxn,
        LogEvidence as LogEvidence,
        ReceiptEvidence as ReceiptEvidence,
        TxnFate as TxnFate,
        WrittenRange as WrittenRange,
        decided_txns as decided_txns,
        judge as judge,
        pending_sentences as pending_sentences,
    )
    from shallow_mirror.sinks.kafka.protocol.txn_performer import (
        LOSS_PATIENCE_MS as LOSS_PATIENCE_MS,
        TxnPerformer as TxnPerformer,
        recover as recover,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
