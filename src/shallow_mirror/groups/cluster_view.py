"""Driver and reading commands: one cluster as groups need it: their offsets, and the logs these are offsets of."""

from __future__ import annotations

import time
from collections.abc import Iterable

from shallow_mirror.broker.client_config import ClientConfig
from shallow_mirror.broker.cluster import Cluster
from shallow_mirror.broker.groups import GroupAdmin
from shallow_mirror.deadline import Deadline
from shallow_mirror.types import IsolationLevel, TopicPartition

EARLIEST, LATEST = -2, -1


class ClusterView:
    """Connects when it is first asked. Not for several threads. Raises Retriable, ConfigError."""

    def __init__(self, client: ClientConfig, where: str, timeout_s: float | None = None) -> None:
        """`where` names the cluster in errors; `timeout_s` of each question, that of a request by default."""
        self._client, self._where = client, where
        self._timeout_s = timeout_s or client.request_timeout_ms / 1000
        self._admin: GroupAdmin | None = None
        self._cluster: Cluster | None = None

    @property
    def admin(self) -> GroupAdmin:
        if self._admin is None:
            self._admin = GroupAdmin(self._client, self._where, timeout_s=self._timeout_s)
        return self._admin

    @property
    def cluster(self) -> Cluster:
        if self._cluster is None:
            self._cluster = Cluster(self._client)
        return self._cluster

    def close(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
        self._admin = self._cluster = None

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        """Of topics that exist."""
        wanted = sorted(set(topics))
        listed = self.cluster.metadata(wanted, self._deadline()).topics if wanted else {}
        return {name: one.topic_id for name, one in listed.items() if one.error_code == 0}

    def offsets(self, places: Iterable[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
        """First or last offsets of logs that exist."""
        wanted = set(places)
        listed = self.cluster.metadata(sorted({one.topic for one in wanted}), self._deadline()) if wanted else None
        there = sorted(one for one in wanted if listed is not None and listed.has(one))
        asked = dict.fromkeys(there, timestamp)
        found = self.cluster.list_offsets(asked, IsolationLevel.READ_UNCOMMITTED, self._deadline()) if asked else {}
        return {place: one.offset for place, one in found.items()}

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(self._timeout_s * 1000, time.monotonic)
