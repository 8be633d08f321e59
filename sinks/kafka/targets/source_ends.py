"""Driver: log ends of a source topic, committed or not, and the settings of its copy that depend on them."""

from __future__ import annotations

from collections.abc import Mapping

from shallow_mirror.broker import Cluster
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.sinks.kafka.targets.settings.refusing_settings import settings_before_compaction
from shallow_mirror.types import IsolationLevel, SourcePartition, TopicPartition


def source_ends(source: Cluster, topic: str, deadline: Deadline) -> dict[SourcePartition, int] | None:
    """Return the high watermark of each partition; None if the topic is missing, or a leader does not answer.

    Raises RetriableError, ConfigError.
    """
    source.forget_metadata()  # of partitions that were just added
    listed = source.metadata([topic], deadline).topics[topic]
    if listed.error_code:
        return None
    partitions = [TopicPartition(topic, number) for number in sorted(listed.partitions)]
    ends, errors = source.latest_offsets(partitions, IsolationLevel.READ_UNCOMMITTED, deadline, is_patient=False)
    if errors:
        return None
    return {SourcePartition(topic, listed.topic_id, partition.partition): end for partition, end in ends.items()}


def before_compaction(
    source: Cluster, topic: str, configs: Mapping[str, str], deadline: Deadline
) -> tuple[dict[str, str], dict[SourcePartition, int]]:
    """Return the settings that a new copy of a topic has at first instead of `configs`, and the ends that the map has to pass.

    Neither if the topic is not compacted, or is empty. Raises RetriableError, ConfigError.
    """
    before = settings_before_compaction(configs)
    if not before:
        return {}, {}
    ends = source_ends(source, topic, deadline)
    if ends is None:
        raise RetriableError("LEADER_NOT_AVAILABLE", f"a partition of source topic {topic} has no leader that answers")
    return (before, ends) if any(ends.values()) else ({}, {})
