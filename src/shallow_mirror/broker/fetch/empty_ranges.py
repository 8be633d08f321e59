"""Everywhere: whether a response without batches proves that a part of a log holds none.

Kafka leaves offsets without a batch in one case only: compaction. A leader whose older segments are in remote storage, and
one that is broken, answer in the same way. So a range counts as empty only where the topic is compacted and the leader has
it on its own disk.
"""

from __future__ import annotations

from dataclasses import dataclass

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.net.error_codes import EMPTY_FETCH
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import BrokerTooOldError, ConfigError, RetriableError
from shallow_mirror.types import OffsetRange, TopicPartition

REMOTE_STORAGE = "REMOTE_STORAGE"
"""Name of the error of a range that the broker has to fetch from its remote storage; else it is EMPTY_FETCH."""

_POLICY = "cleanup.policy"
_REMOTE_STORAGE = ("remote.storage.enable", "confluent.tier.enable", "redpanda.remote.read")
"""Settings of a topic that put older segments elsewhere: Kafka's, and those of vendors' brokers that do it in their own way."""


@dataclass(frozen=True, slots=True)
class TopicStorage:
    """What the settings of a topic say of its logs. `refusal`: why they could not be read; "" where they could."""

    is_compacted: bool = False
    is_remote: bool = False
    refusal: str = ""


def topic_storage(cluster: Cluster, topic: str, deadline: Deadline) -> TopicStorage:
    """Ask for the settings of a topic (DescribeConfigs). Raises RetriableError; a refusal is an answer."""
    try:
        settings = cluster.topic_configs([topic], deadline, keys=(_POLICY, *_REMOTE_STORAGE))[topic]
    except ConfigError as error:
        return TopicStorage(refusal=str(error))
    policies = {policy.strip() for policy in settings.get(_POLICY, "").split(",")}
    is_remote = any(settings.get(name, "").lower() == "true" for name in _REMOTE_STORAGE)
    return TopicStorage("compact" in policies, is_remote)


def is_in_remote_storage(cluster: Cluster, topic_partition: TopicPartition, position: int, deadline: Deadline) -> bool | None:
    """Return whether the broker has to fetch an offset from remote storage (KIP-405); None where brokers do not report it.

    While that takes longer than `remote.fetch.max.wait.ms`, the broker answers without batches and without an error.
    Raises RetriableError.
    """
    try:
        return position < cluster.local_log_starts([topic_partition], deadline)[topic_partition]
    except BrokerTooOldError:
        return None


def remote_failure(cluster: Cluster, topic_partition: TopicPartition, position: int, deadline: Deadline) -> str | None:
    """Return why a broker may have failed to read an offset of its remote storage; None where it read its own disk.

    Raises RetriableError.
    """
    is_remote = is_in_remote_storage(cluster, topic_partition, position, deadline)
    if is_remote:
        return "the broker cannot read it from its remote storage"
    if is_remote is None:
        storage = topic_storage(cluster, topic_partition.topic, deadline)
        if storage.is_remote or storage.refusal:
            return "the broker cannot read it, perhaps from remote storage" + (f" ({storage.refusal})" if storage.refusal else "")
    return None


def reason_hole_is_unproven(
    cluster: Cluster, topic_partition: TopicPartition, offset_range: OffsetRange, storage: TopicStorage, deadline: Deadline
) -> RetriableError | None:
    """Return why responses without batches do not prove that `offset_range` is empty; None where they do.

    For REMOTE_STORAGE the broker itself waits; EMPTY_FETCH needs an operator. Raises RetriableError.
    """
    is_remote = is_in_remote_storage(cluster, topic_partition, offset_range.start, deadline)
    if is_remote:
        return _unproven(
            REMOTE_STORAGE, topic_partition, offset_range, "they are in remote storage, which the broker still waits for"
        )
    if storage.refusal:
        return _unproven(
            EMPTY_FETCH, topic_partition, offset_range, f"whether compaction removed them is not known: {storage.refusal}"
        )
    if not storage.is_compacted:
        reason = (
            "compaction cannot have removed them: cleanup.policy of the topic does not contain compact. Check the broker's "
            "log, and its remote storage if it has one"
        )
        return _unproven(EMPTY_FETCH, topic_partition, offset_range, reason)
    if is_remote is None and storage.is_remote:
        reason = (
            "they may be in remote storage: a setting of the topic says that it has some, and the broker does not report "
            "where it begins"
        )
        return _unproven(EMPTY_FETCH, topic_partition, offset_range, reason)
    return None


def _unproven(name: str, topic_partition: TopicPartition, offset_range: OffsetRange, reason: str) -> RetriableError:
    return RetriableError(
        name,
        f"the leader of {topic_partition} answers Fetch at offset {offset_range.start} without batches, though its log reaches "
        f"{offset_range.end} and beyond: {reason}",
    )
