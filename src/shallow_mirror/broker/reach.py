"""Driver: the first question of a command that somebody waits for: it ends soon, and says which cluster, and what to look at."""

from __future__ import annotations

from shallow_mirror.broker.cluster import Cluster
from shallow_mirror.broker.cluster_metadata import ClusterMetadata
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import Retriable

REACH_MS = 10_000


def reach(cluster: Cluster, where: str, deadline: Deadline) -> ClusterMetadata:
    """Its brokers and id. `where` as in "source cluster east". Raises Retriable within REACH_MS, ConfigError."""
    try:
        return cluster.metadata([], deadline.sooner(REACH_MS))
    except Retriable as error:
        remedy = "check its bootstrap.servers and security.protocol, and whether its brokers run and can be reached from here"
        raise Retriable(error.error_name, f"the {where} does not answer: {error.detail}: {remedy}") from error
