"""Driver: the micro-batches that only receipts name, because the table is older than the target."""

from __future__ import annotations

from collections.abc import Sequence

from shallow_mirror.broker import Cluster
from shallow_mirror.deadline import Deadline
from shallow_mirror.sinks.kafka.protocol.txn_inspection import receipts_of
from shallow_mirror.sinks.records.micro_batch_identity import MicroBatchId


def micro_batches_of_receipts(
    target: Cluster, transactional_ids: Sequence[str], map_id: str, deadline: Deadline
) -> tuple[MicroBatchId, ...]:
    """Return the micro-batches and jobs that receipts name, the newest decision first. Raises ConfigError, RetriableError."""
    receipts = [receipt for _, receipt in receipts_of(target, transactional_ids, map_id, deadline)]
    newest_first = sorted(receipts, key=lambda receipt: receipt.decision, reverse=True)
    return tuple(named for receipt in newest_first if (named := MicroBatchId.of_receipt(receipt.micro_batch)) is not None)
