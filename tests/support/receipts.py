"""A receipt in a transaction of a test, from adding its group on."""

from __future__ import annotations

from typing import Any

from shallow_mirror.broker.produce import begin_receipt, finish_receipt
from shallow_mirror.broker.produce.txn.txn_additions import add_offsets
from shallow_mirror.deadline import Deadline
from shallow_mirror.types import SlotTxn, TopicPartition


def write_receipt(
    cluster: Any, txn: SlotTxn, topic_partition: TopicPartition, *, decision: int, map_id: str, run_id: str, deadline: Deadline
) -> None:
    add_offsets(cluster, txn, deadline)
    begun = begin_receipt(cluster, txn, topic_partition, decision=decision, map_id=map_id, run_id=run_id, deadline=deadline)
    finish_receipt(cluster, txn, topic_partition, begun, deadline)
