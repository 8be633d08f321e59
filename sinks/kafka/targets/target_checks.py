"""Driver: checks of target topics with the brokers, before they are created or written to. Changes nothing.

Sentences lack their beginning, "target topic X".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from shallow_mirror.broker import Cluster
from shallow_mirror.deadline import Deadline


def collision_problems(target: Cluster, missing: Collection[str], deadline: Deadline) -> dict[str, str]:
    """Return why topics cannot be created, by name: brokers take '.' and '_' for one character, because metrics do.

    `missing`: names that do not exist. Raises RetriableError.
    """
    doubtful = [name for name in missing if "." in name or "_" in name]
    if not doubtful:
        return {}
    existing = {
        _metric_name(name): name for name, topic in target.metadata(None, deadline).topics.items() if not topic.error_code
    }
    return {
        name: f"cannot be created: it collides with topic {existing[_metric_name(name)]}, and brokers refuse names that differ "
        "in '.' and '_' only. Set topics.target_name, or exclude the source topic (topics.exclude)"
        for name in doubtful
        if _metric_name(name) in existing
    }


def _metric_name(topic: str) -> str:
    return topic.replace(".", "_")


def replica_problem(target: Cluster, settings: Mapping[str, str], replica_count: int | None, deadline: Deadline) -> str | None:
    """Return why nothing could be written with so many replicas. `replica_count` None: not known.

    Since Kafka 3.7 the number of replicas bounds min.insync.replicas. Raises RetriableError, ConfigError.
    """
    least = int(settings.get("min.insync.replicas", 1))
    if replica_count is None or least <= replica_count or target.any_broker(deadline).caps_min_insync_replicas:
        return None
    return f"has min.insync.replicas={least}, more than its {replica_count} replicas: nothing can be written to it"
