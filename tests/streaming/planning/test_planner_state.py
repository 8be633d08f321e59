"""What a driver may conclude from the planner's note about the micro-batch that was just done."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shallow_mirror.access import AccessPass
from shallow_mirror.streaming.planning.planner_state import (
    MOST_PLANNED_RANGES,
    PlannerState,
    StartState,
    TopicsState,
    lag_behind,
    measurements_path,
    planner_state_path,
    read_measurements,
    read_planned_ranges,
    read_state,
    topics_state_path,
    write_planned_ranges,
    write_state,
)
from shallow_mirror.types import PlannedRange, SourcePartition

A, B, NEW = (SourcePartition("orders", "idA", partition) for partition in range(3))


def note(**changes: Any) -> PlannerState:
    defaults: dict[str, Any] = {"at_ms": 5000, "waiting_for": None, "since_ms": None, "ends": {A: 100, B: 40}}
    return PlannerState(**(defaults | changes))


def test_the_lag_is_what_the_positions_lack_to_the_noted_ends() -> None:
    assert lag_behind(note(), {A: 90, B: 37}, since_ms=5000) == 13
    assert lag_behind(note(), {A: 100, B: 45}, since_ms=5000) == 0


def test_a_partition_that_only_enters_or_has_no_leader_does_not_count() -> None:
    assert lag_behind(note(ends={A: 100, NEW: 7}), {A: 90, B: 37}, since_ms=5000) == 10


@pytest.mark.parametrize("planner_state", [None, note(waiting_for="brokers", since_ms=1, ends={}), note(at_ms=4999)])
def test_no_note_a_wait_and_a_note_of_an_earlier_run_say_nothing_about_the_lag(planner_state: PlannerState | None) -> None:
    assert lag_behind(planner_state, {A: 90}, since_ms=5000) is None


def test_mirrors_whose_checkpoints_lie_in_one_folder_have_notes_of_their_own() -> None:
    of = [
        {path(f"/checkpoints/{mirror}") for path in (planner_state_path, measurements_path, topics_state_path)}
        for mirror in ("a", "b")
    ]
    assert len(of[0] | of[1]) == 6
    assert planner_state_path("s3://bucket/checkpoint") is None


def test_a_note_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = note(waiting_for="brokers", since_ms=7, error_name="DEADLINE", ends={A: 100, B: 40})
    write_state(tmp_path / "note.json", written)
    assert read_state(tmp_path / "note.json", PlannerState) == written


def test_a_note_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    ends = '{"version": 1, "topics": {"orders": {"id": "idA", "partitions": {"0": 100, "1": 40}}}}'
    (tmp_path / "note.json").write_text(
        '{"at_ms": 5000, "waiting_for": null, "since_ms": null, "error_name": null, "left_out": [{"topic": "orders"}], '
        f'"caught_up": [["orders", "idA", 1]], "ends": {ends}}}'
    )
    assert read_state(tmp_path / "note.json", PlannerState) == note(left_out=({"topic": "orders"},), caught_up=(B,))
    (tmp_path / "acls.json").write_text(
        '{"at_ms": 7, "is_compared": true, "lacking": 1, "created": 2, "deleted": 3, "not_copied": 4, "problem": null}'
    )
    expected = AccessPass(at_ms=7, lacking=1, created=2, deleted=3, not_copied=4)
    assert read_state(tmp_path / "acls.json", AccessPass) == expected
    (tmp_path / "topics.json").write_text('{"at_ms": 5, "gone": ["a"], "problems": []}')
    assert read_state(tmp_path / "topics.json", TopicsState) == TopicsState(at_ms=5, gone=("a",), problems=())
    (tmp_path / "start.json").write_text('{"step": "recovery", "since_ms": 7}')
    assert read_state(tmp_path / "start.json", StartState) == StartState(step="recovery", since_ms=7)


@pytest.mark.parametrize("text", ["", "[" * 100_000, "[]", '{"at_ms": "x"}', '{"at_ms": 1e999}'])
def test_a_damaged_note_or_measure_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "_planner.json"
    path.write_text(text)
    assert read_state(path, PlannerState) is None
    assert read_measurements(path) is None
    assert read_state(path, AccessPass) is None


def test_a_comparison_of_acls_is_read_as_it_was_written(tmp_path: Path) -> None:
    for written in (
        AccessPass(at_ms=7, lacking=1, created=2, deleted=3, not_copied=4),
        AccessPass(at_ms=7, is_compared=False, problem="x"),
    ):
        write_state(tmp_path / "acls.json", written)
        assert read_state(tmp_path / "acls.json", AccessPass) == written


def planned_range(source: SourcePartition, slot: int) -> PlannedRange:
    return PlannedRange(slot=slot, source=source, start=3, end=9, bytes_per_offset=12.5)


def test_planned_ranges_are_read_as_they_were_written(tmp_path: Path) -> None:
    path = tmp_path / "planned.json"
    assert read_planned_ranges(path) == ()
    assert read_planned_ranges(None) == ()
    ranges = (planned_range(A, 0), planned_range(B, 1))
    write_planned_ranges(path, ranges)
    assert read_planned_ranges(path) == ranges


def test_the_ranges_of_a_large_micro_batch_replace_those_before_by_none(tmp_path: Path) -> None:
    path = tmp_path / "planned.json"
    write_planned_ranges(path, [planned_range(A, 0)])
    many = [planned_range(SourcePartition("orders", "idA", number), 0) for number in range(MOST_PLANNED_RANGES + 1)]
    write_planned_ranges(path, many)
    assert read_planned_ranges(path) == ()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"ranges": 3}', '{"ranges": [["orders", "idA", 0]]}', '{"ranges": [[1, 2, 3, 4, 5, 6, "x"]]}']
)
def test_damaged_planned_ranges_count_as_none(text: str, tmp_path: Path) -> None:
    path = tmp_path / "planned.json"
    path.write_text(text, encoding="utf-8")
    assert read_planned_ranges(path) == ()
