"""Driver: commit to the target of a restore the offsets that an archive noted of the source's groups: those at the cut."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.logs import GroupPosition, positions_as_of
from shallow_mirror.checkpoints.tables import BestEffortTables
from shallow_mirror.config import RestoreConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.groups.eligibility import Clusters, SourceCommit
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.groups.report import Group, Step
from shallow_mirror.groups.sync_plan import GroupCommits, translate, with_repeats
from shallow_mirror.plurals import counted, listed
from shallow_mirror.types import OffsetRange, SourcePartition

_log = logging.getLogger(__name__)

REQUEST_S = 30.0
"""Timeout of each request to the target."""


def noted_positions(tables: BestEffortTables, times: Mapping[str, datetime]) -> tuple[GroupPosition, ...]:
    """Return the positions on each topic that the archive recorded last at or before its time.

    `times`: by topic. Logs a warning for a time at or before which none was recorded.
    """
    positions: list[GroupPosition] = []
    for at in sorted(set(times.values())):
        try:
            recorded = positions_as_of(tables, at).positions
        except ConfigError:
            _log.warning(
                "groups: the archive has recorded no offsets of groups at or before %s (groups.interval): none is committed",
                at.isoformat(timespec="seconds"),
            )
            continue
        positions += [position for position in recorded if times.get(position.source.topic) == at]
    return tuple(positions)


def clamped(position: GroupPosition, offsets: OffsetRange) -> int:
    """Return the offset at which a group continues after a restore: nothing behind the cut was restored."""
    assert position.offset is not None
    return min(max(position.offset, offsets.start), offsets.end)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGroup:
    """A group whose offsets a restore will commit once it is complete."""

    group: str
    offsets: Mapping[str, int]
    """Of the archived partitions, inside of what is restored; translated only when they are committed."""
    state: str
    """Of the group at the target, as Kafka names it; "not there" where it lists none."""
    is_free: bool
    """Whether it has no members there. Offsets of others are not committed."""

    def sentence(self) -> str:
        offsets = listed(f"{partition} at {offset:,}" for partition, offset in self.offsets.items())
        active = "" if self.is_free else ", and is left out while it has members there: stop its consumers"
        return f"group {self.group}: {offsets}; at the target it is {self.state}{active}"


def planned_groups(
    config: RestoreConfig,
    positions: Iterable[GroupPosition],
    ranges: Mapping[SourcePartition, OffsetRange],
    target: GroupClient,
) -> list[PlannedGroup]:
    """Return the groups and offsets that `restore_groups` will commit, in order. Raises RetriableError, ConfigError."""
    offsets: dict[str, dict[str, int]] = {}
    for position in _wanted(config, positions, ranges):
        offsets.setdefault(position.group, {})[str(position.source.topic_partition)] = clamped(position, ranges[position.source])
    remote = target.listed() if offsets else {}
    return [
        PlannedGroup(
            group=group,
            offsets=dict(sorted(of_group.items())),
            state=remote[group].state.lower() if group in remote else "not there",
            is_free=group not in remote or remote[group].is_free,
        )
        for group, of_group in sorted(offsets.items())
    ]


def _wanted(
    config: RestoreConfig, positions: Iterable[GroupPosition], ranges: Mapping[SourcePartition, OffsetRange]
) -> list[GroupPosition]:
    return [position for position in positions if position.source in ranges and config.groups.is_included(position.group)]


def restore_groups(
    config: RestoreConfig,
    positions: Iterable[GroupPosition],
    ranges: Mapping[SourcePartition, OffsetRange],
    offset_map: OffsetMap,
    target: GroupClient,
) -> list[Group]:
    """Commit the positions, translated by the map of the restore, for groups without members there. Nothing moves back.

    All of the restore must be settled. Raises RetriableError, ConfigError; some groups may have been committed then.
    """
    commits = GroupCommits(target)
    source_commits = [
        SourceCommit(
            position.group,
            position.source.topic_partition,
            clamped(position, ranges[position.source]),
            position.metadata,
            position.source,
            "",
        )
        for position in _wanted(config, positions, ranges)
    ]
    if not source_commits:
        return []
    translator = translate(source_commits, Clusters(), offset_map, "source")
    evaluated = with_repeats(commits.evaluate(source_commits, translator, Clusters()), translator, offset_map, "source")
    return list(commits.plan_commits(evaluated, is_applied=True))


def report_groups(groups: Collection[Group]) -> list[str]:
    """Log one line for each group, and one for each offset that was not committed. Return those that are left out.

    A group that has read on at the target is not left out: it is never moved back.
    """
    left_out = []
    for group in groups:
        steps = group.steps()
        done = f"{counted(steps[Step.COMMITTED.value], 'offset')} committed"
        if steps[Step.IN_PLACE.value]:
            done += f", {steps[Step.IN_PLACE.value]:,} in place"
        _log.info("group %s: %s of %s", group.name, done, counted(len(group.partitions), "partition"))
        for partition in group.partitions:
            if partition.step not in (Step.COMMITTED, Step.IN_PLACE):
                why = partition.reason or partition.outcome.value
                if partition.step is Step.FURTHER:
                    why = f"the group has offset {partition.has:,} there, and is never moved back"
                _log.warning("group %s: %s was not committed: %s", group.name, partition.topic_partition, why)
                if partition.is_left:
                    left_out.append(f"the offset of group {group.name} in {partition.topic_partition}: {why}")
    return left_out
