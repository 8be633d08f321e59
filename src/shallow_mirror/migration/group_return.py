"""Driver: the groups of a wave on their way back: through the map of the move, or through that of the reverse mirror.

If a log of the target ended at the point of no return, the maps meet: what lies below was copied there, what lies above was
written there and copied back. A group that stopped below continues at the record that it read at the target last time, one
that stopped above at the copy of its next record. All of a partition or topic that came to the target since lies above.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import replace

from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.groups.offset_translation import Commit, CommitTranslator
from shallow_mirror.groups.report import Group, GroupPartition, GroupsReport, Outcome, Step
from shallow_mirror.groups.sync_once import REQUEST_S
from shallow_mirror.groups.sync_plan import Committed, GroupOffsets, add_rows, translate, with_repeats
from shallow_mirror.migration.topic_ids import copied_ids, created_again
from shallow_mirror.types import TopicPartition


def return_groups(
    mirror: MirrorConfig,
    reverse: MirrorConfig,
    boundary: Mapping[TopicPartition, int],
    pattern: str,
    *,
    left: Collection[str] = (),
    are_ends_final: bool = False,
    is_applied: bool,
    transactional_id: str,
) -> GroupsReport:
    """Translate the offsets that groups have at the target of `mirror`, and commit them at its source if `is_applied`.

    `boundary`: ends of the logs of the target at the point of no return. `left`: topics at the target that do not come back, as
    those that were moved were deleted. `are_ends_final`: `reverse` copies nothing more of the wave. `transactional_id`: as
    `sync_groups` has it, which raises the same.
    """
    is_wanted = re.compile(pattern, re.DOTALL).fullmatch
    with (
        closing(GroupOffsets(mirror, "target", timeout_s=REQUEST_S, transactional_id=transactional_id)) as through_move,
        closing(GroupOffsets(reverse, "source", timeout_s=REQUEST_S)) as through_reverse,
    ):
        if is_applied:
            through_move.other.begin_commits()
        every = through_move.committed(lambda group: is_wanted(group) is not None)
        committed = [commit for commit in every if commit.topic_partition.topic not in left]
        ids = through_move.origin.topic_ids(commit.topic_partition.topic for commit in committed)
        replaced = created_again(ids, copied_ids(mirror))
        below, above = split(committed, boundary, _mirrored_topics(reverse), replaced)
        # Of a topic that was created again, the boundary says nothing.
        names = boundary.keys() - {name for name in boundary if name.topic in replaced}
        moved, newer = _parted(above, names)
        returned = _evaluated(through_reverse, reverse, moved)
        # No record was written behind the boundary, only markers or aborted data: the group has read all that the move copied.
        without_copies = {(partition.group, partition.topic_partition) for partition in returned if leads_to_no_copy(partition)}
        below += [
            commit._replace(offset=boundary[commit.topic_partition])
            for commit in moved
            if (commit.group, commit.topic_partition) in without_copies
        ]
        returned = [partition for partition in returned if (partition.group, partition.topic_partition) not in without_copies]
        returned += _evaluated(through_reverse, reverse, newer, are_ends_final=are_ends_final)
        evaluated = [*_evaluated(through_move, mirror, below), *returned]
        planned = tuple(through_move.plan_commits(evaluated, is_applied=is_applied))
        groups = _with_equal_offsets(planned, mirror)
        may_hide = through_move.origin.may_hide_groups()
    return GroupsReport(
        mirror=reverse.mirror,
        origin=mirror.target.alias,
        other=mirror.source.alias,
        groups=groups,
        may_hide_groups=may_hide,
    )


def require_map_of_move(mirror: MirrorConfig, ends: Mapping[TopicPartition, int], wave: str) -> None:
    """Raise ConfigError if the map of the move lacks rows that it had: offsets of groups would be translated to earlier ones.

    The mirror that wrote them copies nothing any more, so no start of it notices that. `ends`: of the logs of the source at the
    point of no return, up to which the move had copied.
    """
    copied: dict[TopicPartition, int] = {}
    for source, position in OffsetMap.open(TableStorage(mirror.table_location), mirror=mirror.mirror).positions().items():
        copied[source.topic_partition] = max(position.offset, copied.get(source.topic_partition, 0))
    lacking = {name: end for name, end in ends.items() if copied.get(name, 0) < end}
    if lacking:
        name, end = min(lacking.items())
        raise ConfigError(
            f"the tables of mirror {mirror.mirror} are older than the move: {name} was copied up to offset {end:,}, and they "
            f"have it up to {copied.get(name, 0):,}. Put the newest tables back (all of the folder or prefix of `tables`). If "
            f"they are lost, take the groups of wave {wave} out of the file (while the rollback is under way, `migrate abort` "
            f"before), and reset them at {mirror.source.alias} yourself"
        )


def _with_equal_offsets(groups: tuple[Group, ...], config: MirrorConfig) -> tuple[Group, ...]:
    """Count offsets as in place that differ from the translated ones by markers only.

    A consumer that has read everything commits the offset behind the markers at the end of a log, which no translation leads to.
    """
    further = {
        Commit(partition.source, offset)
        for group in groups
        for partition in group.partitions
        if partition.step is Step.FURTHER and partition.source is not None
        for offset in (partition.to_offset, partition.has)
        if offset is not None
    }
    if not further:
        return groups
    translator = CommitTranslator(further, "source")
    offset_map = OffsetMap.open(TableStorage(config.table_location), mirror=config.mirror)
    add_rows(translator, offset_map, {commit.source.topic for commit in further}, 0)
    known = translator.lines()

    def is_equal(partition: GroupPartition) -> bool:
        if partition.step is not Step.FURTHER or partition.source not in known:
            return False
        assert partition.source is not None
        assert partition.to_offset is not None
        assert partition.has is not None
        if partition.has > known[partition.source].position:
            return False
        ends = (translator.translate(Commit(partition.source, offset)).offset for offset in (partition.to_offset, partition.has))
        return next(ends) == next(ends)

    return tuple(
        replace(
            group,
            partitions=tuple(
                partition._replace(step=Step.IN_PLACE, reason=None) if is_equal(partition) else partition
                for partition in group.partitions
            ),
        )
        for group in groups
    )


def leads_to_no_copy(partition: GroupPartition) -> bool:
    """Return whether all up to an offset is mirrored, and no record of its partition was copied."""
    return partition.outcome is Outcome.WAITS and partition.to_offset is None and partition.waits_for == 0


def _mirrored_topics(config: MirrorConfig) -> frozenset[str]:
    offset_map = OffsetMap.open(TableStorage(config.table_location), mirror=config.mirror)
    return frozenset(source.topic for source in offset_map.positions())


def split(
    committed: Iterable[Committed],
    boundary: Mapping[TopicPartition, int],
    mirrored_back: Collection[str],
    replaced: Collection[str] = (),
) -> tuple[list[Committed], list[Committed]]:
    """Pure. Return the offsets up to the boundary, and those above it. One that is not known yet counts as below.

    `mirrored_back`: topics that the reverse mirror copies. `replaced`: those that were created again, above it in any case.
    """
    below: list[Committed] = []
    above: list[Committed] = []
    returning = {name.topic for name in boundary}.union(mirrored_back)
    for commit in committed:
        name, offset = commit.topic_partition, commit.offset
        is_newer = name not in boundary and name.topic in returning  # a partition or topic that came after the move
        is_above = offset is not None and (is_newer or offset > boundary.get(name, offset))
        (above if is_above or name.topic in replaced else below).append(commit)
    return below, above


def _parted(committed: Iterable[Committed], names: Collection[TopicPartition]) -> tuple[list[Committed], list[Committed]]:
    """Return those of partitions with these names, and the others."""
    within, others = list[Committed](), list[Committed]()
    for commit in committed:
        (within if commit.topic_partition in names else others).append(commit)
    return within, others


def _evaluated(
    groups: GroupOffsets, config: MirrorConfig, committed: list[Committed], *, are_ends_final: bool = False
) -> list[GroupPartition]:
    if not committed:
        return []
    storage = TableStorage(config.table_location)
    offset_map, forgotten = OffsetMap.open(storage, mirror=config.mirror), Controls.open(storage).read().forgotten
    groups.require(groups.origin, offset_map)
    groups.require(groups.other, offset_map)
    source_commits = groups.resolve_sources(committed, offset_map, forgotten)
    clusters = groups.clusters(source_commits, offset_map, forgotten, are_ends_final=are_ends_final)
    translator = translate(source_commits, clusters, offset_map, groups.side)
    return with_repeats(groups.evaluate(source_commits, translator, clusters), translator, offset_map, groups.side)
