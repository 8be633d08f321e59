"""What a Python worker keeps between tasks is limited."""

from __future__ import annotations

import time

import pytest
from tests.fakes.strict_broker import StrictCluster

from shallow_mirror.broker import Cluster, PathSpeeds
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.cluster import worker_clients
from shallow_mirror.broker.cluster.worker_clients import MOST_CLUSTERS, cluster_of_worker
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError


def client(number: int) -> ClientConfig:
    return ClientConfig.from_properties({"bootstrap.servers": f"127.0.0.1:{number}"})


def test_a_worker_asks_anew_where_it_has_met_another_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """It outlives runs, and those of a new mirror may be of that cluster."""
    monkeypatch.setattr(worker_clients, "_clusters", {})
    deadline = Deadline.after_ms(5_000, time.monotonic)
    with StrictCluster() as former, StrictCluster(cluster_id="other-cluster") as other:
        config = ClientConfig.from_properties({"bootstrap.servers": f"{former.bootstrap},{other.bootstrap}"})
        first = cluster_of_worker(config)
        assert first.cluster_id(deadline) == "fake-cluster"
        former.stop_node(1)
        with pytest.raises(RetriableError):
            first.cluster_id(deadline.sooner(300))
        second = cluster_of_worker(config)
        assert second is not first
        assert second.cluster_id(deadline) == "other-cluster"
        second.close()


def test_a_worker_follows_its_driver_to_another_cluster_at_the_same_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test or a demo has replaced it, and the tables: the first task must not fail."""
    monkeypatch.setattr(worker_clients, "_clusters", {})
    deadline = Deadline.after_ms(5_000, time.monotonic)
    with StrictCluster() as former, StrictCluster(cluster_id="other-cluster") as other:
        config = ClientConfig.from_properties({"bootstrap.servers": f"{former.bootstrap},{other.bootstrap}"})
        driver = Cluster(ClientConfig.from_properties({"bootstrap.servers": former.bootstrap}))
        known = driver.known(driver.metadata([], deadline), (), PathSpeeds(), is_new=True)
        driver.close()
        assert cluster_of_worker(config, "fake-cluster").cluster_id(deadline) == "fake-cluster"
        former.stop_node(1)
        second = cluster_of_worker(config, "other-cluster")
        assert second.cluster_id(deadline) == "other-cluster"
        assert cluster_of_worker(config, "other-cluster") is cluster_of_worker(config) is second
        former.start_node(1)
        second.learn(known)
        assert second.cluster_id(deadline) == "fake-cluster"
        second.close()


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
