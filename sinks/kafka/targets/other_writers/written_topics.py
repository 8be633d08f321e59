"""Driver: target topics that hold what this mirror has not written. Changes nothing.

Sentences lack their beginning, "target topic X".
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints import Position
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError
from shallow_mirror.plurals import listed
from shallow_mirror.sinks.kafka.targets.other_writers.foreign_batches import first_foreign_batch
from shallow_mirror.types import IsolationLevel, TopicPartition

_log = logging.getLogger(__name__)

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


def filled_by_mirror(
    target: Cluster, partition_counts: Mapping[str, int], positions: Iterable[Position], deadline: Deadline
) -> set[str]:
    """Return the topics that hold copies of former source topics of this mirror, and behind those no foreign batches.

    `positions`: all of the map. Not those that cannot be read: that takes a permission which the copy does not need. Raises
    RetriableError.
    """
    listed_topics = target.metadata(sorted(partition_counts), deadline).topics
    own: dict[str, list[Position]] = {}
    for at in positions:
        name = at.target.topic
        if name in partition_counts and listed_topics[name].topic_id == at.target.topic_id:
            own.setdefault(name, []).append(at)
    filled = set[str]()
    for name, copied in own.items():
        partitions = [TopicPartition(name, number) for number in range(partition_counts[name])]
        with suppress(MirrorError):
            if first_foreign_batch(target, partitions, copied, IsolationLevel.READ_COMMITTED, deadline) is None:
                filled.add(name)
    return filled


def warn_of_others(
    target: Cluster, partition_counts: Mapping[str, int], positions: Iterable[Position], deadline: Deadline
) -> None:
    """Log which of these topics hold what this mirror has not written. `positions`: all of the map, also of forgotten topics.

    Raises as `written_offsets`.
    """
    filled = {topic for topic, offsets in written_offsets(target, partition_counts, deadline).items() if offsets}
    if filled:
        filled -= filled_by_mirror(target, {topic: partition_counts[topic] for topic in filled}, positions, deadline)
    if filled:
        _log.warning("target topic %s %s", listed(sorted(filled)), WRITTEN_BY_OTHERS)
