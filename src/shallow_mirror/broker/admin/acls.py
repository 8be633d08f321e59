"""Everywhere: what a cluster lets us do, asked without doing it (the authorized operations of KIP-430)."""

from __future__ import annotations

import enum
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.net.error_codes import is_forbidden, refusal
from shallow_mirror.broker.net.requests import call, request_class
from shallow_mirror.deadline import Deadline


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
    nothing of it, and who may hears of that at least. Without an authorizer everything is allowed.
    """

    cluster: frozenset[Operation] | None
    topics: Mapping[str, frozenset[Operation] | None]

    def missing_on(self, topic: str, needed: Iterable[Operation]) -> list[Operation]:
        """Those of `needed` that we do not have, in their order; none where the cluster does not say."""
        held = self.topics.get(topic)
        return [] if held is None else [one for one in needed if one not in held]


def ask_rights(cluster: Cluster, topics: Sequence[str], deadline: Deadline) -> Rights:
    """Raises RetriableError, ConfigError. Creates nothing."""
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
        {one.name: _operations(one.authorized_operations) or None for one in answer.topics},
    )


def missing_slot_rights(cluster: Cluster, name: str, deadline: Deadline) -> list[str]:
    """What to grant so that `name` can be a transactional id and a group. Raises RetriableError, BrokerTooOldError.

    Asked by what no coordinator accepts, of any broker: the end of a transaction of a producer that nobody is, and the heartbeat
    of a member that nobody is. Brokers look at the right before anything else, so nothing is created, and it does not matter who
    coordinates, or whether the topics of transactions and groups exist or are shown to us.
    """
    return cluster.retrying("asking for rights", lambda one: _missing_once(cluster, name, one), deadline)


def _missing_once(cluster: Cluster, name: str, deadline: Deadline) -> list[str]:
    broker = cluster.any_broker(deadline)
    ended = call(broker, "EndTxn", deadline, transactional_id=name, producer_id=-1, producer_epoch=-1, committed=False)
    beaten = call(broker, "Heartbeat", deadline, group_id=name, generation_id=-1, member_id="", group_instance_id=None)
    codes = {"EndTxn": int(ended.error_code), "Heartbeat": int(beaten.error_code)}
    return [refusal(code, api, key=name) for api, code in codes.items() if is_forbidden(code)]


def _operations(codes: Collection[int] | None) -> frozenset[Operation] | None:
    return None if codes is None else frozenset(Operation(code) for code in codes if code in _CODES)
