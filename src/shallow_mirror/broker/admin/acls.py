"""Everywhere: permissions on a cluster, asked for without using them (the authorized operations of KIP-430)."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.net.connection import Connection
from shallow_mirror.broker.net.error_codes import is_forbidden, refusal
from shallow_mirror.broker.net.requests import call, request_class
from shallow_mirror.deadline import Deadline


class Operation(enum.IntEnum):
    """AclOperation."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10

    def __str__(self) -> str:
        return self.name.title().replace("_", "")


_CODES = frozenset(Operation)


@dataclass(frozen=True, slots=True)
class Permissions:
    """Operations that are permitted on the cluster and on topics, existing or not.

    None if the cluster does not report them: without Describe on a resource a client learns nothing of it. Without an
    authorizer everything is permitted.
    """

    cluster: frozenset[Operation] | None
    topics: Mapping[str, frozenset[Operation] | None]

    def missing_on(self, topic: str, needed: Iterable[Operation]) -> list[Operation]:
        """Return those of `needed` that are not granted, in their order; none if the cluster does not report them."""
        granted = self.topics.get(topic)
        return [] if granted is None else [operation for operation in needed if operation not in granted]


def request_permissions(cluster: Cluster, topics: Sequence[str], deadline: Deadline) -> Permissions:
    """Return the permissions. Creates nothing. Raises RetriableError, ConfigError."""
    return cluster.retrying("requesting authorized operations", lambda attempt: _ask_once(cluster, topics, attempt), deadline)


def _ask_once(cluster: Cluster, topics: Sequence[str], deadline: Deadline) -> Permissions:
    entry = request_class("Metadata").MetadataRequestTopic
    response = call(
        cluster.any_broker(deadline),
        "Metadata",
        deadline,
        topics=[entry(topic_id=uuid.UUID(int=0), name=name) for name in topics],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    return Permissions(
        _operations(response.authorized_operations) or None,
        {topic.name: _operations(topic.authorized_operations) or None for topic in response.topics},
    )


def missing_slot_permissions(cluster: Cluster, name: str, deadline: Deadline, *, with_receipts: bool = True) -> list[str]:
    """Return the missing permissions for `name` as transactional id, and as group. Raises RetriableError, BrokerTooOldError.

    Without `with_receipts`, it is no group.

    Any broker is asked, with requests that no coordinator accepts: EndTxn of an impossible producer id, and Heartbeat of an
    unknown member. Brokers check the ACL before anything else, so nothing is created, and it does not matter which broker
    coordinates, or whether the topics of transactions and groups exist or are visible.
    """
    return cluster.retrying(
        "requesting authorized operations", lambda attempt: _missing_once(cluster, name, attempt, with_receipts), deadline
    )


def _missing_once(cluster: Cluster, name: str, deadline: Deadline, with_receipts: bool) -> list[str]:
    broker = cluster.any_broker(deadline)
    end_txn_response = call(broker, "EndTxn", deadline, transactional_id=name, producer_id=-1, producer_epoch=-1, committed=False)
    codes = [("EndTxn", int(end_txn_response.error_code))]
    if with_receipts:
        codes.append(_ask_to_commit(broker, name, deadline))
    return [refusal(code, api, key=name) for api, code in codes if is_forbidden(code)]


def missing_group_permissions(cluster: Cluster, groups: Sequence[str], deadline: Deadline) -> list[str]:
    """Return the permissions to grant so that offsets of `groups` can be committed. Asked as in `missing_slot_permissions`."""
    return _missing_on_groups(cluster, groups, _ask_to_commit, deadline)


def missing_describe_permissions(cluster: Cluster, groups: Sequence[str], deadline: Deadline) -> list[str]:
    """Return the permissions to grant so that `groups` are listed: a cluster hides those that the user may not describe."""
    return _missing_on_groups(cluster, groups, _ask_to_describe, deadline)


def missing_delete_permissions(cluster: Cluster, absent_groups: Sequence[str], deadline: Deadline) -> list[str]:
    """Return the permissions to grant so that groups of these names can be deleted. There must be none: they would be deleted."""
    return _missing_on_groups(cluster, absent_groups, _ask_to_delete, deadline)


Ask = Callable[[Connection, str, Deadline], tuple[str, int]]
"""Ask any broker for something that needs a permission on a group. Return the API, and the error code."""


def _missing_on_groups(cluster: Cluster, groups: Sequence[str], ask: Ask, deadline: Deadline) -> list[str]:
    def ask_all(attempt: Deadline) -> list[str]:
        broker = cluster.any_broker(attempt)
        answers = {group: ask(broker, group, attempt) for group in groups}
        return [refusal(code, api, key=group) for group, (api, code) in answers.items() if is_forbidden(code)]

    return cluster.retrying("requesting authorized operations", ask_all, deadline)


def _ask_to_commit(broker: Connection, group: str, deadline: Deadline) -> tuple[str, int]:
    response = call(broker, "Heartbeat", deadline, group_id=group, generation_id=-1, member_id="", group_instance_id=None)
    return "Heartbeat", int(response.error_code)


def _ask_to_describe(broker: Connection, group: str, deadline: Deadline) -> tuple[str, int]:
    response = call(broker, "DescribeGroups", deadline, groups=[group], include_authorized_operations=False)
    return "DescribeGroups", int(response.groups[0].error_code)


def _ask_to_delete(broker: Connection, group: str, deadline: Deadline) -> tuple[str, int]:
    response = call(broker, "DeleteGroups", deadline, groups_names=[group])
    return "DeleteGroups", int(response.results[0].error_code)


def _operations(codes: Collection[int] | None) -> frozenset[Operation] | None:
    return None if codes is None else frozenset(Operation(code) for code in codes if code in _CODES)
