"""The package's client of a strict fake cluster of two nodes, for the tests that want answers no real broker gives."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fakes.clients import SleepingClock, client_of
from tests.fakes.strict_broker import StrictCluster

from shallow_mirror.broker import Cluster


@pytest.fixture
def fake() -> Iterator[StrictCluster]:
    """Topic `t`: partitions 0 and 2 are led by node 1, partition 1 by node 2."""
    with StrictCluster(nodes=2) as cluster:
        cluster.create_topic("t", 3)
        yield cluster


@pytest.fixture
def clock() -> SleepingClock:
    return SleepingClock()


@pytest.fixture
def client(fake: StrictCluster, clock: SleepingClock) -> Iterator[Cluster]:
    cluster = client_of(fake, clock)
    yield cluster
    cluster.close()
