"""Driver: coverage of a verification: what the mirror file includes at the source, beside the positions of the offset map."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from shallow_mirror import routing
from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints import Position
from shallow_mirror.config import MirrorConfig
from shallow_mirror.config.unmatched_topics import unmatched_sentences
from shallow_mirror.deadline import Deadline
from shallow_mirror.plurals import counted
from shallow_mirror.types import EARLIEST_TIMESTAMP, IsolationLevel, OffsetRange, SourcePartition, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceExtent:
    """The included partitions of the source when a verification began."""

    logs: Mapping[SourcePartition, OffsetRange]
    """From the log start to the end that the isolation level shows."""
    unknown: tuple[str, ...]
    """A sentence for each entry of `topics.include` that matches no topic, and each partition whose leader does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    uncovered: tuple[str, ...]
    """A sentence for everything that was included and of which nothing could be compared."""
    behind_offsets: int
    """Offsets at the source behind the positions of the map."""
    behind_partitions: int


def read_source_extent(
    cluster: Cluster, config: MirrorConfig, topics: Collection[str] | None, closed: Collection[str], deadline: Deadline
) -> SourceExtent:
    """Return the partitions that `config` includes, or those of `topics`. Raises RetriableError if no leader answers.

    `closed`: topics that the operator has forgotten, which need not be there.
    """
    listed = cluster.metadata(None, deadline).topics
    chosen = {
        name: topic
        for name, topic in listed.items()
        if topic.error_code == 0
        and (
            routing.is_included(name, config.topics.include, config.topics.exclude, is_internal=topic.is_internal)
            if topics is None
            else name in topics
        )
    }
    partitions = {
        TopicPartition(name, partition): SourcePartition(name, topic.topic_id, partition)
        for name, topic in chosen.items()
        for partition in topic.partitions
    }
    level = config.read.isolation_level
    ends, errors = cluster.latest_offsets(list(partitions), level, deadline) if partitions else ({}, {})
    earliest = dict.fromkeys(ends, EARLIEST_TIMESTAMP)
    starts = cluster.list_offsets(earliest, IsolationLevel.READ_UNCOMMITTED, deadline) if ends else {}
    return SourceExtent(
        logs={partitions[name]: OffsetRange(starts[name].offset, max(starts[name].offset, end)) for name, end in ends.items()},
        unknown=(
            *(unmatched_sentences(cluster, config.topics, chosen.keys() | closed, deadline) if topics is None else ()),
            *(f"{name}: where its log ends at the source is not known: {error}" for name, error in sorted(errors.items())),
        ),
    )


def coverage(extent: SourceExtent, positions: Mapping[SourcePartition, Position]) -> Coverage:
    """Compare the source as it was with the positions of the map, which are newer."""
    uncovered, behind = list(extent.unknown), list[int]()
    for source, log in sorted(extent.logs.items(), key=lambda item: item[0]):
        position = positions.get(source)
        copied_until = log.start if position is None else max(position.offset, log.start)
        left = log.end - copied_until
        if left <= 0:
            continue
        behind.append(left)
        if copied_until == log.start:
            why = "the offset map does not have it" if position is None else "nothing of it is copied"
            uncovered.append(f"{source.topic_partition}: {why}: {counted(left, 'offset')} at the source")
    return Coverage(uncovered=tuple(uncovered), behind_offsets=sum(behind), behind_partitions=len(behind))
