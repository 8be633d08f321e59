"""Driver: transactions of clients that are open at the cluster that was left: what they wrote is late once they commit."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

from shallow_mirror.broker import Cluster, ProducerState
from shallow_mirror.broker.cluster import reach
from shallow_mirror.broker.produce.txn import list_transactional_ids
from shallow_mirror.config.migration_config import MigrationFiles, WaveSettings
from shallow_mirror.deadline import request_deadline
from shallow_mirror.errors import BrokerTooOldError
from shallow_mirror.migration.late_writes import Passed, copying_mirror
from shallow_mirror.migration.log_ends import list_log_ends
from shallow_mirror.migration.observations import open_partitions
from shallow_mirror.migration.state import WaveState
from shallow_mirror.migration.steps import Direction
from shallow_mirror.sinks.kafka import id_count, transactional_ids
from shallow_mirror.types import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """Begins at offset `start`. `transactional_id` None: brokers do not tell it."""

    topic_partition: TopicPartition
    start: int
    transactional_id: str | None = None

    def document(self) -> dict[str, Any]:
        name = self.topic_partition
        return {
            "topic": name.topic,
            "partition": name.partition,
            "start": self.start,
            "transactional_id": self.transactional_id,
        }

    def __str__(self) -> str:
        """Return the place and the producer, for sentences."""
        producer = "" if self.transactional_id is None else f" by {self.transactional_id}"
        return f"{self.topic_partition} from offset {self.start:,}: a transaction{producer} is open"


def find_open_transactions(files: MigrationFiles, settings: WaveSettings, wave: WaveState) -> list[OpenTransaction]:
    """Return those in topics that a wave has moved, without those of its reverse mirror. Raises as `find_late_writes`."""
    passed = Passed.of(wave)
    if passed is None:
        return []
    left = copying_mirror(files, settings, passed.direction)
    reverse = files.reverses.get(settings.name) if passed.direction is Direction.MOVE else None
    own = () if reverse is None else transactional_ids(reverse.mirror, id_count(reverse.write.slots))
    with closing(Cluster(left.source.client)) as cluster:
        reach(cluster, left.source_cluster_name, request_deadline())
        ends = list_log_ends(cluster, sorted({name.topic for name in passed.ends}), request_deadline())
        is_open = open_partitions(ends)
        known = _transactional_ids(cluster, is_open)
    return [
        OpenTransaction(topic_partition=name, start=ends[name].stable, transactional_id=transactional_id)
        for name in is_open
        # A leader may remember no producer: the transaction has ended since, or the broker tells none.
        for transactional_id in known.get(name, [None])
        if transactional_id not in own
    ]


def _transactional_ids(cluster: Cluster, partitions: list[TopicPartition]) -> dict[TopicPartition, list[str | None]]:
    """Return who has transactions open there. Empty before Kafka 2.8; None: before 3.0, or the user may not describe it."""
    try:
        remembered = cluster.describe_producers(partitions, request_deadline()) if partitions else {}
    except BrokerTooOldError:
        return {}
    holders: dict[TopicPartition, list[ProducerState]] = {
        name: [state for state in states if state.current_txn_start_offset >= 0] for name, states in remembered.items()
    }
    ids = {state.producer_id for states in holders.values() for state in states}
    try:
        names = list_transactional_ids(cluster, ids, request_deadline())
    except BrokerTooOldError:
        names = {}
    return {name: [names.get(state.producer_id) for state in states] for name, states in holders.items() if states}
