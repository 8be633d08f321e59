"""Everywhere: what a transaction writes to: its partitions, and the group of its receipt.

Each function repeats its request until a definite answer or the deadline. Whatever was added may be added again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.cluster_metadata import CoordinatorKind
from shallow_mirror.broker.net.error_codes import (
    OPERATION_NOT_ATTEMPTED,
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    refusal,
)
from shallow_mirror.broker.net.requests import request_class
from shallow_mirror.broker.produce.txn.coordinator_requests import BegunRequest, ask_coordinator, raise_for_code
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError, TopicAccessError
from shallow_mirror.types import SlotTxn, TopicPartition


def _added_partitions(txn: SlotTxn, topic_partitions: Sequence[TopicPartition]) -> dict[str, Any]:
    topic = request_class("AddPartitionsToTxn").AddPartitionsToTxnTopic
    by_topic: dict[str, list[int]] = {}
    for topic_partition in topic_partitions:
        by_topic.setdefault(topic_partition.topic, []).append(topic_partition.partition)
    return {
        "v3_and_below_transactional_id": txn.transactional_id,
        "v3_and_below_producer_id": txn.producer_id,
        "v3_and_below_producer_epoch": txn.producer_epoch,
        "v3_and_below_topics": [topic(name=name, partitions=partitions) for name, partitions in by_topic.items()],
    }


def added_offsets(txn: SlotTxn, group: str) -> dict[str, Any]:
    """Return the fields of AddOffsetsToTxn."""
    return {
        "transactional_id": txn.transactional_id,
        "producer_id": txn.producer_id,
        "producer_epoch": txn.producer_epoch,
        "group_id": group,
    }


@dataclass(frozen=True, slots=True)
class BegunAddition:
    """Partitions, and the receipt's group, that are on their way into a transaction."""

    txn: SlotTxn
    topic_partitions: Sequence[TopicPartition]
    partitions: BegunRequest
    offsets: BegunRequest


def begin_addition(
    cluster: Cluster, txn: SlotTxn, topic_partitions: Sequence[TopicPartition], deadline: Deadline
) -> BegunAddition:
    """Send the requests that add partitions and the receipt's group to a transaction. `finish_addition` comes before Produce."""
    # A broker reads the second request of a connection when it has answered the first one: they do not meet at the coordinator.
    name, kind = txn.transactional_id, CoordinatorKind.TXN
    partitions = _added_partitions(txn, topic_partitions)
    return BegunAddition(
        txn,
        topic_partitions,
        BegunRequest(cluster, kind, name, "AddPartitionsToTxn", partitions, deadline),
        BegunRequest(cluster, kind, name, "AddOffsetsToTxn", added_offsets(txn, txn.transactional_id), deadline),
    )


def finish_addition(cluster: Cluster, begun: BegunAddition, deadline: Deadline) -> None:
    """Wait until everything is in the transaction. Raises as `add_partitions` and `add_offsets`."""
    attempt = deadline.sooner(cluster.config.request_timeout_ms)
    try:
        partitions_code = _worst_code(begun.partitions.receive(attempt))
        offsets_code = begun.offsets.receive(attempt).error_code
    except RetriableError:
        cluster.forget_coordinator(CoordinatorKind.TXN, begun.txn.transactional_id)
    else:
        if not partitions_code and not offsets_code:
            return
    # One by one, with retries, and with the errors of each. Whatever was added is added again, which changes nothing.
    add_partitions(cluster, begun.txn, begun.topic_partitions, deadline)
    add_offsets(cluster, begun.txn, deadline)


def add_partitions_and_offsets(
    cluster: Cluster, txn: SlotTxn, topic_partitions: Sequence[TopicPartition], deadline: Deadline
) -> None:
    """Do `add_partitions` and `add_offsets` in one round trip. Raises as they do."""
    finish_addition(cluster, begin_addition(cluster, txn, topic_partitions, deadline), deadline)


def add_partitions(cluster: Cluster, txn: SlotTxn, topic_partitions: Sequence[TopicPartition], deadline: Deadline) -> None:
    """Add partitions to the transaction, all or none, before the first Produce to them.

    Raises TopicAccessError, and RetriableError soon if the target has no such topic.
    """
    response = ask_coordinator(
        cluster,
        CoordinatorKind.TXN,
        txn.transactional_id,
        "AddPartitionsToTxn",
        _worst_code,
        deadline,
        brief=(UNKNOWN_TOPIC_OR_PARTITION,),
        **_added_partitions(txn, topic_partitions),
    )
    code = _worst_code(response)
    if code:
        topics = sorted(
            topic.name
            for topic in response.results_by_topic_v3_and_below
            if any(partition.partition_error_code == code for partition in topic.results_by_partition)
        )
        action = f"AddPartitionsToTxn of {txn}"
        if code == TOPIC_AUTHORIZATION_FAILED:
            forbidden = refusal(code, "AddPartitionsToTxn", topic=", ".join(topics))
            raise TopicAccessError(f"{action}: the target answered {forbidden}", topics)
        raise_for_code(code, "AddPartitionsToTxn", f"{action}: {', '.join(topics)}", key=txn.transactional_id)


def add_offsets(cluster: Cluster, txn: SlotTxn, deadline: Deadline) -> None:
    """Make the receipt's group part of the transaction."""
    response = ask_coordinator(
        cluster,
        CoordinatorKind.TXN,
        txn.transactional_id,
        "AddOffsetsToTxn",
        lambda response: response.error_code,
        deadline,
        **added_offsets(txn, txn.transactional_id),
    )
    raise_for_code(response.error_code, "AddOffsetsToTxn", f"AddOffsetsToTxn of {txn}", key=txn.transactional_id)


def _worst_code(response: Any) -> int:
    """Return the code that is the reason of a failure.

    55 (OPERATION_NOT_ATTEMPTED) says that another partition of the request failed: the code of that partition is the reason,
    but 55 alone is no success.
    """
    codes = {
        partition.partition_error_code
        for topic in response.results_by_topic_v3_and_below
        for partition in topic.results_by_partition
    }
    return max(codes - {0, OPERATION_NOT_ATTEMPTED}, key=abs, default=max(codes, default=0))
