"""Pure: blockers of groups that would not continue at the other cluster with their next record."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from shallow_mirror.groups.report import GroupPartition, GroupsReport, Outcome, Step
from shallow_mirror.migration.observations import named
from shallow_mirror.types import TopicPartition


def commit_problems(report: GroupsReport) -> list[str]:
    """Return a sentence for each group with an offset that is not as it has to be."""
    problems = []
    for group in report.groups:
        left = [partition for partition in group.partitions if partition.is_left or partition.step is Step.FURTHER]
        if left:
            problems.append(f"group {group.name}: " + named(_sentence(partition, report.other) for partition in left))
    return problems


def is_pending(report: GroupsReport) -> bool:
    """Return whether all that is left waits for transactions to end: no person has to act."""
    left = [partition for partition in report.partitions if partition.is_left or partition.step is Step.FURTHER]
    return all(partition.outcome is Outcome.PENDING for partition in left)


def loses_copies(report: GroupsReport) -> bool:
    """Return whether an offset is of a topic that was deleted and created again on either side: no commit gets better."""
    return any(partition.outcome is Outcome.RECREATED for partition in report.partitions)


def plan_problems(report: GroupsReport, ends: Mapping[TopicPartition, int], lost: Collection[str] = ()) -> list[str]:
    """Return problems that no waiting changes: all but offsets that the mirror has yet to reach.

    `ends`: of the logs at the origin, listed after the offsets of the report were read. `lost`: topics without a copy at the
    other cluster, to which no offset leads.
    """
    problems = []
    for group in report.groups:
        if group.clients:
            problems.append(f"group {group.name} is active at {report.other} ({named(group.clients)}): stop its consumers there")
        bad = [partition for partition in group.partitions if _is_bad(partition) and partition.topic_partition.topic not in lost]
        if bad:
            problems.append(f"group {group.name}: " + named(_sentence(partition, report.other) for partition in bad))
            if any(partition.outcome is Outcome.RECREATED for partition in bad):
                problems[-1] += (
                    ". The mirror copies nothing of such a topic: `shallow-mirror status` of its file says how to go on"
                )
            if any(partition.outcome is Outcome.LOST for partition in bad):
                problems[-1] += (
                    f". Let its consumers read on at {report.origin}, or reset or delete these offsets there "
                    "(kafka-consumer-groups.sh, --reset-offsets or --delete-offsets)"
                )
        beyond = [partition for partition in group.partitions if _is_beyond(partition, ends)]
        if beyond:
            places = named(
                f"offset {partition.offset:,} of {name}, whose log ends at {ends[name]:,}"
                for partition in beyond
                for name in (partition.topic_partition,)
            )
            problems.append(
                f"group {group.name} has committed {places} at {report.origin}: no record has that offset, so there is none to "
                "continue at. Stop its consumers and reset these offsets there (kafka-consumer-groups.sh --reset-offsets)"
            )
    return problems


def spanning_problems(
    topics_of: Mapping[str, set[str]], has_topic: Callable[[str], bool], is_mirrored: Callable[[str], bool]
) -> list[str]:
    """Return the groups that read a mirrored topic which does not move with them. `topics_of`: by group."""
    problems = []
    for group, topics in sorted(topics_of.items()):
        others = sorted(topic for topic in topics if is_mirrored(topic) and not has_topic(topic))
        if others:
            problems.append(
                f"group {group} reads {named(others)} as well, which this wave does not move: all topics of a group move together"
            )
    return problems


def elsewhere_problems(topics_of: Mapping[str, set[str]], moved: Collection[str], origin: str, other: str) -> list[str]:
    """Return the groups that have begun to read topics which other waves have `moved`. `topics_of`: by group."""
    problems = []
    for group, topics in sorted(topics_of.items()):
        if others := sorted(topics.intersection(moved)):
            problems.append(
                f"group {group} reads {named(others)} at {origin} as well, which another wave has moved: its offsets there would "
                f"be wrong at {other}. Delete them at {origin} (kafka-consumer-groups.sh --delete-offsets), and set them at "
                f"{other} yourself once these topics are back"
            )
    return problems


def _is_beyond(partition: GroupPartition, ends: Mapping[TopicPartition, int]) -> bool:
    end = ends.get(partition.topic_partition)
    return end is not None and partition.offset is not None and partition.offset > end


def _is_bad(partition: GroupPartition) -> bool:
    if partition.step in (Step.FURTHER, Step.REFUSED):
        return True
    # What the offset leads to is not at the other cluster.
    return partition.outcome in (Outcome.LOST, Outcome.RECREATED)


def _sentence(partition: GroupPartition, other: str) -> str:
    if partition.step is Step.FURTHER:
        at = partition.to_topic_partition
        assert at is not None
        return (
            f"{partition.topic_partition} at offset {partition.offset:,} leads to {partition.to_offset:,} at {other}, where the "
            f"group is at {partition.has:,} already: delete that offset, unless the group is to continue there "
            f"(kafka-consumer-groups.sh --delete-offsets --group {partition.group} --topic {at.topic}:{at.partition})"
        )
    what = partition.step.value if partition.step is not Step.NONE else partition.outcome.value
    reason = f": {partition.reason}" if partition.reason else ""
    offset = "" if partition.offset is None else f" at offset {partition.offset:,}"
    return f"{partition.topic_partition}{offset} is {what}{reason}"
