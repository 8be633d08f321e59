"""Driver: checks of target topics with the brokers, before they are created or written to. Changes nothing.

Sentences lack their beginning, "target topic X".
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from shallow_mirror.broker import Cluster
from shallow_mirror.deadline import Deadline
from shallow_mirror.plurals import listed
from shallow_mirror.types import IsolationLevel, TopicPartition

_log = logging.getLogger(__name__)


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


WRITTEN_BY_OTHERS = (
    "was written to by others than this mirror, and copies are appended behind that. If another application still writes to it "
    "(MirrorMaker 2, another mirror), every record will be there twice: stop it first"
)
"""Of a topic that this mirror has not copied to and that is not empty."""
IS_WRITTEN_BY_OTHERS = (
    "grew while it was checked: another application writes to it (MirrorMaker 2, another mirror), and every record will be there "
    "twice: stop it first"
)


def written_offsets(target: Cluster, partition_counts: Mapping[str, int], deadline: Deadline) -> dict[str, int]:
    """Return how many offsets of each topic are taken, of partitions whose leaders answer. Raises RetriableError, ConfigError."""
    partitions = [TopicPartition(topic, number) for topic, count in partition_counts.items() for number in range(count)]
    taken = dict.fromkeys(partition_counts, 0)
    if partitions:
        ends, _ = target.latest_offsets(partitions, IsolationLevel.READ_UNCOMMITTED, deadline, is_patient=False)
        for partition, end in ends.items():
            taken[partition.topic] += end
    return taken


def warn_of_others(target: Cluster, partition_counts: Mapping[str, int], deadline: Deadline) -> None:
    """Log which of these topics, which this mirror has not copied to, are not empty. Raises as `written_offsets`."""
    filled = [topic for topic, offsets in sorted(written_offsets(target, partition_counts, deadline).items()) if offsets]
    if filled:
        _log.warning("target topic %s %s", listed(filled), WRITTEN_BY_OTHERS)
