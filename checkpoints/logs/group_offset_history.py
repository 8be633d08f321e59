"""Driver: committed offsets of consumer groups over time: the tables `group_offsets` and `group_syncs`.

A cluster knows only the current offsets of a group, so a running mirror or archive records them. A synchronization is a row of
`group_syncs`. It adds a row to `group_offsets` for every offset that changed, and from time to time for all of them, so that
readers begin there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Annotated

from shallow_mirror.checkpoints.rows.codec import Column, Inline, Int32, row_codec
from shallow_mirror.checkpoints.tables.best_effort_tables import BestEffortTables
from shallow_mirror.checkpoints.tables.table_protocol import Comparison
from shallow_mirror.errors import ConfigError
from shallow_mirror.plurals import counted
from shallow_mirror.types import SourcePartition

GROUP_OFFSETS_TABLE, GROUP_SYNCS_TABLE = "group_offsets", "group_syncs"

_RECENT = timedelta(days=1)
_INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPosition:
    """The committed offset of a group in a source partition. The target's fields are None if it led nowhere then."""

    group: str
    source: SourcePartition
    offset: Annotated[int | None, Column("committed_offset")]
    """None: the group has no offset there any more."""
    metadata: str = ""
    target_topic: str | None = None
    target_partition: Int32 | None = None
    target_offset: int | None = None
    """Where it led to then."""
    outcome: str | None = None

    @property
    def key(self) -> tuple[str, SourcePartition]:
        return self.group, self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPositionRow:
    """A row of the table `group_offsets`."""

    position: Annotated[GroupPosition, Inline()]
    observed_at: datetime


GROUP_OFFSETS = row_codec(GroupPositionRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSyncPass:
    """A row of the table `group_syncs`: one pass over all groups. Counts are of partitions of mirrored topics."""

    observed_at: datetime
    is_whole: bool = False
    """All positions were recorded."""
    group_count: int = 0
    partition_count: int = 0
    in_place_count: int = 0
    committed_count: int = 0
    waiting_count: int = 0
    left_count: int = 0
    """Those that cannot be moved as things stand."""
    seconds: float = 0.0
    problem: str | None = None
    """Why the pass failed; the counts are 0 then."""
    is_followed: bool = False
    """What groups commit was read from the source's log, also between the passes."""
    followed_count: int = 0
    """Commits that were read from there since the pass before."""
    oldest_s: float | None = None
    """Age of the oldest commit that could be moved and was not at the target yet; None where it is not known."""
    not_followed: str | None = None
    """Why it was not, although `groups.follow` wants it."""
    repeated_count: int | None = None
    """Estimate: records that a fail-over without the source repeats. None: not known; none where `is_followed`."""

    @property
    def repeats_sentence(self) -> str | None:
        """Return what it means for a fail-over that groups are polled; None where they are followed, or need not be."""
        if self.not_followed is None:
            return None
        count = "the records" if self.repeated_count is None else f"about {counted(self.repeated_count, 'record')}"
        return (
            f"a fail-over without the source repeats {count} that groups read between two synchronizations, because their "
            f"offsets are polled and not followed: {self.not_followed}"
        )


GROUP_SYNCS = row_codec(GroupSyncPass)


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionsAsOf:
    """`observed_at`: the last pass at or before the requested time. `next_at`: the first one after it, None if there was none."""

    positions: tuple[GroupPosition, ...]
    observed_at: datetime
    next_at: datetime | None


def changed_positions(
    before: Mapping[tuple[str, SourcePartition], GroupPosition],
    after: Mapping[tuple[str, SourcePartition], GroupPosition],
    *,
    is_whole: bool,
) -> list[GroupPosition]:
    """Return positions that are not as they were recorded before, or with `is_whole` all, and those that are gone. Pure."""
    departed = [
        GroupPosition(group=group, source=source, offset=None) for group, source in before if (group, source) not in after
    ]
    return [position for key, position in after.items() if is_whole or before.get(key) != position] + departed


def record_pass(tables: BestEffortTables, done: GroupSyncPass, changed: Iterable[GroupPosition]) -> bool:
    """Return False if the store is unreachable. Nothing counts as recorded then: a pass without its rows would hide them."""
    rows = [GroupPositionRow(position=position, observed_at=done.observed_at) for position in changed]
    positions = [(GROUP_OFFSETS_TABLE, GROUP_OFFSETS.to_arrow(rows))] if rows else []
    return tables.append_in_order([*positions, (GROUP_SYNCS_TABLE, GROUP_SYNCS.to_arrow([done]))])


def lost_rows(tables: BestEffortTables) -> int:
    """Return how many rows of passes and positions the tables were given and have lost."""
    return sum(tables.lost_rows(table) for table in (GROUP_OFFSETS_TABLE, GROUP_SYNCS_TABLE))


def delete_outdated(tables: BestEffortTables, since: datetime) -> None:
    """Delete rows that no query for a time from `since` on needs: those before the last complete pass until then."""
    passes = _read_passes(tables, Comparison("observed_at", "<=", since))
    whole = max((sync_pass.observed_at for sync_pass in passes if sync_pass.is_whole), default=None)
    has_old = whole is not None and any(sync_pass.observed_at < whole for sync_pass in passes)
    for table in (GROUP_OFFSETS_TABLE, GROUP_SYNCS_TABLE):
        if whole is not None and has_old:
            tables.delete(table, (Comparison("observed_at", "<=", whole - _INSTANT),))
        tables.tidy(table)


def thin_out(tables: BestEffortTables, since: datetime) -> None:
    """Delete rows between two complete passes up to `since`: a query for a time there gets those of the first."""
    passes = _read_passes(tables, Comparison("observed_at", "<=", since))
    whole = sorted(sync_pass.observed_at for sync_pass in passes if sync_pass.is_whole)
    for first, second in pairwise(whole):
        if any(first < sync_pass.observed_at < second for sync_pass in passes):
            for table in (GROUP_OFFSETS_TABLE, GROUP_SYNCS_TABLE):
                between = Comparison("observed_at", ">", first), Comparison("observed_at", "<=", second - _INSTANT)
                tables.delete(table, between)


def last_pass(tables: BestEffortTables, now: datetime) -> GroupSyncPass | None:
    return max(_passes(tables, now), key=lambda sync_pass: sync_pass.observed_at, default=None)


def positions_as_of(tables: BestEffortTables, at: datetime) -> PositionsAsOf:
    """Return the positions at a time. Raises ConfigError if no pass was made at or before it."""
    passes = [sync_pass for sync_pass in _passes(tables, at) if sync_pass.problem is None]
    whole = max((sync_pass.observed_at for sync_pass in passes if sync_pass.is_whole), default=None)
    if whole is None:
        raise ConfigError(
            f"no sync of the groups was recorded at or before {at.isoformat(timespec='seconds')}: a mirror keeps their positions "
            "while it runs with groups.sync in the mirror file"
        )
    between = (Comparison("observed_at", ">", whole - _INSTANT), Comparison("observed_at", "<=", at))
    newest: dict[tuple[str, SourcePartition], GroupPosition] = {}
    rows = GROUP_OFFSETS.rows(tables.read(GROUP_OFFSETS_TABLE, between))
    for row in sorted(rows, key=lambda row: row.observed_at):
        newest[row.position.key] = row.position
    after = (Comparison("observed_at", ">", at), Comparison("observed_at", "<=", at + _RECENT))
    later = [sync_pass.observed_at for sync_pass in _read_passes(tables, *after) if sync_pass.problem is None]
    return PositionsAsOf(
        positions=tuple(position for _, position in sorted(newest.items()) if position.offset is not None),
        observed_at=max(sync_pass.observed_at for sync_pass in passes),
        next_at=min(later, default=None),
    )


def _passes(tables: BestEffortTables, until: datetime) -> Sequence[GroupSyncPass]:
    """Return recent passes, if one of them was complete; else all."""
    before = Comparison("observed_at", "<=", until)
    recent = _read_passes(tables, before, Comparison("observed_at", ">", until - _RECENT))
    if any(sync_pass.is_whole for sync_pass in recent):
        return recent
    return _read_passes(tables, before)


def _read_passes(tables: BestEffortTables, *condition: Comparison) -> list[GroupSyncPass]:
    return GROUP_SYNCS.rows(tables.read(GROUP_SYNCS_TABLE, condition))
