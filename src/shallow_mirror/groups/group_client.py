"""Driver and reading commands: the groups of one cluster, their offsets, and the logs these are offsets of."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping

from shallow_mirror.broker import Cluster, CommittedOffset, ConsumerGroups, ListedGroup
from shallow_mirror.broker.admin import Operation, request_permissions
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.cluster import reach
from shallow_mirror.broker.net import UNKNOWN_TOPIC_OR_PARTITION, error_name
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.types import LATEST_TIMESTAMP, IsolationLevel, TopicPartition

GROUP_LOG = "__consumer_offsets"
"""The topic in which coordinators log what groups commit."""


class GroupClient:
    """Connect at the first request. Not thread-safe. Raises RetriableError, ConfigError."""

    def __init__(self, client: ClientConfig, where: str, timeout_s: float | None = None) -> None:
        """`where` names the cluster in errors; `timeout_s` of each request, at most that of a request."""
        self._cluster, self._where = Cluster(client), where
        request_s = client.request_timeout_ms / 1000
        self._timeout_s = request_s if timeout_s is None else min(timeout_s, request_s)
        self._groups = ConsumerGroups(self._cluster, where)

    def close(self) -> None:
        self._cluster.close()

    def cluster_id(self) -> str:
        """Return the id. Raises RetriableError, with what to check, where the cluster does not answer at all."""
        return reach(self._cluster, self._where, self._deadline()).cluster_id

    def listed(self) -> dict[str, ListedGroup]:
        return self._groups.listed(self._deadline())

    def may_hide_groups(self) -> bool:
        """Return whether `listed` leaves out groups without Describe permission: who may Describe the cluster sees all."""
        return Operation.DESCRIBE not in (request_permissions(self._cluster, [], self._deadline()).cluster or ())

    def committed(self, groups: Iterable[str], *, waits_for_txns: bool = True) -> dict[str, tuple[CommittedOffset, ...]]:
        """Return the offsets of each group. `waits_for_txns`: as `ConsumerGroups.committed`."""
        return {group: self._groups.committed(group, self._deadline(), waits_for_txns=waits_for_txns) for group in groups}

    def clients(self, group: str) -> tuple[str, ...]:
        return self._groups.clients(group, self._deadline())

    def commit(self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> dict[TopicPartition, str]:
        return self._groups.commit(group, offsets, self._deadline())

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Return the ids of topics that exist."""
        wanted = sorted(set(topics))
        listed = self._cluster.metadata(wanted, self._deadline()).topics if wanted else {}
        return {name: topic.topic_id for name, topic in listed.items() if topic.error_code == 0}

    def offsets(self, topic_partitions: Collection[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
        """Return the first or last offsets of logs that exist."""
        topics = sorted({topic_partition.topic for topic_partition in topic_partitions})
        if not topics:
            return {}
        metadata = self._cluster.metadata(topics, self._deadline())
        existing = sorted(topic_partition for topic_partition in topic_partitions if metadata.has(topic_partition))
        if not existing:
            return {}
        timestamps = dict.fromkeys(existing, timestamp)
        listed = self._cluster.list_offsets(timestamps, IsolationLevel.READ_UNCOMMITTED, self._deadline())
        return {topic_partition: log.offset for topic_partition, log in listed.items()}

    def group_log_ends(self) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """Return the last stable offsets of the partitions of `__consumer_offsets`, and then their high watermarks.

        Raises ConfigError where the cluster does not show that topic.
        """
        topic = self._cluster.metadata([GROUP_LOG], self._deadline()).topics.get(GROUP_LOG)
        if topic is None or topic.error_code:
            code = UNKNOWN_TOPIC_OR_PARTITION if topic is None else topic.error_code
            raise ConfigError(f"{self._where}: {GROUP_LOG}: {error_name(code)}")
        latest = {TopicPartition(GROUP_LOG, partition): LATEST_TIMESTAMP for partition in topic.partitions}
        stable, visible = (
            {
                topic_partition: log.offset
                for topic_partition, log in self._cluster.list_offsets(latest, isolation, self._deadline()).items()
            }
            for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
        )
        return stable, visible

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(self._timeout_s * 1000, time.monotonic)
