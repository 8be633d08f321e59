"""Workers of these tests keep their clusters for one test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fakes.clients import SleepingClock
from tests.fakes.strict_broker import StrictCluster
from tests.sinks.two_strict_clusters import Clusters
from tests.support.own_worker_clients import own_worker_clients


@pytest.fixture
def clusters() -> Iterator[Clusters]:
    with StrictCluster() as source, StrictCluster() as target, own_worker_clients():
        yield Clusters(source, target)


@pytest.fixture
def clock() -> SleepingClock:
    return SleepingClock()
