from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import write_deltalake

from shallow_mirror.checkpoints.logs.topics import ControlAction, ControlRow, TopicIncarnation
from shallow_mirror.checkpoints.logs.topics.controls import Controls
from shallow_mirror.checkpoints.rows import PausedInterval
from shallow_mirror.checkpoints.rows.paused_intervals import CONTROLS
from shallow_mirror.errors import OffsetMapConflictError


@pytest.mark.slow
def test_of_each_topic_the_newest_row_counts(tmp_path: Path) -> None:
    controls = Controls.open(str(tmp_path))
    assert controls.paused() == {}
    controls.add("pause", ["a", "b"])
    controls.add("resume", ["b"])
    controls.add("resume", ["never paused"])
    assert Controls.open(str(tmp_path)).paused().keys() == {"a"}
    controls.add("pause", ["b"])
    controls.add("resume", ["a"])
    assert controls.paused().keys() == {"b"}


def test_a_table_of_an_earlier_release_takes_what_is_forgotten(tmp_path: Path) -> None:
    before = CONTROLS.to_arrow([ControlRow(sequence=1, topic="a", action="pause", at_ms=1, host="h", pid=1)])
    write_deltalake(str(tmp_path / "controls"), before.drop_columns(["topic_id"]))
    controls = Controls.open(str(tmp_path))
    assert controls.paused().keys() == {"a"}
    controls.forget([TopicIncarnation("a", "id of a")], ["a"])
    assert controls.paused() == {}
    assert controls.read().forgotten.at_ms.keys() == {TopicIncarnation("a", "id of a")}


@pytest.mark.parametrize("is_pause_first", [True, False])
def test_of_two_commands_at_once_the_later_one_counts_in_whatever_order_their_rows_are_read(
    tmp_path: Path, *, is_pause_first: bool
) -> None:
    pause = ControlRow(sequence=2, topic="a", action="pause", at_ms=11, host="h", pid=2)
    resume = ControlRow(sequence=2, topic="a", action="resume", at_ms=12, host="h", pid=3)
    rows = [pause, resume] if is_pause_first else [resume, pause]
    first = ControlRow(sequence=1, topic="a", action="pause", at_ms=10, host="h", pid=1)
    write_deltalake(str(tmp_path / "controls"), CONTROLS.to_arrow([first, *rows]))
    controls = Controls.open(str(tmp_path))
    assert (controls.paused(), controls.read().rows) == ({}, [first, pause, resume])
    assert controls.paused_intervals() == [PausedInterval("a", 10, 12)]


def test_a_damaged_table_is_an_error(tmp_path: Path) -> None:
    Controls.open(str(tmp_path)).add("pause", ["a"])
    (tmp_path / "controls" / "_delta_log" / "00000000000000000000.json").write_text("nonsense", encoding="utf-8")
    with pytest.raises(OffsetMapConflictError, match="controls is not a readable Delta table"):
        Controls.open(str(tmp_path)).paused()


@pytest.mark.slow
def test_a_migration_and_an_operator_do_not_undo_each_other(tmp_path: Path) -> None:
    controls = Controls.open(str(tmp_path))
    controls.add("hand-over", ["a"])
    assert _topics(controls) == {"requested": ["a"]}
    controls.add("handed-over", ["a"])
    actions: tuple[ControlAction, ...] = ("pause", "resume", "pause")
    for action in actions:
        controls.add(action, ["a"])
        assert _topics(controls) == {"handed_over": ["a"]} | ({"paused": ["a"]} if action == "pause" else {})
        assert controls.read().without_cycle == frozenset("a")
    assert controls.read().returned == frozenset()
    controls.add("take-back", ["a"])
    assert _topics(controls) == {"paused": ["a"]}
    assert (controls.read().without_cycle, controls.read().returned) == (frozenset(), frozenset("a"))
    controls.add("hand-over", ["a"])
    assert _topics(controls) == {"paused": ["a"], "requested": ["a"]}, "what was confirmed concerns an earlier hand-over"
    controls.add("resume", ["a"])
    assert _topics(controls) == {"requested": ["a"]}
    assert [interval.until_ms for interval in controls.paused_intervals()] == [None]


def test_a_topic_that_was_handed_over_to_this_mirror_before_is_not_returned_to_it(tmp_path: Path) -> None:
    """The other mirror does not copy it any more: a rollback that is aborted lets this one continue."""
    controls = Controls.open(str(tmp_path))
    actions: tuple[ControlAction, ...] = ("receive", "hand-over", "handed-over", "take-back")
    for action in actions:
        controls.add(action, ["a"])
    assert (controls.read().without_cycle, controls.read().returned) == (frozenset("a"), frozenset())


def _topics(controls: Controls) -> dict[str, list[str]]:
    """Return the topics in each state, without empty states."""
    state = controls.read()
    of_states = {"paused": state.paused, "requested": state.requested, "handed_over": state.handed_over}
    assert state.not_copied == {topic for topics in of_states.values() for topic in topics}
    return {name: sorted(topics) for name, topics in of_states.items() if topics}


def test_a_resume_of_an_earlier_release_takes_a_topic_back(tmp_path: Path) -> None:
    controls = Controls.open(str(tmp_path))
    actions: tuple[ControlAction, ...] = ("hand-over", "handed-over", "resume")
    for action in actions:
        controls.add(action, ["a"])
    assert controls.read().not_copied == frozenset()


def test_two_resumes_of_a_paused_topic_do_not_take_it_back(tmp_path: Path) -> None:
    """As of two operators at the same time."""
    controls = Controls.open(str(tmp_path))
    controls.add("pause", ["a"])
    controls.add("hand-over", ["a"])
    controls.add("handed-over", ["a"])
    controls.add("resume", ["a", "a"])
    assert _topics(controls) == {"handed_over": ["a"]}
    controls.add("take-back", ["a"])
    controls.add("hand-over", ["a"])
    controls.add("resume", ["a"])
    assert _topics(controls) == {}, "one of an earlier release"


def test_a_fail_over_that_is_aborted_lets_the_mirror_continue_and_can_be_made_again(tmp_path: Path) -> None:
    controls = Controls.open(str(tmp_path))
    controls.add("pause", ["b"])
    for action, failed_over in (("fail-over", {"a", "b"}), ("abort-fail-over", set()), ("fail-over", {"a", "b"})):
        controls.add(action, ["a", "b"])  # type: ignore[arg-type]
        assert controls.read().failed_over.keys() == failed_over
        assert controls.read().not_copied == failed_over | {"b"}, "a pause stays"
    assert [interval.until_ms is None for interval in controls.paused_intervals() if interval.topic == "b"] == [True]


@pytest.mark.slow
def test_a_fail_over_is_for_good(tmp_path: Path) -> None:
    controls = Controls.open(str(tmp_path))
    controls.add("fail-over", ["a"])
    (since_ms,) = controls.read().failed_over.values()
    actions: tuple[ControlAction, ...] = ("resume", "take-back", "fail-over")
    for action in actions:
        controls.add(action, ["a"])
        assert controls.read().failed_over == {"a": since_ms}
        assert controls.read().moving == controls.read().not_copied == frozenset("a")
