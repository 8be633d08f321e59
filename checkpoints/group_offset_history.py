"""Driver: committed offsets of consumer groups over time: the tables `group_offsets` and `group_syncs`.

A cluster knows only the current offsets of a group, so a running mirror or archive records them. A synchronization is a row of
`group_syncs`. It adds a row to `group_offsets` for every offset that changed, and from time to time for all of them, so that
readers begin there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pyarrow as pa

from shallow_mirror.checkpoints.best_effort_tables import BestEffortTables
from shallow_mirror.checkpoints.schema import TIMESTAMP
from shallow_mirror.checkpoints.table_protocol import Comparison
from shallow_mirror.errors import ConfigError
from shallow_mirror.types import SourcePartition

GROUP_OFFSETS_TABLE, GROUP_SYNCS_TABLE = "group_offsets", "group_syncs"

GROUP_OFFSETS = pa.schema(
    [
        ("group", pa.string()),
        ("source_topic", pa.string()),
        ("source_topic_id", pa.string()),
        ("source_partition", pa.int32()),
        ("committed_offset", pa.int64()),
        ("metadata", pa.string()),
        ("target_topic", pa.string()),
        ("target_partition", pa.int32()),
        ("target_offset", pa.int64()),
        ("outcome", pa.string()),
        ("observed_at", TIMESTAMP),
    ]
)
"""`committed_offset` is null from when on the group has none any more. `target_offset` is where it led to then."""

GROUP_SYNCS = pa.schema(
    [
        ("observed_at", TIMESTAMP),
        ("is_whole", pa.bool_()),
        ("group_count", pa.int64()),
        ("partition_count", pa.int64()),
        ("in_place_count", pa.int64()),
        ("committed_count", pa.int64()),
        ("waiting_count", pa.int64()),
        ("left_count", pa.int64()),
        ("seconds", pa.float64()),
        ("problem", pa.string()),
    ]
)

_RECENT = timedelta(days=1)
_INSTANT = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPosition:
    """`offset` None: the group has no offset there any more. The target's fields are None where it led nowhere then."""

    group: str
    source: SourcePartition
    offset: int | None
    metadata: str = ""
    target_topic: str | None = None
    target_partition: int | None = None
    target_offset: int | None = None
    outcome: str | None = None

    @property
    def key(self) -> tuple[str, SourcePartition]:
        return self.group, self.source


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSyncPass:
    """One pass over all groups. `is_whole`: all positions were recorded. Counts are of partitions of mirrored topics.

    `left_count`: those that cannot be moved as things stand. `problem`: why the pass failed; the counts are 0 then.
    """

    observed_at: datetime
    is_whole: bool = False
    group_count: int = 0
    partition_count: int = 0
    in_place_count: int = 0
    committed_count: int = 0
    waiting_count: int = 0
    left_count: int = 0
    seconds: float = 0.0
    problem: str | None = None


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


def record_pass(tables: BestEffortTables, done: GroupSyncPass, changed: Iterable[GroupPosition]) -> None:
    rows = [_row(position, done.observed_at) for position in changed]
    if rows:
        tables.append(GROUP_OFFSETS_TABLE, pa.Table.from_pylist(rows, schema=GROUP_OFFSETS))
    tables.append(GROUP_SYNCS_TABLE, pa.Table.from_pylist([asdict(done)], schema=GROUP_SYNCS))


def delete_outdated(tables: BestEffortTables, since: datetime) -> None:
    """Delete what no query for a time from `since` on needs: what lies before the last complete pass until then."""
    passes = [_pass(row) for row in tables.read(GROUP_SYNCS_TABLE, (Comparison("observed_at", "<=", since),))]
    whole = max((sync_pass.observed_at for sync_pass in passes if sync_pass.is_whole), default=None)
    has_old = whole is not None and any(sync_pass.observed_at < whole for sync_pass in passes)
    for table in (GROUP_OFFSETS_TABLE, GROUP_SYNCS_TABLE):
        if whole is not None and has_old:
            tables.delete(table, (Comparison("observed_at", "<=", whole - _INSTANT),))
        tables.tidy(table)


def thin_out(tables: BestEffortTables, since: datetime) -> None:
    """Delete what lies between two complete passes up to `since`: a query for a time there gets those of the first."""
    passes = [_pass(row) for row in tables.read(GROUP_SYNCS_TABLE, (Comparison("observed_at", "<=", since),))]
    whole = sorted(sync_pass.observed_at for sync_pass in passes if sync_pass.is_whole)
    for first, second in pairwise(whole):
        if any(first < sync_pass.observed_at < second for sync_pass in passes):
            for table in (GROUP_OFFSETS_TABLE, GROUP_SYNCS_TABLE):
                between = Comparison("observed_at", ">", first), Comparison("observed_at", "<=", second - _INSTANT)
                tables.delete(table, between)


def last_pass(tables: BestEffortTables, now: datetime) -> GroupSyncPass | None:
    return max(_passes(tables, now), key=lambda sync_pass: sync_pass.observed_at, default=None)


def positions_as_of(tables: BestEffortTables, at: datetime) -> PositionsAsOf:
    """Return the positions at a time. Raises ConfigError where no pass was made at or before it."""
    passes = [sync_pass for sync_pass in _passes(tables, at) if sync_pass.problem is None]
    whole = max((sync_pass.observed_at for sync_pass in passes if sync_pass.is_whole), default=None)
    if whole is None:
        raise ConfigError(
            f"no sync of the groups was recorded at or before {at.isoformat(timespec='seconds')}: a mirror keeps their positions "
            "while it runs with groups.sync in the mirror file"
        )
    between = (Comparison("observed_at", ">", whole - _INSTANT), Comparison("observed_at", "<=", at))
    newest: dict[tuple[str, SourcePartition], GroupPosition] = {}
    for row in sorted(tables.read(GROUP_OFFSETS_TABLE, between), key=lambda row: row["observed_at"]):
        position = _position(row)
        newest[position.key] = position
    after = (Comparison("observed_at", ">", at), Comparison("observed_at", "<=", at + _RECENT))
    later = [_pass(row).observed_at for row in tables.read(GROUP_SYNCS_TABLE, after) if row["problem"] is None]
    return PositionsAsOf(
        positions=tuple(position for _, position in sorted(newest.items()) if position.offset is not None),
        observed_at=max(sync_pass.observed_at for sync_pass in passes),
        next_at=min(later, default=None),
    )


def _passes(tables: BestEffortTables, until: datetime) -> Sequence[GroupSyncPass]:
    """Return recent passes, where one of them was complete; else all."""
    before = Comparison("observed_at", "<=", until)
    recent = [_pass(row) for row in tables.read(GROUP_SYNCS_TABLE, (before, Comparison("observed_at", ">", until - _RECENT)))]
    if any(sync_pass.is_whole for sync_pass in recent):
        return recent
    return [_pass(row) for row in tables.read(GROUP_SYNCS_TABLE, (before,))]


def _pass(row: Mapping[str, Any]) -> GroupSyncPass:
    fields = {name: row[name] for name in GROUP_SYNCS.names}
    return GroupSyncPass(**{**fields, "observed_at": fields["observed_at"].astimezone(UTC)})


def _row(position: GroupPosition, observed_at: datetime) -> dict[str, Any]:
    return {
        "group": position.group,
        "source_topic": position.source.topic,
        "source_topic_id": position.source.topic_id,
        "source_partition": position.source.partition,
        "committed_offset": position.offset,
        "metadata": position.metadata,
        "target_topic": position.target_topic,
        "target_partition": position.target_partition,
        "target_offset": position.target_offset,
        "outcome": position.outcome,
        "observed_at": observed_at,
    }


def _position(row: Mapping[str, Any]) -> GroupPosition:
    return GroupPosition(
        group=row["group"],
        source=SourcePartition(row["source_topic"], row["source_topic_id"], row["source_partition"]),
        offset=row["committed_offset"],
        metadata=row["metadata"] or "",
        target_topic=row["target_topic"],
        target_partition=row["target_partition"],
        target_offset=row["target_offset"],
        outcome=row["outcome"],
    )
