"""Everywhere: the receipt of a transaction: a group offset that exists only if the transaction was committed."""

from __future__ import annotations

import enum
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.cluster_metadata import CoordinatorKind
from shallow_mirror.broker.net.begun_call import BEGUN
from shallow_mirror.broker.net.error_codes import error_name
from shallow_mirror.broker.net.requests import request_class
from shallow_mirror.broker.produce.txn.coordinator_requests import BegunRequest, ask_coordinator, raise_for_code
from shallow_mirror.broker.produce.txn.txn_offsets import offset_commit_fields
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import (
    ConfigError,
)
from shallow_mirror.types import SlotTxn, TopicPartition

RECEIPT_VERSION = 1

METADATA_LIMIT = "offset.metadata.max.bytes"
"""The setting of brokers that bounds a receipt: it is the metadata of an offset."""
_METADATA_TOO_LARGE = 12


_UNSTABLE_OFFSET_COMMIT = 88


class PendingReceipt(enum.Enum):
    PENDING = "the markers of the group's partition are not written yet"


@dataclass(frozen=True, slots=True)
class Receipt:
    """A committed receipt. It names the transaction that it was written in."""

    producer_id: int
    producer_epoch: int
    decision: int
    map_id: str
    """Of the offset map that the decision is in."""
    run_id: str
    written_at_ms: int | None = None
    """None of an earlier release."""
    micro_batch: Mapping[str, str | int] = field(default_factory=dict)
    """What a DataFrame sink wrote in the transaction; empty of a mirror, and of an earlier release."""


def begin_receipt(
    cluster: Cluster,
    txn: SlotTxn,
    topic_partition: TopicPartition,
    *,
    decision: int,
    map_id: str,
    run_id: str,
    deadline: Deadline,
    at_ms: int | None = None,
    micro_batch: Mapping[str, str | int] | None = None,
    purpose: str = BEGUN,
) -> BegunRequest:
    """Send a group offset that exists only if the transaction commits. Group: the transactional id; offset: the decision.

    The group was added to the transaction before (`add_partitions_and_offsets`). `finish_receipt` waits until it is written.
    Batches of the transaction may still be on their way: a receipt exists once all of it is committed, in any order of
    arrival. `at_ms`: the time, for people. `micro_batch`: as `Receipt` has it. `purpose`: of the connection, as
    `ProducePipeline.purpose_at` says it if batches are on their way.
    """
    receipt = Receipt(
        producer_id=txn.producer_id,
        producer_epoch=txn.producer_epoch,
        decision=decision,
        map_id=map_id,
        run_id=run_id,
        written_at_ms=at_ms,
        micro_batch=micro_batch or {},
    )
    text = _receipt_text(receipt)
    fields = offset_commit_fields(txn, txn.transactional_id, {topic_partition: (decision, text)})
    return BegunRequest(
        cluster, CoordinatorKind.GROUP, txn.transactional_id, "TxnOffsetCommit", fields, deadline, purpose=purpose
    )


def _receipt_text(receipt: Receipt) -> str:
    metadata: dict[str, Any] = {
        "v": RECEIPT_VERSION,
        "producer_id": receipt.producer_id,
        "producer_epoch": receipt.producer_epoch,
        "decision": receipt.decision,
        "map": receipt.map_id,
        "run": receipt.run_id,
    }
    if receipt.written_at_ms is not None:
        metadata["at_ms"] = receipt.written_at_ms
    if receipt.micro_batch:
        metadata["micro_batch"] = dict(receipt.micro_batch)
    return json.dumps(metadata, separators=(",", ":"))


_LONGEST_NUMBER, _LONGEST_ID = 2**63 - 1, str(uuid.UUID(int=0))  # ids of maps and runs are UUIDs
MAX_RECEIPT_BYTES = len(
    _receipt_text(
        Receipt(
            producer_id=_LONGEST_NUMBER,
            producer_epoch=2**15 - 1,
            decision=_LONGEST_NUMBER,
            map_id=_LONGEST_ID,
            run_id=_LONGEST_ID,
            written_at_ms=_LONGEST_NUMBER,
        )
    )
)
"""No receipt of a mirror is longer; those of a DataFrame sink name its micro-batch as well."""


def metadata_limit_problem(needed_bytes: int = MAX_RECEIPT_BYTES) -> str:
    """Return the end of a sentence about brokers whose `offset.metadata.max.bytes` is too small for receipts."""
    return (
        f"receipts of transactions need up to {needed_bytes} bytes: set {METADATA_LIMIT} to {needed_bytes} or more on all "
        "brokers of the target (the default is 4096), and restart them"
    )


def receipt_limit_problem(settings: Mapping[str, str]) -> str | None:
    """Return why a broker with these settings takes no receipts of a mirror; None if it does, or does not report it."""
    limit = settings.get(METADATA_LIMIT)
    if limit is None or int(limit) >= MAX_RECEIPT_BYTES:
        return None
    return f"has {METADATA_LIMIT}={limit}: {metadata_limit_problem()}"


def finish_receipt(
    cluster: Cluster, txn: SlotTxn, topic_partition: TopicPartition, begun: BegunRequest, deadline: Deadline
) -> None:
    """Wait until a receipt is written; it is sent again if that failed. Raises RetriableError, ConfigError."""
    response = ask_coordinator(
        cluster,
        begun.kind,
        begun.key,
        begun.api,
        lambda response: response.topics[0].partitions[0].error_code,
        deadline,
        begun=begun,
        **begun.fields,
    )
    code = response.topics[0].partitions[0].error_code
    what = f"receipt of {txn} on {topic_partition}"
    if code == _METADATA_TOO_LARGE:
        length = len(begun.fields["topics"][0].partitions[0].committed_metadata)
        problem = metadata_limit_problem(max(length, MAX_RECEIPT_BYTES))
        raise ConfigError(f"{what}: the target answered {error_name(code)}: {problem}")
    raise_for_code(code, "TxnOffsetCommit", what, topic=topic_partition.topic, key=txn.transactional_id)


def read_receipt(
    cluster: Cluster, transactional_id: str, topic_partition: TopicPartition, deadline: Deadline
) -> Receipt | PendingReceipt | None:
    """Return the receipt; None if there is none (never written, or expired)."""
    topic = request_class("OffsetFetch").OffsetFetchRequestTopic
    topics = [topic(name=topic_partition.topic, partition_indexes=[topic_partition.partition])]
    # The stable offset: without it, a broker returns the offset in front of a transaction whose markers are being written.
    committed = _fetch_offsets(cluster, transactional_id, topics, deadline, require_stable=True)[0].partitions[0]
    if committed.error_code == _UNSTABLE_OFFSET_COMMIT:
        return PendingReceipt.PENDING
    what = f"reading the receipt of {transactional_id} on {topic_partition}"
    raise_for_code(committed.error_code, "OffsetFetch", what, topic=topic_partition.topic, key=transactional_id)
    if committed.committed_offset < 0:
        return None
    return _parse_receipt(committed.metadata or "", transactional_id)


def begin_read_receipts(cluster: Cluster, transactional_id: str, deadline: Deadline) -> BegunRequest:
    """Send the request of `read_receipts`."""
    fields = {"group_id": transactional_id, "topics": None, "require_stable": False}
    return BegunRequest(cluster, CoordinatorKind.GROUP, transactional_id, "OffsetFetch", fields, deadline)


def read_receipts(
    cluster: Cluster, transactional_id: str, deadline: Deadline, *, begun: BegunRequest | None = None
) -> list[Receipt]:
    """Return every committed receipt of the group, without those that are pending. `begun`: the request was sent already."""
    topics = _fetch_offsets(cluster, transactional_id, None, deadline, require_stable=False, begun=begun)
    return [_parse_receipt(partition.metadata or "", transactional_id) for topic in topics for partition in topic.partitions]


def _fetch_offsets(
    cluster: Cluster,
    group: str,
    topics: list[Any] | None,
    deadline: Deadline,
    *,
    require_stable: bool,
    begun: BegunRequest | None = None,
) -> list[Any]:
    """Return topics with committed offsets. `topics`: None for all that the group has."""
    response = ask_coordinator(
        cluster,
        CoordinatorKind.GROUP,
        group,
        "OffsetFetch",
        lambda response: response.error_code,
        deadline,
        begun=begun,
        group_id=group,
        topics=topics,
        require_stable=require_stable,
    )
    raise_for_code(response.error_code, "OffsetFetch", f"reading the receipt of {group}", key=group)
    answered: list[Any] = response.topics
    return answered


def _parse_receipt(metadata: str, transactional_id: str) -> Receipt:
    try:
        fields = json.loads(metadata)
        if fields["v"] != RECEIPT_VERSION:
            raise ValueError(f"version {fields['v']}")
        return Receipt(
            producer_id=int(fields["producer_id"]),
            producer_epoch=int(fields["producer_epoch"]),
            decision=int(fields["decision"]),
            map_id=str(fields["map"]),
            run_id=str(fields["run"]),
            written_at_ms=int(fields["at_ms"]) if "at_ms" in fields else None,
            micro_batch=dict(fields.get("micro_batch", {})),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"consumer group {transactional_id} on the target holds an offset that is not a receipt of a mirror or sink "
            f"({error}): another application uses this group id; give the mirror or sink another name"
        ) from error


def is_receipt(metadata: str) -> bool:
    """Return whether an offset was committed by a mirror, for itself: it is no consumer's position."""
    try:
        _parse_receipt(metadata, "")
    except ConfigError:
        return False
    return True
