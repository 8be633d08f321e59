from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.fakes.strict_broker import StrictCluster
from tests.support.own_worker_clients import own_worker_clients


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Iterator[StrictCluster]:
    """Yield a strict cluster with the topic `out` of two partitions."""
    monkeypatch.setattr("shallow_mirror.sinks.records.record_task.freeze_imports_once", lambda: None)
    with StrictCluster() as cluster, own_worker_clients():
        cluster.create_topic("out", 2)
        yield cluster
