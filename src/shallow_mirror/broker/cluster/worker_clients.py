"""Executor: what a Python worker keeps between tasks: its clusters, with their connections, and the frozen imports."""

from __future__ import annotations

import gc
import os

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.cluster.cluster import Cluster

_clusters: dict[tuple[int, ClientConfig], Cluster] = {}
_frozen_pid: int | None = None


def cluster_of_worker(config: ClientConfig) -> Cluster:
    """Return the `Cluster` of this process and client: Spark reuses its workers, and connections outlive micro-batches."""
    key = (os.getpid(), config)
    if key not in _clusters:
        _clusters[key] = Cluster(config)
    return _clusters[key]


def freeze_imports_once() -> None:
    """Exclude what the imports made from garbage collection, which PySpark's daemon runs after every task."""
    global _frozen_pid
    if _frozen_pid != os.getpid():
        gc.collect()
        gc.freeze()
        _frozen_pid = os.getpid()
