"""Executor: what a Python worker keeps between tasks: clusters with their connections, receive buffers, frozen imports."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterable

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.net.connection import ReceiveBuffer

MOST_BUFFERS = 6
"""A worker keeps so many receive buffers: two for each of three responses of `read.fetch_bytes`. Memory that is new to a process
costs as much as filling it."""

MOST_CLUSTERS = 32
"""A worker keeps so many clusters with their connections: both of each of 16 mirrors in one process."""

_buffers: list[ReceiveBuffer] = []

_clusters: dict[tuple[int, ClientConfig], Cluster] = {}
_frozen_pid: int | None = None


def cluster_of_worker(config: ClientConfig, cluster_id: str = "") -> Cluster:
    """Return the `Cluster` of this process and client: Spark reuses its workers, and connections outlive micro-batches.

    `cluster_id`: the one that the driver has found; empty: not known. A worker outlives runs, and another cluster may have the
    addresses by now: a `Cluster` of a former one is replaced, and so is one that has met another cluster.
    Beyond MOST_CLUSTERS the one that was not used for longest is closed. A worker has one task at a time, which uses two at most.
    """
    key = (os.getpid(), config)
    cluster = _clusters.pop(key, None)
    if cluster is not None and (cluster.has_met_another or (cluster_id and cluster.known_id not in ("", cluster_id))):
        cluster.close()
        cluster = None
    cluster = cluster or Cluster(config, cluster_id=cluster_id)
    _clusters[key] = cluster  # behind all others: the first one was not used for longest
    if len(_clusters) > MOST_CLUSTERS:
        _clusters.pop(next(iter(_clusters))).close()
    return cluster


def buffers_of_worker(count: int, max_bytes: int) -> tuple[ReceiveBuffer, ...]:
    """Return so many receive buffers for a task, which gives them back with `keep_buffers`.

    Those that were kept come first, unless something still looks at them.
    """
    free = [buffer for buffer in _buffers if buffer.max_bytes == max_bytes and not buffer.is_viewed()][:count]
    for buffer in free:
        _buffers.remove(buffer)
    return (*free, *(ReceiveBuffer(0, max_bytes) for _ in range(count - len(free))))


def keep_buffers(buffers: Iterable[ReceiveBuffer], most_bytes: int) -> None:
    """Keep buffers for the next task, except those that grew beyond `most_bytes` for a single batch."""
    _buffers.extend(buffer for buffer in buffers if buffer.size_bytes <= most_bytes)
    del _buffers[:-MOST_BUFFERS]


def freeze_imports_once() -> None:
    """Exclude the objects of the imports from garbage collection, which PySpark's daemon runs after every task."""
    global _frozen_pid
    if _frozen_pid != os.getpid():
        gc.collect()
        gc.freeze()
        _frozen_pid = os.getpid()
