"""Driver and everywhere: offsets of groups that a transaction commits. They are read by others once it is committed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.cluster_metadata import CoordinatorKind
from shallow_mirror.broker.net.error_codes import TOPIC_AUTHORIZATION_FAILED, UNKNOWN_TOPIC_OR_PARTITION
from shallow_mirror.broker.net.requests import request_class
from shallow_mirror.broker.produce.txn.coordinator_requests import BegunRequest, ask_coordinator, raise_for_code
from shallow_mirror.broker.produce.txn.txn_additions import added_offsets
from shallow_mirror.deadline import Deadline
from shallow_mirror.types import SlotTxn, TopicPartition

_METADATA_TOO_LARGE, _GROUP_AUTHORIZATION_FAILED = 12, 30
_OF_OFFSETS = frozenset({UNKNOWN_TOPIC_OR_PARTITION, _METADATA_TOO_LARGE, TOPIC_AUTHORIZATION_FAILED})
"""Codes of one offset; all others are those of its group or of the transaction."""


def requested_offsets(api: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> list[Any]:
    """Return the topics of a request of OffsetCommit or TxnOffsetCommit. `offsets` with their metadata."""
    topic = getattr(request_class(api), f"{api}RequestTopic")
    partition = getattr(topic, f"{api}RequestPartition")
    by_topic: dict[str, list[Any]] = {}
    for topic_partition, (offset, metadata) in offsets.items():
        requested = partition(
            partition_index=topic_partition.partition,
            committed_offset=offset,
            committed_leader_epoch=-1,  # the epochs of one cluster mean nothing on another
            committed_metadata=metadata,
        )
        by_topic.setdefault(topic_partition.topic, []).append(requested)
    return [topic(name=name, partitions=partitions) for name, partitions in by_topic.items()]


def offset_commit_fields(txn: SlotTxn, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> dict[str, Any]:
    """Return the fields of TxnOffsetCommit. `offsets` with their metadata."""
    return {
        "transactional_id": txn.transactional_id,
        "group_id": group,
        "producer_id": txn.producer_id,
        "producer_epoch": txn.producer_epoch,
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": requested_offsets("TxnOffsetCommit", offsets),
    }


def add_group_offsets(
    cluster: Cluster, txn: SlotTxn, offsets: Mapping[str, Mapping[TopicPartition, tuple[int, str]]], deadline: Deadline
) -> dict[str, dict[TopicPartition, int]]:
    """Add offsets, with their metadata, to the transaction, by group. Return the error codes of those that are refused.

    The broker does not look at the members of a group: whoever commits the transaction has to. Requests are on their way
    together. Raises ProducerEpochFencedError, RetriableError, ConfigError.
    """
    name = txn.transactional_id
    additions = {
        group: BegunRequest(cluster, CoordinatorKind.TXN, name, "AddOffsetsToTxn", added_offsets(txn, group), deadline)
        for group in offsets
    }
    refused: dict[str, dict[TopicPartition, int]] = {}
    for group, addition in additions.items():
        response = ask_coordinator(
            cluster,
            addition.kind,
            name,
            addition.api,
            lambda response: response.error_code,
            deadline,
            begun=addition,
            **addition.fields,
        )
        if response.error_code == _GROUP_AUTHORIZATION_FAILED:
            refused[group] = dict.fromkeys(offsets[group], _GROUP_AUTHORIZATION_FAILED)
        else:
            raise_for_code(response.error_code, addition.api, f"{addition.api} of {txn}: group {group}", key=name)
    commits = {
        group: BegunRequest(
            cluster, CoordinatorKind.GROUP, group, "TxnOffsetCommit", offset_commit_fields(txn, group, offsets[group]), deadline
        )
        for group in offsets
        if group not in refused
    }
    for group, commit in commits.items():
        response = ask_coordinator(cluster, commit.kind, group, commit.api, _code_of_all, deadline, begun=commit, **commit.fields)
        if (code := _code_of_all(response)) != _GROUP_AUTHORIZATION_FAILED:
            raise_for_code(code, commit.api, f"{commit.api} of {txn}: group {group}", key=name)
        if codes := {place: code for place, code in _codes(response).items() if code}:
            refused[group] = codes
    return refused


def _codes(response: Any) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic.name, partition.partition_index): partition.error_code
        for topic in response.topics
        for partition in topic.partitions
    }


def _code_of_all(response: Any) -> int:
    return next((code for code in _codes(response).values() if code and code not in _OF_OFFSETS), 0)
