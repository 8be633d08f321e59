"""Driver: target topics that hold something already, into which nothing is restored."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints import DecidedSegment, Position
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, TopicAccessError
from shallow_mirror.sinks.kafka.targets.other_writers.foreign_batches import first_foreign_batch
from shallow_mirror.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel, SourcePartition, TopicPartition


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


def refuse_filled_topics(
    cluster: Cluster, targets: Mapping[str, str], positions: Mapping[SourcePartition, Position], deadline: Deadline
) -> None:
    """Raise ConfigError with every target topic that holds records which the restore of these positions has not written.

    To be called by a run that has fenced the earlier ones. `targets`: by archived topic. A topic to which the restore has written
    is not looked at: others write to it at their own risk.
    """
    begun, unwritten = {source.topic for source in positions}, unwritten_topics(positions)
    filled = filled_partitions(cluster, {target for topic, target in targets.items() if topic not in begun}, deadline)
    taken = taken_topics(cluster, {target for topic, target in targets.items() if topic in unwritten}, deadline, is_fenced=True)
    problems = filled_problems(targets, {partition.topic for partition in filled}) + taken_problems(targets, taken)
    if problems:
        raise ConfigError(problems)


def unwritten_topics(positions: Mapping[SourcePartition, Position]) -> set[str]:
    """Pure: return the topics of a restore that has registered them and written nothing to them yet; no preserved ones."""
    written = {source.topic for source, at in positions.items() if at.target_end > 0 or at.shared_producer_id is not None}
    return {source.topic for source in positions} - written


def taken_topics(cluster: Cluster, topics: Collection[str], deadline: Deadline, *, is_fenced: bool) -> set[str]:
    """Return which of the topics that a restore has registered somebody else has written to meanwhile, as another restore.

    Aborted batches do not count: they are of tries of this restore. Nor do open ones unless `is_fenced`, and nor does a topic
    that may not be read: that takes a permission which the copy does not need. Raises RetriableError, ConfigError, and as
    `first_foreign_batch`.
    """
    filled: dict[str, list[TopicPartition]] = {}
    for partition in filled_partitions(cluster, topics, deadline):
        filled.setdefault(partition.topic, []).append(partition)
    taken = set[str]()
    for topic, partitions in filled.items():
        with suppress(TopicAccessError):
            committed = IsolationLevel.READ_COMMITTED
            if first_foreign_batch(cluster, partitions, (), committed, deadline, counts_open=is_fenced) is not None:
                taken.add(topic)
    return taken


def refuse_overtaken_topics(
    cluster: Cluster,
    positions: Mapping[SourcePartition, Position],
    rows: Sequence[DecidedSegment],
    deadline: Deadline,
) -> None:
    """Raise ConfigError with every target topic in which records of another writer precede the first ones of this restore.

    To be called right before the decision of `rows`. Two restores that begin together both find their topics empty. The log has
    one order: of the two, that whose records are first there continues.
    """
    unwritten = unwritten_topics(positions)
    firsts: dict[TopicPartition, int] = {}
    targets: dict[str, str] = {}
    for row in rows:
        segment = row.segment
        if row.txn is not None and segment.target_start is not None and segment.source.topic in unwritten:
            key = segment.target.topic_partition
            firsts[key] = min(firsts.get(key, segment.target_start), segment.target_start)
            targets[segment.source.topic] = key.topic
    if not firsts:
        return
    starts = cluster.list_offsets(dict.fromkeys(firsts, EARLIEST_TIMESTAMP), IsolationLevel.READ_UNCOMMITTED, deadline)
    preceded = [key for key, first in firsts.items() if starts[key].offset < first]
    if not preceded:
        return
    stable_ends = cluster.list_offsets(dict.fromkeys(preceded, LATEST_TIMESTAMP), IsolationLevel.READ_COMMITTED, deadline)
    # The transactions of this restore begin with its first records: its earlier ones were aborted before.
    overtaken = {key.topic for key in preceded if stable_ends[key].offset < firsts[key]}
    overtaken |= taken_topics(cluster, {key.topic for key in preceded} - overtaken, deadline, is_fenced=False)
    if problems := taken_problems(targets, overtaken):
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


def taken_problems(targets: Mapping[str, str], taken: Collection[str]) -> list[str]:
    """Return a sentence for each topic whose target is one of `taken`: what a begun restore does with a topic stays as it is."""
    return [
        f"target topic {target} (for {topic}) holds records that this restore did not write, as of another restore that began at "
        "the same time, and nothing of this one. Restore with another `restore` name, `tables` and topics.target_name"
        for topic, target in sorted(targets.items())
        if target in taken
    ]
