"""From when to when topics were paused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.checkpoints.rows.paused_intervals import ControlAction, ControlRow, PausedInterval, paused_intervals

PAUSES: tuple[ControlAction, ...] = ("pause", "resume")


def rows(*actions: tuple[ControlAction, str, int]) -> list[ControlRow]:
    """Build rows of (action, topic, ms)."""
    return [
        ControlRow(sequence=number, topic=topic, action=action, at_ms=at_ms, host="h", pid=1)
        for number, (action, topic, at_ms) in enumerate(actions, start=1)
    ]


def test_no_row_is_no_interval() -> None:
    assert paused_intervals([]) == []


def test_a_pause_lasts_until_the_next_resume_and_then_the_topic_may_be_paused_again() -> None:
    actions = rows(("pause", "a", 10), ("resume", "a", 25), ("pause", "a", 40), ("resume", "a", 41))
    assert paused_intervals(actions) == [PausedInterval("a", 10, 25), PausedInterval("a", 40, 41)]


def test_without_a_resume_the_topic_is_still_paused() -> None:
    assert paused_intervals(rows(("pause", "a", 10))) == [PausedInterval("a", 10, None)]


def test_a_second_pause_of_a_paused_topic_changes_nothing() -> None:
    actions = rows(("pause", "a", 10), ("pause", "a", 20), ("resume", "a", 30))
    assert paused_intervals(actions[:2]) == [PausedInterval("a", 10, None)]
    assert paused_intervals(actions) == [PausedInterval("a", 10, 30)]


def test_a_resume_without_a_pause_changes_nothing() -> None:
    actions = rows(("resume", "a", 5), ("pause", "a", 10), ("resume", "a", 20), ("resume", "a", 30))
    assert paused_intervals(actions) == [PausedInterval("a", 10, 20)]


def test_topics_are_paired_each_by_itself_in_the_order_of_their_sequence() -> None:
    actions = rows(("pause", "b", 10), ("pause", "a", 10), ("resume", "b", 20), ("pause", "c", 15), ("resume", "a", 30))
    expected = [PausedInterval("a", 10, 30), PausedInterval("b", 10, 20), PausedInterval("c", 15, None)]
    assert paused_intervals(actions) == paused_intervals(actions[::-1]) == expected


def test_a_resume_from_a_host_whose_clock_is_behind_leaves_no_interval_of_negative_length() -> None:
    assert paused_intervals(rows(("pause", "a", 10), ("resume", "a", 5))) == []
    actions = rows(("pause", "a", 10), ("resume", "a", 50), ("pause", "a", 30), ("resume", "a", 60))
    assert paused_intervals(actions) == [PausedInterval("a", 10, 50), PausedInterval("a", 50, 60)]


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(PAUSES), st.sampled_from("abc"), st.integers(0, 100))))
def test_intervals_of_a_topic_do_not_overlap_and_the_open_ones_are_the_topics_whose_last_row_is_a_pause(
    actions: list[tuple[ControlAction, str, int]],
) -> None:
    intervals = paused_intervals(rows(*actions))
    last = {topic: action for action, topic, _ in actions}
    assert {interval.topic for interval in intervals if interval.until_ms is None} == {
        topic for topic in last if last[topic] == "pause"
    }
    for topic in last:
        edges = [edge for interval in intervals if interval.topic == topic for edge in (interval.since_ms, interval.until_ms)]
        closed = [edge for edge in edges if edge is not None]
        assert closed == sorted(closed)
        assert None not in edges[:-1]


def test_the_table_keeps_what_was_paused_before(tmp_path: Path) -> None:
    assert Controls.open(str(tmp_path)).paused_intervals() == []
    controls = Controls.open(str(tmp_path))
    controls.add("pause", ["a", "b"])
    controls.add("pause", ["a"])
    (since_ms,) = {paused_interval.since_ms for paused_interval in Controls.open(str(tmp_path)).paused_intervals()}
    controls.add("resume", ["never paused"])
    assert controls.paused_intervals() == [PausedInterval("a", since_ms, None), PausedInterval("b", since_ms, None)]
