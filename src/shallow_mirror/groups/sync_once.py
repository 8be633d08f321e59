"""Driver, for the cli: translation of all groups of one cluster, and commits on the other. Starts no JVM."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from datetime import datetime
from typing import Any

from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.logs import positions_as_of
from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.groups.report import AsOf, Group, GroupsReport
from shallow_mirror.groups.sync_plan import Committed, GroupOffsets, translate, with_repeats

REQUEST_S = 15.0
"""Timeout of each request to a cluster; less where `request.timeout.ms` is."""


def sync_groups(
    config: MirrorConfig,
    *,
    spark: Any = None,
    pattern: str | None = None,
    is_reverse: bool = False,
    as_of: datetime | None = None,
    left_out: Collection[str] = (),
    is_applied: bool = False,
    is_forced: bool = False,
    transactional_id: str | None = None,
    are_ends_final: bool = False,
    keeps_handed_over: bool = True,
    on_wait: Callable[[str], None] = lambda _: None,
) -> GroupsReport:
    """`pattern`: a regular expression on whole names; None: every group that the mirror file includes. `as_of`: positions that a
    running mirror has recorded; the source is not queried then. `left_out`: topics whose recorded positions are not used.
    `transactional_id`: commit all groups in one transaction of this id, or none; where one of them changed meanwhile,
    RetriableError is raised. `are_ends_final`: as in `Clusters`. `keeps_handed_over`: leave offsets at the target alone of topics
    that a migration or fail-over has handed over, unless `is_forced`. `on_wait` receives what is waited for from then on.

    Raises ConfigError, RetriableError, OffsetMapConflictError. With `is_applied` groups may have been committed before it raises.
    """
    is_wanted = group_filter(pattern)
    storage = TableStorage(config.table_location, spark)
    offset_map = OffsetMap.open(storage, mirror=config.mirror)
    side, noted = ("target" if is_reverse else "source"), None
    if as_of is not None:
        if is_reverse:
            raise ConfigError("--as-of and --reverse exclude each other: only offsets of the source's groups are recorded")
        noted = positions_as_of(storage.best_effort_tables(), as_of)
    opened = GroupOffsets(config, "target" if is_reverse else "source", timeout_s=REQUEST_S, transactional_id=transactional_id)
    with closing(opened) as groups:
        on_wait(f"{groups.other_name} to answer")
        if is_applied:
            groups.other.begin_commits()
        groups.require(groups.other, offset_map)
        on_wait(f"the groups of {groups.origin_name} and their committed offsets")
        if noted is None:
            committed = _committed(groups, offset_map, is_wanted)
        else:
            chosen = (
                position
                for position in noted.positions
                if config.groups.is_included(position.group)
                and is_wanted(position.group)
                and position.source.topic not in left_out
            )
            committed = [
                Committed(
                    position.group, position.source.topic_partition, position.offset, position.metadata, position.source.topic_id
                )
                for position in chosen
            ]
        may_hide = noted is None and groups.origin.may_hide_groups()
        if pattern is not None and not committed:
            hint = "; one that the mirror's user may not Describe is not shown" if may_hide else ""
            raise ConfigError(f"--group {pattern}: no group of this name has committed offsets on the {side}{hint}")
        planned = plan_committed(
            groups,
            committed,
            offset_map,
            storage,
            asks_origin=noted is None,
            are_ends_final=are_ends_final,
            keeps_handed_over=keeps_handed_over,
            is_applied=is_applied,
            is_forced=is_forced,
            on_wait=on_wait,
        )
    origin, other = (config.target, config.source) if is_reverse else (config.source, config.target)
    return GroupsReport(
        mirror=config.mirror,
        origin=origin.alias,
        other=other.alias,
        groups=planned,
        may_hide_groups=may_hide,
        as_of=None if noted is None or as_of is None else AsOf(asked=as_of, observed_at=noted.observed_at, next_at=noted.next_at),
    )


def plan_committed(
    groups: GroupOffsets,
    committed: Iterable[Committed],
    offset_map: OffsetMap,
    storage: TableStorage,
    *,
    asks_origin: bool = True,
    are_ends_final: bool = False,
    keeps_handed_over: bool = True,
    is_applied: bool,
    is_forced: bool,
    on_wait: Callable[[str], None],
) -> tuple[Group, ...]:
    """Translate offsets of the origin, and with `is_applied` commit them on the other cluster. Raises as `sync_groups`.

    `asks_origin`: the origin answers, so that its log starts can be requested. `are_ends_final`: as in `Clusters`.
    `keeps_handed_over`: as in `sync_groups`.
    """
    on_wait("the rows of the offset map that these offsets lead to")
    offset_map.refresh()
    controls = Controls.open(storage)
    forgotten = controls.read().forgotten
    keeps_moving = keeps_handed_over and not is_forced and groups.side == "source"
    source_commits = groups.resolve_sources(committed, offset_map, forgotten)
    if asks_origin:
        groups.require_all_resolved(source_commits, offset_map, forgotten)
    clusters = groups.clusters(source_commits, offset_map, forgotten, asks_origin=asks_origin, are_ends_final=are_ends_final)
    translator = translate(source_commits, clusters, offset_map, groups.side)
    evaluated = with_repeats(groups.evaluate(source_commits, translator, clusters), translator, offset_map, groups.side)
    on_wait(f"commits at {groups.other_name}" if is_applied else f"the groups of {groups.other_name}")
    handed_over = (lambda: controls.read().moving) if keeps_moving else frozenset[str]
    return tuple(groups.plan_commits(evaluated, is_applied=is_applied, is_forced=is_forced, handed_over=handed_over))


def _committed(groups: GroupOffsets, offset_map: OffsetMap, is_wanted: Callable[[str], bool]) -> list[Committed]:
    try:
        groups.require(groups.origin, offset_map)
        return groups.committed(is_wanted)
    except RetriableError as error:
        if groups.side == "target":
            raise
        hint = "If it is gone, --as-of now uses what groups.sync has recorded"
        raise RetriableError(error.error_name, f"{error.detail}. {hint}") from error


def group_filter(pattern: str | None) -> Callable[[str], bool]:
    """Return whether --group selects a name: a regular expression on whole names, or the name itself. Raises ConfigError."""
    if pattern is None:
        return lambda _: True
    try:
        wanted = re.compile(pattern, re.DOTALL)
    except re.error as error:
        raise ConfigError(f"--group: {pattern!r} is not a regular expression: {error}") from error
    return lambda group: group == pattern or wanted.fullmatch(group) is not None
