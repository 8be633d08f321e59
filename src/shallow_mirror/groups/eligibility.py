"""Pure: evaluation of committed offsets: their translation by the map, and whether they may be committed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from shallow_mirror.groups.offset_translation import Commit, CommitTranslator, Line, Side, TranslatedOffset
from shallow_mirror.groups.report import GroupPartition, Outcome, Step
from shallow_mirror.types import SourcePartition, TopicPartition


class SourceCommit(NamedTuple):
    """A committed offset on the origin. `source`: the incarnation of a source partition that it is of; None: of none."""

    group: str
    topic_partition: TopicPartition
    offset: int | None
    metadata: str
    source: SourcePartition | None
    reason: str
    """Why `source` is None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clusters:
    """Hold the first offset of each log on the origin if it is known, and both ends on the other cluster.

    `other_ids`: topic ids there, `origin_ids`: of the origin's topics, failing back. `unsettled`: by partition of the origin,
    where rows begin that may still be removed. `forgotten_ids`: of source topics that the operator has closed with `forget`.
    """

    origin_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    other_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    other_ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    other_ids: Mapping[str, str] = field(default_factory=dict)
    origin_ids: Mapping[str, str] = field(default_factory=dict)
    unsettled: Mapping[TopicPartition, int] = field(default_factory=dict)
    forgotten_ids: frozenset[str] = frozenset()
    unanswered: Mapping[TopicPartition, str] = field(default_factory=dict)
    """Why the ends of a log on the other cluster are not known: it has no leader."""
    are_ends_final: bool = False
    """The mirror copies nothing any more: who has read all continues at the end of the other log."""


class RemoteGroup(NamedTuple):
    """State of a group on the other cluster."""

    is_free: bool
    clients: tuple[str, ...]
    offsets: Mapping[TopicPartition, int | None]
    """None: a transaction that commits one is open."""


def commits_of(commits: Iterable[SourceCommit], clusters: Clusters) -> set[Commit]:
    """Return the offsets to look up."""
    return {lookup for commit in commits for lookup in lookups_of(commit, clusters)}


def lookups_of(commit: SourceCommit, clusters: Clusters) -> tuple[Commit, ...]:
    """Return the offset of a commit, and the log start of the origin if that has deleted it; none without a source."""
    if commit.source is None or commit.offset is None:
        return ()
    lookup, effective = Commit(commit.source, commit.offset), _effective(commit.topic_partition, commit.offset, clusters)
    return (lookup,) if effective == commit.offset else (lookup, Commit(commit.source, effective))


def _effective(topic_partition: TopicPartition, offset: int, clusters: Clusters) -> int:
    return max(offset, clusters.origin_starts.get(topic_partition, 0))


def evaluate(
    commit: SourceCommit, translator: CommitTranslator, lines: Mapping[SourcePartition, Line], clusters: Clusters, side: Side
) -> GroupPartition:
    """Evaluate an offset, without `repeats`, which needs a second pass over the map, and without the state of the group there."""
    if commit.source is None:
        return _result(commit, Outcome.NOT_MIRRORED, commit.reason or None)
    if commit.offset is None:
        return _result(commit, Outcome.PENDING, "a transaction of the group that commits this offset is open: try again")
    line = lines.get(commit.source)
    if line is None:
        return _without_line(commit, commit.source, lines, clusters.forgotten_ids)
    origin_id = clusters.origin_ids.get(commit.topic_partition.topic)
    if side == "target" and origin_id is not None and origin_id != line.target.topic_id:
        # The offset is one of another log than that of which the map has rows.
        return _created_again(commit, origin_id, [line.target.topic_id])
    to_topic_partition = line.target.topic_partition if side == "source" else commit.source.topic_partition
    to_id = line.target.topic_id if side == "source" else commit.source.topic_id
    if (unanswered := clusters.unanswered.get(to_topic_partition)) is not None:
        return _result(commit, Outcome.WAITS, unanswered, to_topic_partition)
    if line.is_preserved:
        return _evaluate_preserved(commit, translator, lines, clusters, side)
    lookup = Commit(commit.source, commit.offset)
    translated = translator.translate(lookup)
    start = clusters.other_starts.get(to_topic_partition, 0)
    to_offset = max(translated.offset, start)
    problem = _other_problem(to_topic_partition, to_id, translated.offset, clusters)
    if problem is not None:
        return _result(commit, Outcome.RECREATED, problem, to_topic_partition)
    # Failing back, everything below the first row that may still be removed is known; without such rows, all of it.
    unsettled = clusters.unsettled.get(commit.topic_partition, commit.offset)
    waits_for = commit.offset - (line.position if side == "source" else unsettled)
    end = clusters.other_ends.get(to_topic_partition)
    if side == "source" and translated.is_end and not translated.offset and end is not None and start < end:
        if clusters.are_ends_final and waits_for <= 0:
            return _result(commit, Outcome.TRANSLATED, None, to_topic_partition, end, 0)
        # The next copy is appended behind these records, at an offset that is not known: more of them may come first, and copies
        # that no decision names yet may be among them.
        reason = (
            f"nothing of this partition is copied yet, and {to_topic_partition} holds other records, {start:,} to {end - 1:,}: "
            "where the group continues is known when the first record is copied"
        )
        return _result(commit, Outcome.WAITS, reason, to_topic_partition, waits_for=max(0, waits_for))
    if waits_for > 0:
        reason = "beyond the end of the map: records before it are not mirrored yet"
        return _result(commit, Outcome.WAITS, reason, to_topic_partition, to_offset, waits_for)
    missing = _missing(commit, translator, lines, clusters, side, start, translated)
    if missing is not None:
        return _result(commit, Outcome.LOST, missing, to_topic_partition, to_offset)
    withheld = translator.withheld(lookup) if side == "source" else 0
    return _result(commit, Outcome.TRANSLATED, None, to_topic_partition, to_offset, 0, withheld)


def _result(
    commit: SourceCommit,
    outcome: Outcome,
    reason: str | None,
    to_topic_partition: TopicPartition | None = None,
    to_offset: int | None = None,
    waits_for: int | None = None,
    withheld: int = 0,
) -> GroupPartition:
    return GroupPartition(
        commit.group,
        commit.topic_partition,
        commit.offset,
        commit.metadata,
        outcome,
        commit.source,
        to_topic_partition,
        to_offset,
        None,
        waits_for,
        withheld,
        None,
        Step.NONE,
        reason,
    )


def _evaluate_preserved(
    commit: SourceCommit,
    translator: CommitTranslator,
    lines: Mapping[SourcePartition, Line],
    clusters: Clusters,
    side: Side,
) -> GroupPartition:
    """Evaluate an offset of a partition that keeps its offsets: it leads to itself, as far as the log there reaches.

    Records are visible before a decision names them, so the end of the log counts, and not that of the map.
    """
    assert commit.source is not None
    assert commit.offset is not None
    line = lines[commit.source]
    to_topic_partition = line.target.topic_partition if side == "source" else commit.source.topic_partition
    to_id = line.target.topic_id if side == "source" else commit.source.topic_id
    start, end = clusters.other_starts.get(to_topic_partition, 0), clusters.other_ends.get(to_topic_partition)
    to_offset = max(commit.offset, start)
    problem = _other_problem(to_topic_partition, to_id, line.target_end if side == "source" else line.source_end, clusters)
    if problem is not None:
        return _result(commit, Outcome.RECREATED, problem, to_topic_partition)
    known_end = line.position if end is None else end
    if commit.offset > known_end:
        reason = (
            f"the log there ends at {known_end:,}: offsets before it are not mirrored yet"
            if side == "source"
            else f"the log there ends at {known_end:,}: records that the group has read here are not copied back"
        )
        return _result(commit, Outcome.WAITS, reason, to_topic_partition, max(known_end, start), commit.offset - known_end)
    missing = _missing(commit, translator, lines, clusters, side, start, None)
    if missing is not None:
        return _result(commit, Outcome.LOST, missing, to_topic_partition, to_offset)
    return _result(commit, Outcome.TRANSLATED, None, to_topic_partition, to_offset, 0)


def _without_line(
    commit: SourceCommit,
    source: SourcePartition,
    lines: Mapping[SourcePartition, Line],
    forgotten_ids: frozenset[str],
) -> GroupPartition:
    older = [mapped.topic_id for mapped in lines if mapped.topic_partition == source.topic_partition]
    # A start mirrors what has the name of forgotten topics only, as a new topic.
    if any(topic_id not in forgotten_ids for topic_id in older):
        return _created_again(commit, source.topic_id, older)
    return _result(commit, Outcome.WAITS, "nothing of this partition is mirrored yet")


def _created_again(commit: SourceCommit, topic_id: str, known_ids: Sequence[str]) -> GroupPartition:
    reason = f"the topic was deleted and created again (topic id {topic_id}), the map knows {', '.join(known_ids)} only"
    return _result(commit, Outcome.RECREATED, reason)


def _other_problem(to_topic_partition: TopicPartition, to_id: str, offset: int, clusters: Clusters) -> str | None:
    """Return why the other log is not the one that the map names."""
    remote_id = clusters.other_ids.get(to_topic_partition.topic)
    if remote_id is None:
        return f"there is no topic {to_topic_partition.topic}"
    if remote_id != to_id:
        return (
            f"topic {to_topic_partition.topic} was deleted and created again there (topic id {remote_id}), the map knows {to_id}"
        )
    end = clusters.other_ends.get(to_topic_partition)
    if end is not None and end < offset:
        return f"the log of {to_topic_partition} ends at {end:,}, below that offset: it has lost records"
    return None


def _missing(
    commit: SourceCommit,
    translator: CommitTranslator,
    lines: Mapping[SourcePartition, Line],
    clusters: Clusters,
    side: Side,
    other_start: int,
    translated: TranslatedOffset | None,
) -> str | None:
    """Return the records that a consumer could read only on the origin, as a sentence. `translated`: the commit, if known."""
    assert commit.source is not None
    assert commit.offset is not None
    line, effective = lines[commit.source], _effective(commit.topic_partition, commit.offset, clusters)
    if side == "source" and effective < line.start:
        return f"offsets {effective:,} to {line.start - 1:,} were never mirrored: the map begins at {line.start:,}"
    if side == "target":
        older = [
            other
            for other in lines.values()
            if other.target == line.target and other.first_micro_batch < line.first_micro_batch and other.target_end > effective
        ]
        if older:
            return f"it is within the records of an older incarnation of {commit.source.topic}, which the source no longer has"
    first = translated
    if first is None or effective != commit.offset:
        first = translator.translate(Commit(commit.source, effective))
    if not first.is_end and first.offset < other_start:  # an end leads to no record that could have been deleted
        count = other_start - first.offset
        return f"the log there begins at {other_start:,}: {count:,} offsets from {first.offset:,} on were deleted"
    return None


def may_commit(partition: GroupPartition, *, is_forced: bool) -> bool:
    """Return whether there is an offset to commit, whatever the other cluster has."""
    is_good = partition.outcome is Outcome.TRANSLATED or (is_forced and partition.outcome in (Outcome.WAITS, Outcome.LOST))
    return is_good and partition.to_offset is not None


def next_step(partition: GroupPartition, remote: RemoteGroup, *, is_forced: bool) -> GroupPartition:
    """Decide the action on the other cluster: nothing for a group that has members there, nothing backwards unless forced."""
    if partition.to_topic_partition is None:
        return partition
    has = remote.offsets.get(partition.to_topic_partition)
    if not may_commit(partition, is_forced=is_forced):
        return partition._replace(has=has)
    assert partition.to_offset is not None
    if has == partition.to_offset:
        return partition.with_step(Step.IN_PLACE, has, partition.reason)
    if has is not None and has > partition.to_offset and not is_forced:
        return partition.with_step(Step.FURTHER, has, f"the group continued there, to {has:,}: only --force moves it back")
    if not remote.is_free:
        clients = ", ".join(remote.clients[:3]) or "members"
        return partition.with_step(Step.ACTIVE, has, f"the group is active there ({clients}): stop its consumers first")
    if partition.to_topic_partition in remote.offsets and has is None:
        return partition.with_step(Step.REFUSED, has, "a transaction of the group there is open: try again")
    return partition.with_step(Step.TO_COMMIT, has, partition.reason)
