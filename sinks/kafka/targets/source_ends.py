"""Driver: where the logs of a source topic end, committed or not."""

from __future__ import annotations

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.deadline import Deadline
from shallow_mirror.types import IsolationLevel, SourcePartition, TopicPartition


def source_ends(source: Cluster, topic: str, deadline: Deadline) -> dict[SourcePartition, int] | None:
    """Return the high watermark of each partition; None where the topic is missing, or a leader does not answer.

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
