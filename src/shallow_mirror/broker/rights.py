"""Everywhere: what a cluster lets us do, asked without doing it (the authorized operations of KIP-430)."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from shallow_mirror.broker.cluster import Cluster
from shallow_mirror.broker.cluster_metadata import CoordinatorKind
from shallow_mirror.broker.error_codes import error_name, is_forbidden
from shallow_mirror.broker.messages import call, request_class
from shallow_mirror.broker.txn import ask_coordinator
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError


class Operation(enum.IntEnum):
    """AclOperation."""

    READ = 3
    WRITE = 4
    CREATE = 5
    ALTER = 7
    DESCRIBE = 8
    DESCRIBE_CONFIGS = 10

    def __str__(self) -> str:
        return self.name.title().replace("_", "")


_CODES = frozenset(Operation)


@dataclass(frozen=True, slots=True)
class Rights:
    """On the cluster and on topics, existing or not. None where the cluster does not say: who may not describe a thing hears
    nothing of it. Without an authorizer everything is allowed.
    """

    cluster: frozenset[Operation] | None
    topics: Mapping[str, frozenset[Operation] | None]


def ask_rights(cluster: Cluster, topics: Sequence[str], deadline: Deadline) -> Rights:
    """Raises Retriable, ConfigError. Creates nothing."""
    return cluster.retrying("asking for rights", lambda one: _ask_once(cluster, topics, one), deadline)


def _ask_once(cluster: Cluster, topics: Sequence[str], deadline: Deadline) -> Rights:
    entry = request_class("Metadata").MetadataRequestTopic
    answer = call(
        cluster.any_broker(deadline),
        "Metadata",
        deadline,
        topics=[entry(topic_id=uuid.UUID(int=0), name=name) for name in topics],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    return Rights(
        _operations(answer.authorized_operations) or None,
        {one.name: _operations(one.authorized_operations) for one in answer.topics},
    )


def ask_group_rights(cluster: Cluster, group: str, deadline: Deadline) -> frozenset[Operation] | None:
    """On a group, existing or not; None where we may not describe it. Where the cluster never had a group, asking makes its topic
    for them. Raises Retriable, BrokerTooOld, ConfigError.
    """
    answer = ask_coordinator(
        cluster,
        CoordinatorKind.GROUP,
        group,
        "DescribeGroups",
        lambda one: int(one.groups[0].error_code),
        deadline,
        groups=[group],
        include_authorized_operations=True,
    ).groups[0]
    if is_forbidden(answer.error_code):
        return None
    if answer.error_code:
        raise ConfigError(f"describing group {group}: the cluster answered {error_name(answer.error_code)}")
    return _operations(answer.authorized_operations)


def _operations(codes: Collection[int] | None) -> frozenset[Operation] | None:
    return None if codes is None else frozenset(Operation(code) for code in codes if code in _CODES)
