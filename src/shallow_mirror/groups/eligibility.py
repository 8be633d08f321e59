"""PURE: what becomes of committed offsets: what the map says of each, and whether it may be committed on the other cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from shallow_mirror.groups.offset_translation import Commit, CommitTranslator, Line, Side
from shallow_mirror.groups.report import GroupPartition, Outcome, Step
from shallow_mirror.types import SourcePartition, TopicPartition


class Held(NamedTuple):
    """A committed offset on the origin. `source`: which incarnation of which source partition it is of; None: of none."""

    group: str
    place: TopicPartition
    offset: int | None
    metadata: str
    source: SourcePartition | None
    reason: str
    """Why `source` is None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clusters:
    """What the clusters say: the first offset of each log on the origin, where it is known, and both ends on the other one.

    `other_ids`: topic ids there. `unsettled`: by place on the origin, where rows begin that may still be removed.
    """

    origin_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    other_starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    other_ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    other_ids: Mapping[str, str] = field(default_factory=dict)
    unsettled: Mapping[TopicPartition, int] = field(default_factory=dict)


class There(NamedTuple):
    """What a group has on the other cluster."""

    is_free: bool
    clients: tuple[str, ...]
    offsets: Mapping[TopicPartition, int | None]
    """None: a transaction that commits one is not over."""


def commits_of(held: Iterable[Held], clusters: Clusters) -> set[Commit]:
    """Those to be looked up: each offset, and where its consumer would go on at the origin if that has deleted it."""
    commits = set()
    for one in held:
        if one.source is not None and one.offset is not None:
            commits.add(Commit(one.source, one.offset))
            commits.add(Commit(one.source, _effective(one.place, one.offset, clusters)))
    return commits


def _effective(place: TopicPartition, offset: int, clusters: Clusters) -> int:
    return max(offset, clusters.origin_starts.get(place, 0))


def judge(
    held: Held, translator: CommitTranslator, lines: Mapping[SourcePartition, Line], clusters: Clusters, side: Side
) -> GroupPartition:
    """Without `repeats`, which takes a second look at the map, and without what the group has there."""
    made = GroupPartition(
        group=held.group,
        place=held.place,
        offset=held.offset,
        metadata=held.metadata,
        source=held.source,
        outcome=Outcome.NOT_MIRRORED,
        reason=held.reason or None,
    )
    if held.source is None:
        return made
    if held.offset is None:
        return replace(
            made, outcome=Outcome.PENDING, reason="a transaction of the group that commits this offset is not over: ask again"
        )
    line = lines.get(held.source)
    if line is None:
        return _without_line(made, held.source, lines)
    to_place = line.target.topic_partition if side == "source" else held.source.topic_partition
    to_id = line.target.topic_id if side == "source" else held.source.topic_id
    found = translator.place(Commit(held.source, held.offset))
    start = clusters.other_starts.get(to_place, 0)
    made = replace(made, to_place=to_place, to_offset=max(found.offset, start), reason=None)
    problem = _other_problem(to_place, to_id, found.offset, clusters)
    if problem is not None:
        return replace(made, to_offset=None, outcome=Outcome.CREATED_AGAIN, reason=problem)
    waits_for = held.offset - (line.position if side == "source" else clusters.unsettled.get(held.place, held.offset))
    if waits_for > 0:
        reason = "beyond the map: what lies in front of it is not mirrored yet"
        return replace(made, outcome=Outcome.WAITS, waits_for=waits_for, reason=reason)
    missing = _missing(held, translator, lines, clusters, side, start)
    if missing is not None:
        return replace(made, outcome=Outcome.LOST, reason=missing)
    withheld = translator.withheld(Commit(held.source, held.offset)) if side == "source" else 0
    return replace(made, outcome=Outcome.TRANSLATED, waits_for=0, withheld=withheld)


def _without_line(made: GroupPartition, source: SourcePartition, lines: Mapping[SourcePartition, Line]) -> GroupPartition:
    older = [one.topic_id for one in lines if one.topic_partition == source.topic_partition]
    if older:
        return replace(
            made,
            outcome=Outcome.CREATED_AGAIN,
            reason=f"the topic was created again (topic id {source.topic_id}), the map knows {', '.join(older)} only",
        )
    return replace(made, outcome=Outcome.WAITS, reason="the mirror has not begun with this partition yet")


def _other_problem(to_place: TopicPartition, to_id: str, offset: int, clusters: Clusters) -> str | None:
    """Why the other log is not the one that the map speaks of."""
    there = clusters.other_ids.get(to_place.topic)
    if there is None:
        return f"there is no topic {to_place.topic}"
    if there != to_id:
        return f"topic {to_place.topic} was created again there (topic id {there}), the map knows {to_id}"
    end = clusters.other_ends.get(to_place)
    if end is not None and end < offset:
        return f"the log of {to_place} ends at {end:,}, below that place: it has lost records"
    return None


def _missing(
    held: Held,
    translator: CommitTranslator,
    lines: Mapping[SourcePartition, Line],
    clusters: Clusters,
    side: Side,
    other_start: int,
) -> str | None:
    """What a consumer could still read on the origin and never on the other cluster, as a sentence."""
    assert held.source is not None
    assert held.offset is not None
    line, effective = lines[held.source], _effective(held.place, held.offset, clusters)
    if side == "source" and effective < line.start:
        return f"offsets {effective:,} to {line.start - 1:,} were never mirrored: the map begins at {line.start:,}"
    if side == "target":
        older = [
            one
            for one in lines.values()
            if one.target == line.target and one.first_micro_batch < line.first_micro_batch and one.target_end > effective
        ]
        if older:
            return f"it is within the records of an older incarnation of {held.source.topic}, which the source no longer has"
    first = translator.place(Commit(held.source, effective)).offset
    if first < other_start:
        return f"the log there begins at {other_start:,}: {other_start - first:,} offsets from {first:,} on were deleted"
    return None


def may_commit(one: GroupPartition, *, is_forced: bool) -> bool:
    """Whether there is an offset to commit, whatever the other cluster has."""
    is_good = one.outcome is Outcome.TRANSLATED or (is_forced and one.outcome in (Outcome.WAITS, Outcome.LOST))
    return is_good and one.to_offset is not None


def next_step(one: GroupPartition, there: There, *, is_forced: bool) -> GroupPartition:
    """What may be done on the other cluster. Nothing for a group that has members there, nothing backwards unless forced."""
    if one.to_place is None:
        return one
    one = replace(one, has=there.offsets.get(one.to_place))
    if not may_commit(one, is_forced=is_forced):
        return one
    assert one.to_offset is not None
    if one.has == one.to_offset:
        return replace(one, step=Step.IN_PLACE)
    if one.has is not None and one.has > one.to_offset and not is_forced:
        return replace(one, step=Step.FURTHER, reason=f"the group went on there, to {one.has:,}: only --force takes it back")
    if not there.is_free:
        clients = ", ".join(there.clients[:3]) or "members"
        return replace(one, step=Step.ACTIVE, reason=f"the group is active there ({clients}): stop its consumers first")
    if one.to_place in there.offsets and one.has is None:
        return replace(one, step=Step.REFUSED, reason="a transaction of the group there is not over: ask again")
    return replace(one, step=Step.TO_COMMIT)
