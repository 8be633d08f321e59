"""Positions of groups, as looks noted them, at any time since."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from shallow_mirror.checkpoints.group_positions import GroupPosition, GroupSyncPass, last_pass, note_pass, positions_as_of
from shallow_mirror.checkpoints.observation_stores import DeltalakeStore
from shallow_mirror.errors import ConfigError
from shallow_mirror.types import SourcePartition

A, B = SourcePartition("orders", "id1", 0), SourcePartition("orders", "id1", 1)
T0 = datetime(2026, 5, 1, 14, 0, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return T0 + timedelta(minutes=minutes)


def test_the_positions_of_a_time_are_those_of_the_last_look_until_then(tmp_path: Path) -> None:
    store = DeltalakeStore(str(tmp_path))
    with pytest.raises(ConfigError, match="nobody looked at the groups at or before 2026-05-01T14:00:00"):
        positions_as_of(store, T0)
    note_pass(
        store,
        GroupSyncPass(observed_at=at(0), is_whole=True, group_count=2),
        [
            GroupPosition(group="g", source=A, offset=5, metadata="m", target_offset=7),
            GroupPosition(group="h", source=B, offset=1),
        ],
    )
    note_pass(store, GroupSyncPass(observed_at=at(1)), [GroupPosition(group="g", source=A, offset=6)])
    note_pass(store, GroupSyncPass(observed_at=at(2), problem="the source is away"), ())
    note_pass(store, GroupSyncPass(observed_at=at(3)), [GroupPosition(group="h", source=B, offset=None)])
    note_pass(store, GroupSyncPass(observed_at=at(60), is_whole=True), [GroupPosition(group="g", source=A, offset=9)])

    def offsets(minutes: float) -> tuple[dict[tuple[str, SourcePartition], int | None], datetime, datetime | None]:
        found = positions_as_of(store, at(minutes))
        return {one.key: one.offset for one in found.positions}, found.observed_at, found.next_at

    assert offsets(0.5) == ({("g", A): 5, ("h", B): 1}, at(0), at(1))
    assert offsets(2.5) == ({("g", A): 6, ("h", B): 1}, at(1), at(3))
    assert offsets(3) == ({("g", A): 6}, at(3), at(60))
    assert offsets(90) == ({("g", A): 9}, at(60), None)
    assert offsets(60 * 24 * 9) == ({("g", A): 9}, at(60), None), "also long after the last look"
    found = positions_as_of(store, at(0))
    assert found.positions[0] == GroupPosition(group="g", source=A, offset=5, metadata="m", target_offset=7)
    noted = last_pass(store, at(2.5))
    assert noted is not None
    assert noted.problem == "the source is away"
