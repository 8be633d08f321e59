"""What a batch query of `kafka-batches` plans, with a cluster in memory."""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.support.planned_sources import A, B, FakeCluster, UnsampledPlanner, _cluster, _topic

from shallow_mirror.errors import RetriableError
from shallow_mirror.streaming.sources import kafka_batches
from shallow_mirror.types import SourcePartition

OPTIONS = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.request.timeout.ms": "1000", "subscribe": "orders"}


class ClosableCluster(FakeCluster):
    def close(self) -> None:
        pass


def planned(monkeypatch: pytest.MonkeyPatch, cluster: ClosableCluster) -> dict[SourcePartition, tuple[int, int]]:
    monkeypatch.setattr(kafka_batches, "Cluster", lambda _client: cluster)
    monkeypatch.setattr(kafka_batches, "SourceOffsets", UnsampledPlanner)
    slots: Any = kafka_batches.BatchReader(OPTIONS).partitions()
    return {planned.source: (planned.start, planned.end) for slot in slots for planned in slot.ranges}


def leaderless() -> ClosableCluster:
    cluster = _cluster()
    cluster.topics["orders"] = _topic("orders", "idA", [-1, 1])
    return ClosableCluster(cluster.topics, cluster.offsets)


def test_a_partition_that_has_no_leader_for_a_moment_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = leaderless()
    cluster.on_pause = lambda: cluster.topics.update(orders=_topic("orders", "idA", [1, 1]))
    assert planned(monkeypatch, cluster) == {A: (10, 100), B: (0, 50)}


def test_a_query_is_not_answered_without_a_partition_that_has_no_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = leaderless()
    cluster.on_pause = lambda: time.sleep(0.2)
    with pytest.raises(RetriableError, match="orders-0 has no leader"):
        planned(monkeypatch, cluster)
