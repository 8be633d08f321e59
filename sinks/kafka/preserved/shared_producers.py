"""Driver: the producer id that all writers of a target partition share, agreed on before anything is written to it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.produce.txn import new_producer_id
from shallow_mirror.checkpoints import DecidedSegment, Position
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.plurals import counted
from shallow_mirror.sinks.kafka.preserved.log_guard import GuardTimes
from shallow_mirror.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel, SourcePartition, TopicPartition

MOST_LEADING_FILLERS = 10**9
"""The limit of the first offset of a partition: fillers take every offset below it, about 11 GB and 6 minutes for so many."""

_EXPIRATION, _MAX_IDLE = "producer.id.expiration.ms", "connections.max.idle.ms"
_CONTINUED_OR_TRANSLATED = (
    "topics.offsets: continued where it holds the source's records at their offsets, or translated where it does not"
)


def with_shared_producers(
    target: Cluster,
    rows: Sequence[DecidedSegment],
    is_preserved: Callable[[str], bool],
    deadline: Deadline,
    gone: Collection[str] = (),
) -> tuple[DecidedSegment, ...]:
    """Return first rows of partitions with the producer id that those of preserved topics get; others are unchanged.

    The decision of these rows is the agreement: it is committed before the first batch is sent. Logs that are continued get it as
    well: it is a new one, which none of their batches has. `gone`: source topics whose target topics are gone.

    Raises ConfigError if a target partition is not new, or begins too late, and RetriableError.
    """
    preserved = [row for row in rows if is_preserved(row.segment.source.topic)]
    if not preserved:
        return tuple(rows)
    continued = {row.segment.target for row in preserved if row.is_continued}
    new = [row for row in preserved if row.segment.target not in continued and row.segment.source.topic not in gone]
    keys = [row.segment.target.topic_partition for row in new]
    problems = used_log_problems(target, keys, deadline, instead=_CONTINUED_OR_TRANSLATED)
    problems += first_offset_problems((row.segment.source.topic_partition, row.segment.source_start) for row in new)
    if problems:
        raise ConfigError(problems)
    producer_id = new_producer_id(target, deadline).producer_id
    return tuple(replace(row, shared_producer_id=producer_id) if is_preserved(row.segment.source.topic) else row for row in rows)


def used_log_problems(
    target: Cluster, keys: Sequence[TopicPartition], deadline: Deadline, *, instead: str = "topics.offsets: translated"
) -> list[str]:
    """Return a sentence for each of these target partitions that is not new. Raises RetriableError, ConfigError."""
    if not keys:
        return []
    uncommitted = IsolationLevel.READ_UNCOMMITTED
    starts = target.list_offsets(dict.fromkeys(keys, EARLIEST_TIMESTAMP), uncommitted, deadline)
    ends = target.list_offsets(dict.fromkeys(keys, LATEST_TIMESTAMP), uncommitted, deadline)
    return [
        f"target partition {key} is not new (its log has offsets {starts[key].offset} to {ends[key].offset}): with preserved "
        f"offsets the target topic has to be new. Delete it, name another one (topics.target_name), or use {instead}"
        for key in keys
        if ends[key].offset > 0
    ]


def first_offset_problems(starts: Iterable[tuple[TopicPartition, int]]) -> list[str]:
    """Return a sentence for each partition of the source whose first offset is too high for fillers."""
    return [
        f"{topic_partition} begins at offset {start:,}: fillers would have to take every offset below it on the target, and the "
        f"limit is {MOST_LEADING_FILLERS:,}. Use topics.offsets: translated for it"
        for topic_partition, start in starts
        if start > MOST_LEADING_FILLERS
    ]


def require_agreed(positions: Mapping[SourcePartition, Position], is_preserved: Callable[[str], bool]) -> None:
    """Raise ConfigError if a topic that was mirrored with translated offsets is to be preserved: its target is not alike."""
    topics = sorted(
        {
            source.topic
            for source, position in positions.items()
            if is_preserved(source.topic) and position.shared_producer_id is None
        }
    )
    if topics:
        raise ConfigError(
            [
                f"topics.offsets: {topic} was mirrored with translated offsets until now, they cannot become preserved ones. "
                "Set it to translated, or mirror it to a new target topic with another mirror id, tables and checkpoint"
                for topic in topics
            ]
        )


def read_guard_times(target: Cluster, task_ms: int, deadline: Deadline) -> GuardTimes:
    """Return the times of the target's brokers, the strictest of all. `task_ms`: the longest a task of a slot may run.

    Raises ConfigError if DescribeConfigs on the cluster is missing, or brokers forget a producer while requests of a writer
    that counted on it may be on their way; RetriableError.
    """
    node_ids = sorted(target.metadata([], deadline).brokers)
    configs = [target.broker_configs(node_id, deadline) for node_id in node_ids]
    missing = [name for name in (_EXPIRATION, _MAX_IDLE) for config in configs if name not in config]
    if missing:
        brokers = counted(len(configs), "broker")
        raise ConfigError(
            f"topics.offsets: the target's {brokers} do not report {missing[0]}, so it is not known how long they remember a "
            "producer (Kafka 3.6 and newer report it): use topics.offsets: translated"
        )
    if any(int(config[_MAX_IDLE]) < 0 for config in configs):
        raise ConfigError(
            f"topics.offsets: the target has {_MAX_IDLE} < 0, so requests of an earlier run may arrive at any time: set it to "
            "the default of 10 minutes, or use topics.offsets: translated"
        )
    times = GuardTimes(
        expiration_ms=min(int(config[_EXPIRATION]) for config in configs),
        quiet_ms=task_ms + max(int(config[_MAX_IDLE]) for config in configs),
    )
    if times.old_after_ms < times.quiet_ms:
        raise ConfigError(
            f"topics.offsets: the target's brokers have {_EXPIRATION}={times.expiration_ms}, and forget a producer while its "
            f"requests may still be on their way ({times.quiet_ms / 1000:.0f} s: write.transaction_timeout_ms and {_MAX_IDLE}). "
            f"Set it to {2 * times.quiet_ms} or more (the default is 24 hours), or use topics.offsets: translated"
        )
    return times
