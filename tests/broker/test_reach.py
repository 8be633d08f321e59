"""The first question to a cluster: its brokers, or soon one line that says which cluster does not answer, and what to look at."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest
from tests.fakes.clients import SleepingClock
from tests.fakes.strict_broker import StrictCluster

from shallow_mirror.broker.client_config import ClientConfig
from shallow_mirror.broker.cluster import Cluster
from shallow_mirror.broker.reach import REACH_MS, reach
from shallow_mirror.errors import Retriable


def cluster_at(bootstrap: str, clock: SleepingClock) -> Cluster:
    return Cluster(ClientConfig.from_properties({"bootstrap.servers": bootstrap}), clock=clock, sleep=clock.sleep)


def test_a_cluster_that_answers_says_its_id_and_brokers() -> None:
    clock = SleepingClock()
    with StrictCluster(nodes=2, cluster_id="east-id") as fake, closing(cluster_at(fake.bootstrap, clock)) as cluster:
        found = reach(cluster, "source cluster east", clock.deadline())
    assert (found.cluster_id, sorted(found.brokers)) == ("east-id", [1, 2])


def test_a_cluster_that_does_not_answer_is_named_with_its_remedy_long_before_patience_is_over() -> None:
    clock = SleepingClock()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        nowhere = f"127.0.0.1:{taken.getsockname()[1]}"
        began = clock()
        with closing(cluster_at(nowhere, clock)) as cluster, pytest.raises(Retriable) as raised:
            reach(cluster, "source cluster east", clock.deadline(10 * REACH_MS))
    assert clock() - began == pytest.approx(REACH_MS / 1000)
    assert str(raised.value).startswith("NETWORK_EXCEPTION: the source cluster east does not answer: gave up asking for metadata")
    assert f"cannot connect to {nowhere}" in str(raised.value)
    assert "check its bootstrap.servers" in str(raised.value)
