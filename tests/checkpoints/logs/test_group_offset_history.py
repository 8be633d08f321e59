"""Positions of groups, as looks recorded them, at any time since."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from shallow_mirror.checkpoints.logs.group_offset_history import (
    GroupPosition,
    GroupSyncPass,
    delete_outdated,
    last_pass,
    positions_as_of,
    record_pass,
    thin_out,
)
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.checkpoints.tables.table_protocol import WriterName
from shallow_mirror.errors import ConfigError
from shallow_mirror.types import SourcePartition

A, B = SourcePartition("orders", "id1", 0), SourcePartition("orders", "id1", 1)
T0 = datetime(2026, 5, 1, 14, 0, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return T0 + timedelta(minutes=minutes)


@pytest.mark.slow
def test_the_positions_of_a_time_are_those_of_the_last_look_until_then(tmp_path: Path) -> None:
    store = TableStorage(str(tmp_path)).best_effort_tables()
    with pytest.raises(ConfigError, match="no sync of the groups was recorded at or before 2026-05-01T14:00:00"):
        positions_as_of(store, T0)
    record_pass(
        store,
        GroupSyncPass(observed_at=at(0), is_whole=True, group_count=2),
        [
            GroupPosition(group="g", source=A, offset=5, metadata="m", target_offset=7),
            GroupPosition(group="h", source=B, offset=1),
        ],
    )
    record_pass(store, GroupSyncPass(observed_at=at(1)), [GroupPosition(group="g", source=A, offset=6)])
    record_pass(store, GroupSyncPass(observed_at=at(2), problem="the source is unreachable"), ())
    record_pass(store, GroupSyncPass(observed_at=at(3)), [GroupPosition(group="h", source=B, offset=None)])
    record_pass(store, GroupSyncPass(observed_at=at(60), is_whole=True), [GroupPosition(group="g", source=A, offset=9)])

    def offsets(minutes: float) -> tuple[dict[tuple[str, SourcePartition], int | None], datetime, datetime | None]:
        positions = positions_as_of(store, at(minutes))
        return {position.key: position.offset for position in positions.positions}, positions.observed_at, positions.next_at

    assert offsets(0.5) == ({("g", A): 5, ("h", B): 1}, at(0), at(1))
    assert offsets(2.5) == ({("g", A): 6, ("h", B): 1}, at(1), at(3))
    assert offsets(3) == ({("g", A): 6}, at(3), at(60))
    assert offsets(90) == ({("g", A): 9}, at(60), None)
    assert offsets(60 * 24 * 9) == ({("g", A): 9}, at(60), None), "also long after the last look"
    positions = positions_as_of(store, at(0))
    assert positions.positions[0] == GroupPosition(group="g", source=A, offset=5, metadata="m", target_offset=7)
    recorded = last_pass(store, at(2.5))
    assert recorded is not None
    assert recorded.problem == "the source is unreachable"


@pytest.mark.slow
@pytest.mark.parametrize("writer", ["deltalake", pytest.param("spark", marks=[pytest.mark.spark, pytest.mark.long])])
def test_what_no_answer_needs_any_more_is_deleted_and_answers_stay(
    tmp_path: Path, writer: WriterName, request: pytest.FixtureRequest
) -> None:
    tables = str(tmp_path)
    spark = None if writer == "deltalake" else request.getfixturevalue("spark")
    store = TableStorage(tables, spark, writer=writer).best_effort_tables()
    delete_outdated(store, at(0))  # tables that are not there

    def look(minutes: float, offset: int | None, *, is_whole: bool = False) -> None:
        done = GroupSyncPass(observed_at=at(minutes), is_whole=is_whole)
        record_pass(store, done, [GroupPosition(group="g", source=A, offset=offset)])

    look(0, 1, is_whole=True)
    look(1, 2)
    look(60, 3, is_whole=True)
    look(61, 4)
    look(120, 5, is_whole=True)

    def kept() -> tuple[list[datetime], list[datetime]]:
        offsets, looks = (sorted(row["observed_at"] for row in store.read(name, ())) for name in ("group_offsets", "group_syncs"))
        return offsets, looks

    delete_outdated(store, at(59))
    everything = [at(minutes) for minutes in (0, 1, 60, 61, 120)]
    assert kept() == (everything, everything)
    for since in (61.5, 119):
        delete_outdated(store, at(since))
        assert kept() == (everything[2:], everything[2:])
    assert [position.offset for position in positions_as_of(store, at(61.5)).positions] == [4]
    delete_outdated(store, at(60 * 24 * 400))
    assert kept() == (everything[4:], everything[4:])
    assert [position.offset for position in positions_as_of(store, at(60 * 24 * 400)).positions] == [5]


@pytest.mark.slow
def test_between_complete_passes_notes_are_thinned_out_up_to_a_time(tmp_path: Path) -> None:
    store = TableStorage(str(tmp_path)).best_effort_tables()
    thin_out(store, at(0))  # tables that are not there
    for minutes, offset, is_whole in ((0, 1, True), (1, 2, False), (60, 3, True), (61, 4, False), (120, 5, True)):
        done = GroupSyncPass(observed_at=at(minutes), is_whole=is_whole)
        record_pass(store, done, [GroupPosition(group="g", source=A, offset=offset)])

    def recorded() -> list[datetime]:
        offsets = sorted(row["observed_at"] for row in store.read("group_offsets", ()))
        assert offsets == sorted(row["observed_at"] for row in store.read("group_syncs", ()))
        return offsets

    thin_out(store, at(59))
    assert recorded() == [at(minutes) for minutes in (0, 1, 60, 61, 120)]
    thin_out(store, at(119))
    assert recorded() == [at(minutes) for minutes in (0, 60, 61, 120)]
    assert [position.offset for position in positions_as_of(store, at(30)).positions] == [1]
    assert [position.offset for position in positions_as_of(store, at(90)).positions] == [4]
    thin_out(store, at(121))
    assert recorded() == [at(minutes) for minutes in (0, 60, 120)]
