"""Driver: problems of the cut of a restore file, and the alternatives of the archive. Each function returns sentences."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence

from shallow_mirror.archive_reading.archive_history import Incarnation, topic_id_problem
from shallow_mirror.archive_reading.state_at_cut import TopicAtCut
from shallow_mirror.checkpoints import Lineages
from shallow_mirror.config.restore_config import Cut
from shallow_mirror.streaming.planning.kept_segments import KeptSegments
from shallow_mirror.types import OffsetRange, SourcePartition, TopicPartition

History = Mapping[str, Sequence[Incarnation]]
"""The incarnations of each included topic."""


def unknown_topic_ids(until: Cut, history: History, known: Collection[str]) -> list[str]:
    """Return a sentence for each topic id that the archive does not have. `known`: topics that are not looked for again."""
    problems = []
    for topic, topic_id in sorted(until.topic_ids.items()):
        if topic in known:
            continue
        if topic not in history:
            problems.append(f"until.topic_ids: the archive has no topic {topic}, or it is not included")
        elif (problem := topic_id_problem("until.topic_ids", topic, topic_id, history[topic])) is not None:
            problems.append(problem)
    return problems


def unknown_partitions(until: Cut, archived: Container[TopicPartition], history: History) -> list[str]:
    problems = []
    for topic, offsets in sorted(until.offsets.items()):
        for partition in sorted(offsets):
            if TopicPartition(topic, partition) in archived:
                continue
            others = [each for each in history.get(topic, ()) if partition in each.partitions]
            problems.append(
                f"until.offsets: the archive has no partition {topic}-{partition}, or the topic is not included"
                f"{_named(topic, others)}"
            )
    return problems


def unknown_offset(source: SourcePartition, offset: int, kept: OffsetRange, incarnations: Sequence[Incarnation]) -> str:
    """Return the problem of an offset that is not in the log that is restored. `kept`: rows of the archive of that log."""
    of_partition = [(each, each.partitions.get(source.partition, {})) for each in incarnations]
    lineages = next(traces for each, traces in of_partition if each.topic_id == source.topic_id)
    having = [str(number) for number, trace in sorted(lineages.items()) if trace.start < offset <= trace.end]
    in_lineages = f"; lineage {', '.join(having)} has it (until.lineage)" if having and len(lineages) > 1 else ""
    others = [
        each
        for each, traces in of_partition
        if each.topic_id != source.topic_id and any(trace.start <= offset <= trace.end for trace in traces.values())
    ]
    return (
        f"until.offsets: {source.topic_partition}: {offset} is not in the archive, which has {kept.start} to {kept.end}"
        f"{in_lineages}{_named(source.topic, others)}"
    )


def expired_topics(
    topics: Iterable[TopicAtCut], history: History, archived: Mapping[TopicPartition, KeptSegments | None]
) -> list[str]:
    """Return the problem of topics that were created again, if retention has left nothing of the incarnation that counts."""
    problems = []
    for topic in topics:
        name, topic_id = topic.incarnation.topic, topic.incarnation.topic_id
        others = [each for each in history[name] if each.topic_id != topic_id and each.has_rows]
        if not others:
            continue
        kept = [of_partition for key, of_partition in archived.items() if key.topic == name and of_partition is not None]
        is_left = any(row.stored is not None for of_partition in kept for row in of_partition.rows)
        if not is_left and any(of_partition.expired_end is not None for of_partition in kept):
            problems.append(
                f"topic {name}: all that was archived of topic id {topic_id} has expired: exclude the topic{_named(name, others)}"
            )
    return problems


def lineage_problems(source: SourcePartition, lineages: Lineages, until: Cut) -> list[str]:
    """Return the problem of a number that the restore file gives for this partition."""
    if until.lineage is None or isinstance(until.lineage, int):
        return []
    wanted, numbers = until.lineage_of(source.topic, source.partition), lineages.numbers(source)
    if wanted is None or wanted in numbers:
        return []
    return [f"until.lineage: {source.topic_partition} has no lineage {wanted}, but {', '.join(map(str, numbers))}"]


def unknown_lineages(until: Cut, archived: Container[TopicPartition], numbers: Sequence[int]) -> list[str]:
    """`numbers`: of all lineages of the partitions that are restored."""
    if isinstance(until.lineage, int):
        highest = max(numbers, default=0)
        return [f"until.lineage: no partition has a lineage above {highest}"] if until.lineage > highest else []
    return [
        f"until.lineage: the archive has no partition {topic}-{partition}, or the topic is not included"
        for topic, of_topic in sorted((until.lineage or {}).items())
        for partition in sorted(of_topic)
        if TopicPartition(topic, partition) not in archived
    ]


def _named(topic: str, others: Sequence[Incarnation]) -> str:
    """Return how to restore other incarnations of a topic; nothing if there are none."""
    if not others:
        return ""
    ids = "; ".join(each.sentence() for each in others)
    return f" of the topic id that counts; restore another one with until.topic_ids {{{topic}: ID}}: {ids}"
