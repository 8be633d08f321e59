from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.fakes.strict_broker import StrictCluster

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import worker_clients


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Iterator[StrictCluster]:
    """Yield a strict cluster with the topic `out` of two partitions, and with clients of tasks that are closed behind the test."""
    kept: dict[Any, Cluster] = {}
    monkeypatch.setattr(worker_clients, "_clusters", kept)
    monkeypatch.setattr("shallow_mirror.sinks.records.record_task.freeze_imports_once", lambda: None)
    with StrictCluster() as cluster:
        cluster.create_topic("out", 2)
        yield cluster
        for client in kept.values():
            client.close()
