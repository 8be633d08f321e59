"""What a Python worker keeps between tasks is limited."""

from __future__ import annotations

import pytest

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.cluster import worker_clients
from shallow_mirror.broker.cluster.worker_clients import MOST_CLUSTERS, cluster_of_worker


def client(number: int) -> ClientConfig:
    return ClientConfig.from_properties({"bootstrap.servers": f"127.0.0.1:{number}"})


def test_a_worker_closes_the_cluster_that_it_has_not_used_for_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_clients, "_clusters", {})
    closed: list[Cluster] = []
    monkeypatch.setattr(Cluster, "close", lambda cluster: closed.append(cluster))
    clusters = [cluster_of_worker(client(number)) for number in range(1, MOST_CLUSTERS + 1)]
    assert cluster_of_worker(client(1)) is clusters[0]
    assert closed == []
    cluster_of_worker(client(MOST_CLUSTERS + 1))
    assert closed == [clusters[1]]
    assert cluster_of_worker(client(1)) is clusters[0]
    assert cluster_of_worker(client(2)) is not clusters[1]
    assert closed == clusters[1:3]
