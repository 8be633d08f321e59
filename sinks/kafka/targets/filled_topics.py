"""Driver: target topics that hold something already, into which nothing is restored."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from shallow_mirror.broker import Cluster
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel, TopicPartition


def filled_partitions(cluster: Cluster, topics: Collection[str], deadline: Deadline) -> list[TopicPartition]:
    """Return the partitions of these topics whose log is not empty. Raises RetriableError, ConfigError (no permission)."""
    partitions = existing_partitions(cluster, topics, deadline)
    if not partitions:
        return []
    starts, ends = (
        cluster.list_offsets(dict.fromkeys(partitions, timestamp), IsolationLevel.READ_UNCOMMITTED, deadline)
        for timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
    )
    return [partition for partition in partitions if ends[partition].offset > starts[partition].offset]


def existing_partitions(cluster: Cluster, topics: Collection[str], deadline: Deadline) -> list[TopicPartition]:
    """Return the partitions of those topics that exist, in order. Raises RetriableError."""
    if not topics:
        return []
    listed = cluster.metadata(sorted(topics), deadline).topics
    return [
        TopicPartition(name, partition)
        for name, topic in sorted(listed.items())
        if topic.error_code == 0
        for partition in sorted(topic.partitions)
    ]


def refuse_filled_topics(cluster: Cluster, targets: Mapping[str, str], deadline: Deadline) -> None:
    """Raise ConfigError with every target topic that holds records. `targets`: by archived topic."""
    filled = {partition.topic for partition in filled_partitions(cluster, set(targets.values()), deadline)}
    problems = filled_problems(targets, filled)
    if problems:
        raise ConfigError(problems)


def filled_problems(targets: Mapping[str, str], filled: Iterable[str]) -> list[str]:
    """Return a sentence for each topic whose target is one of `filled`."""
    filled = set(filled)
    return [
        f"target topic {target} (for {topic}) holds records that this restore did not write: restore into a topic of another "
        f"name (topics.target_name), exclude {topic} (topics.exclude), or delete {target} first"
        for topic, target in sorted(targets.items())
        if target in filled
    ]
