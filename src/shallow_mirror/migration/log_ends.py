"""Driver: the log ends of topics, with open transactions."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from shallow_mirror.broker import Cluster
from shallow_mirror.deadline import Deadline
from shallow_mirror.migration.observations import LogEnd
from shallow_mirror.types import LATEST_TIMESTAMP, IsolationLevel, TopicPartition


def list_log_ends(cluster: Cluster, topics: Sequence[str], deadline: Deadline) -> dict[TopicPartition, LogEnd]:
    """Return the ends of all partitions. Raises RetriableError."""
    return cluster.retrying("listing log ends", functools.partial(_listed_ends, cluster, tuple(topics)), deadline)


def _listed_ends(cluster: Cluster, topics: Sequence[str], deadline: Deadline) -> dict[TopicPartition, LogEnd]:
    listed = cluster.metadata(list(topics), deadline).topics if topics else {}
    names = [TopicPartition(name, partition) for name, topic in listed.items() for partition in topic.partitions]
    if not names:
        return {}
    timestamps = dict.fromkeys(names, LATEST_TIMESTAMP)
    # In this order: a transaction that ends in between makes a log look open for one more look, never closed.
    stable = cluster.list_offsets(timestamps, IsolationLevel.READ_COMMITTED, deadline)
    ends = cluster.list_offsets(timestamps, IsolationLevel.READ_UNCOMMITTED, deadline)
    return {name: LogEnd(ends[name].offset, stable[name].offset) for name in names}
