"""What the brokers of one fake cluster know together: topics, leaders, coordinators. Each method takes the cluster's lock."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

from tests.fakes.coordinators import MAX_METADATA_BYTES, MAX_TIMEOUT_MS, OFFSETS_PLACE, Groups, PartitionKey, Transactions
from tests.fakes.partition_log import PartitionLog
from tests.fakes.record_rules import DEFAULT_CONFIGS, Header, RefusedError

GROUP, TXN = 0, 1
Address = tuple[str, int]
AclKey = tuple[int, str, int]
"""Kind, name and match of resources."""


class ClusterState:
    def __init__(self, cluster_id: str, now_ms: Callable[[], int] = lambda: int(time.time() * 1000)) -> None:
        self.cluster_id, self.now_ms = cluster_id, now_ms
        self.lock = threading.Condition(threading.RLock())
        self.nodes: dict[int, Address] = {}
        self.broker_configs = {
            "transaction.max.timeout.ms": str(MAX_TIMEOUT_MS),
            "default.replication.factor": "1",
            "offset.metadata.max.bytes": str(MAX_METADATA_BYTES),
        }
        self.topic_ids: dict[str, uuid.UUID] = {}
        self.logs: dict[PartitionKey, PartitionLog] = {}
        self.groups = Groups(lambda: int(self.broker_configs.get("offset.metadata.max.bytes", MAX_METADATA_BYTES)))
        self.transactions = Transactions(
            self.logs, self.groups, now_ms, lambda: int(self.broker_configs["transaction.max.timeout.ms"])
        )
        self.coordinator_nodes = {GROUP: 1, TXN: 1}
        self.coordinators_exist = True
        self.is_newest = True
        """Offers what not every supported broker does: Fetch by topic id, OffsetFetch of several groups."""
        self.not_offered: frozenset[str] = frozenset()
        """Requests that an older broker does not know."""
        self.auto_created: list[str] = []
        self.controller_id: int | None = None
        """The only node that takes administrative requests, -1: none does now. None: all nodes do."""
        self.topic_policy: Callable[[str, dict[str, str]], str | None] = lambda _name, _configs: None
        """Returns why a topic with settings may not be created, as create.topic.policy.class.name."""
        self.unknown_configs: frozenset[str] = frozenset()
        """Settings of topics that an older broker does not know."""
        self.acls: dict[AclKey, list[dict[str, Any]]] | None = None
        """None: no authorizer."""
        self.quotas: dict[tuple[tuple[str, str | None], ...], dict[str, float]] = {}
        """Values by key, by entity types and names in order of the types."""
        self.is_stopping = False

    def create_topic(self, name: str, partitions: int = 1, *, topic_id: uuid.UUID | None = None, **configs: str) -> None:
        """Leaders go round the nodes."""
        with self.lock:
            assert name not in self.topic_ids
            self.topic_ids[name] = topic_id or uuid.uuid4()
            nodes = sorted(self.nodes)
            settings = {**DEFAULT_CONFIGS, **configs}
            for partition in range(partitions):
                self.logs[name, partition] = PartitionLog(nodes[partition % len(nodes)], settings)

    def delete_topic(self, name: str) -> None:
        with self.lock:
            del self.topic_ids[name]
            for topic_partition in [topic_partition for topic_partition in self.logs if topic_partition[0] == name]:
                del self.logs[topic_partition]
            self.groups.forget_topic(name)

    def log(self, topic: str, partition: int = 0) -> PartitionLog:
        return self.logs[topic, partition]

    def seed(self, topic_partition: PartitionKey, *batches: bytes) -> None:
        with self.lock:
            self.logs[topic_partition].seed(*batches)
            self.lock.notify_all()

    def move_leader(self, topic_partition: PartitionKey, node_id: int) -> None:
        with self.lock:
            self.logs[topic_partition].move(node_id)

    def move_coordinator(self, kind: int, node_id: int) -> None:
        with self.lock:
            self.coordinator_nodes[kind] = node_id
            self.transactions.coordinator_epoch += kind == TXN

    def hold_markers(self) -> None:
        with self.lock:
            self.transactions.markers_held = True

    def write_markers(self) -> None:
        with self.lock:
            self.transactions.write_markers()
            self.lock.notify_all()

    def time_out(self, transactional_id: str) -> None:
        """Abort an open transaction that lasted too long, as the coordinator does."""
        with self.lock:
            self.transactions.time_out(transactional_id)

    def forget_txn(self, transactional_id: str) -> None:
        """Remove an id that was not used for long, as the coordinator does; markers that it has still to write are never written."""
        with self.lock:
            del self.transactions.txns[transactional_id]

    # --- for the handlers, which hold the lock ---

    def require_coordinator(self, kind: int, node_id: int) -> None:
        if not self.coordinators_exist or self.coordinator_nodes[kind] != node_id:
            raise RefusedError(16)

    def log_of(self, topic_partition: PartitionKey) -> PartitionLog:
        if topic_partition not in self.logs:
            raise RefusedError(3)
        return self.logs[topic_partition]

    def verify_offsets_txn(self, transactional_id: str, producer_id: int, producer_epoch: int) -> None:
        if not self.groups.has_open_txn(producer_id, producer_epoch):
            self._verify(transactional_id, producer_id, producer_epoch, OFFSETS_PLACE)

    def verify_partition(self, transactional_id: str, header: Header, topic_partition: PartitionKey) -> None:
        """Ask the coordinator, as leaders do before the first batch of a transaction."""
        log = self.logs[topic_partition]
        if not log.has_open_txn(header.producer_id, header.producer_epoch):
            log.begin_verification(header)
            self._verify(transactional_id, header.producer_id, header.producer_epoch, topic_partition)

    def _verify(self, transactional_id: str, producer_id: int, producer_epoch: int, topic_partition: PartitionKey) -> None:
        """As leaders tell producers before KIP-890 part 2."""
        try:
            self.transactions.verify(transactional_id, producer_id, producer_epoch, topic_partition)
        except RefusedError as refused:
            raise RefusedError({120: 48, 90: 47, 51: 19}.get(refused.code, refused.code)) from refused
