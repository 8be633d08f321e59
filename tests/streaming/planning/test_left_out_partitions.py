"""The list of partitions that are left out: when one begins and ends to be on it, and what is told of that."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shallow_mirror.checkpoints.logs.runs import Problem, ProblemKind
from shallow_mirror.errors import BatchRefusedError, RetriableError, TopicSettingsError
from shallow_mirror.sinks import Side, UnfinishedRange
from shallow_mirror.streaming.planning.left_out_partitions import LeftOutPartition, LeftOutTracker, read_left_out, write_left_out
from shallow_mirror.streaming.planning.planner_state import PlannerState
from shallow_mirror.streaming.watch.left_out_reporter import REPORTED_AT_ONCE, LeftOutReporter
from shallow_mirror.types import SourcePartition, TopicPartition

A, B = (SourcePartition("orders", "id", partition) for partition in (0, 1))
AWAY = RetriableError("LEADER_NOT_AVAILABLE", "orders-0 has no leader")


def unfinished(source: SourcePartition = A, reached: int = 5) -> UnfinishedRange:
    return UnfinishedRange.of(source, reached, Side.SOURCE, AWAY)


def sources(entries: Any) -> list[SourcePartition]:
    return [entry.source for entry in entries]


def test_a_partition_is_on_the_list_from_its_first_unfinished_range_until_it_moves() -> None:
    partitions = LeftOutTracker()
    change = partitions.on_micro_batch([unfinished()], {A: 5}, 100)
    assert (sources(change.began), change.ended) == ([A], ())
    second = partitions.on_micro_batch([unfinished()], {A: 5}, 200)
    assert (second.began, second.ended) == ((), ())
    (only,) = partitions.by_slots
    assert (only.since_ms, only.tried_at_ms, only.tries, only.position) == (100, 200, 2, 5)
    others = partitions.on_micro_batch([], {A: 5}, 300)
    assert (others.began, others.ended) == ((), ()), "it was not in the plan"
    partitions.on_micro_batch([unfinished(reached=9)], {A: 9}, 400)
    (only,) = partitions.by_slots
    assert (only.since_ms, only.tries, only.position) == (100, 1, 9), "it moved: the pause begins anew"
    done = partitions.on_micro_batch([], {A: 20}, 500)
    assert (sources(done.ended), partitions.all()) == ([A], ())


def test_a_partition_that_planner_and_slots_leave_out_begins_and_ends_once() -> None:
    partitions = LeftOutTracker()
    of_planner = LeftOutPartition(source=A, side=Side.SOURCE, error_name="NETWORK_EXCEPTION", reason="refused", since_ms=50)
    assert sources(partitions.on_micro_batch([unfinished()], {A: 5}, 100).began) == [A]
    assert partitions.on_plan([of_planner], []).began == ()
    assert partitions.on_plan([], []).ended == ()
    assert sources(partitions.on_micro_batch([], {A: 6}, 200).ended) == [A]


def test_what_has_nothing_left_to_copy_is_off_the_list() -> None:
    partitions = LeftOutTracker()
    partitions.on_micro_batch([unfinished()], {A: 5}, 100)
    assert sources(partitions.on_plan([], [A, B]).ended) == [A]
    assert partitions.by_slots == ()


def test_an_idle_partition_whose_target_was_changed_is_on_the_list_until_the_setting_is_back() -> None:
    partitions = LeftOutTracker()
    change = partitions.on_changed_settings([unfinished(A), unfinished(B)], 100)
    assert (sources(change.began), change.ended) == ([A, B], ())
    second = partitions.on_changed_settings([unfinished(B)], 200)
    assert (second.began, sources(second.ended)) == ((), [A])
    assert partitions.on_plan([], [A, B]).ended == (), "that nothing is left to copy says nothing of the setting"
    (only,) = partitions.all()
    assert (only.source, only.since_ms, only.position) == (B, 100, 5)
    assert partitions.by_slots == (), "the planner still plans it"
    assert sources(partitions.on_changed_settings([], 300).ended) == [B]


def test_a_partition_of_a_changed_topic_that_slots_leave_out_as_well_begins_and_ends_once() -> None:
    partitions = LeftOutTracker()
    assert sources(partitions.on_changed_settings([unfinished()], 100).began) == [A]
    assert partitions.on_micro_batch([unfinished()], {A: 5}, 200).began == ()
    (only,) = partitions.by_slots
    assert (only.since_ms, only.tries) == (100, 1)
    assert partitions.on_changed_settings([], 300).ended == (), "slots have not tried it again"
    assert sources(partitions.on_micro_batch([], {A: 6}, 400).ended) == [A]


def test_a_partition_whose_log_is_not_filled_is_on_the_list_until_it_is_beside_other_reasons() -> None:
    partitions = LeftOutTracker()
    assert sources(partitions.on_unfilled_logs([unfinished(A), unfinished(B)], 100).began) == [A, B]
    assert partitions.on_changed_settings([unfinished(A)], 200).began == ()
    assert sources(partitions.on_unfilled_logs([unfinished(A)], 300).ended) == [B]
    assert partitions.on_unfilled_logs([], 400).ended == (), "its settings are not back"
    assert sources(partitions.on_changed_settings([], 500).ended) == [A]
    assert partitions.by_slots == (), "the planner still plans it"


def test_a_query_begins_without_changed_settings_because_its_start_compares_them() -> None:
    partitions = LeftOutTracker()
    partitions.on_changed_settings([unfinished()], 100)
    partitions.on_query_start({A: 5})
    assert partitions.all() == ()


def test_a_query_begins_with_the_positions_of_the_map_and_without_topics_that_are_gone() -> None:
    partitions = LeftOutTracker()
    partitions.on_micro_batch([unfinished(A), unfinished(B)], {A: 5, B: 5}, 100)
    partitions.on_query_start({A: 3})
    assert [(left_out.source, left_out.position) for left_out in partitions.by_slots] == [(A, 3)]


def test_the_file_is_read_as_it_was_written_and_damage_is_nothing(tmp_path: Path) -> None:
    path = tmp_path / "left-out.json"
    entry = LeftOutPartition(
        source=A, side=Side.TARGET, error_name="BatchRefusedError", reason="too large", since_ms=1, position=2, is_definite=True,
        tried_at_ms=3, tries=4,
    )  # fmt: skip
    write_left_out(path, [entry])
    assert read_left_out(path) == (entry,)
    for text in ("", "[]", '{"partitions": [{}]}', '{"partitions": 3}', '{"partitions": [{"topic": "t", "side": "?"}]}'):
        path.write_text(text)
        assert read_left_out(path) == ()
    assert read_left_out(None) == ()


class Reports(LeftOutReporter):
    def __init__(self, folder: Path) -> None:
        self.problems: list[Problem] = []
        self.counted: list[list[SourcePartition]] = []
        super().__init__(
            folder / "planner.json", folder / "status.json", report=self.problems.append,
            count=lambda entries: self.counted.append(sources(entries)), now_ms=lambda: 9000,
        )  # fmt: skip


def positions(*at: tuple[SourcePartition, int]) -> Any:
    return {source: SimpleNamespace(offset=offset) for source, offset in at}


def test_one_problem_when_it_begins_one_line_when_it_ends_and_files_in_between(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    reports = Reports(tmp_path)
    refused = BatchRefusedError(A.topic_partition, 5, "too large", "Raise max.message.bytes")
    left = UnfinishedRange.of(A, 5, Side.TARGET, refused)
    for _ in range(3):
        reports.on_micro_batch([left], positions((A, 5), (B, 7)))
    (problem,) = reports.problems
    assert (problem.kind, problem.place, problem.error_name) == (
        ProblemKind.LEFT_OUT,
        TopicPartition("orders", 0),
        "BatchRefusedError",
    )
    assert "too large" in problem.text
    assert problem.remedy.endswith("the other partitions continue, and the mirror retries this one automatically")
    assert sources(read_left_out(tmp_path / "planner.json")) == sources(read_left_out(tmp_path / "status.json")) == [A]
    assert "copied again" not in caplog.text
    reports.on_micro_batch([], positions((A, 6), (B, 7)))
    assert caplog.text.count("orders-0 is copied again") == 1
    assert read_left_out(tmp_path / "planner.json") == read_left_out(tmp_path / "status.json") == ()
    assert reports.counted[-1] == []


def test_what_the_planner_leaves_out_is_reported_and_is_no_business_of_its_own_file(tmp_path: Path) -> None:
    reports = Reports(tmp_path)
    entry = LeftOutPartition(source=A, side=Side.SOURCE, error_name="NETWORK_EXCEPTION", reason="refused", since_ms=50)
    reports.on_plan(PlannerState(at_ms=1, waiting_for=None, since_ms=None, left_out=(entry.document(),)))
    assert [problem.kind for problem in reports.problems] == [ProblemKind.LEFT_OUT]
    assert read_left_out(tmp_path / "planner.json") == ()
    assert sources(read_left_out(tmp_path / "status.json")) == [A]
    reports.on_plan(PlannerState(at_ms=2, waiting_for="the source", since_ms=2))
    assert reports.counted[-1] == [A], "a planner that waits says nothing about partitions"


def test_a_changed_setting_is_reported_and_is_no_business_of_the_planner(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    reports = Reports(tmp_path)
    left = UnfinishedRange.of(A, 5, Side.TARGET, TopicSettingsError("target topic copy has compression.type=lz4", ["copy"]))
    reports.on_changed_settings([left])
    (problem,) = reports.problems
    assert (problem.kind, problem.place, problem.error_name) == (ProblemKind.LEFT_OUT, A.topic_partition, "TopicSettingsError")
    assert problem.text == "left out because of the target: target topic copy has compression.type=lz4"
    assert read_left_out(tmp_path / "planner.json") == ()
    assert sources(read_left_out(tmp_path / "status.json")) == reports.counted[-1] == [A]
    reports.on_changed_settings([])
    assert caplog.text.count("orders-0 is copied again") == 1
    assert reports.counted[-1] == []


def test_thousands_of_partitions_do_not_fill_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reports = Reports(tmp_path)
    many = [SourcePartition("orders", "id", number) for number in range(REPORTED_AT_ONCE + 30)]
    reports.on_micro_batch([unfinished(source) for source in many], positions(*((source, 5) for source in many)))
    assert len(reports.problems) == REPORTED_AT_ONCE
    assert "30 more partitions are left out" in caplog.text


def test_a_planner_that_cannot_be_informed_ends_the_query(tmp_path: Path) -> None:
    """Spark would go on behind what was left out; the next query leads it back by the positions of the map."""
    reports = Reports(tmp_path)
    (tmp_path / "planner.json").mkdir()
    with pytest.raises(RetriableError, match="NOTE_NOT_WRITTEN"):
        reports.on_micro_batch([unfinished()], positions((A, 5)))
