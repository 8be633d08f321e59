"""Workers of these tests keep their clusters for one test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.fakes.clients import SleepingClock
from tests.fakes.strict_broker import StrictCluster
from tests.sinks.two_strict_clusters import Clusters

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import worker_clients


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clusters]:
    kept: dict[Any, Cluster] = {}
    monkeypatch.setattr(worker_clients, "_clusters", kept)
    monkeypatch.setattr(worker_clients, "freeze_imports_once", lambda: None)
    with StrictCluster() as source, StrictCluster() as target:
        yield Clusters(source, target)
        for cluster in kept.values():
            cluster.close()


@pytest.fixture
def clock() -> SleepingClock:
    return SleepingClock()
