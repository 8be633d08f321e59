"""Tasks that run in waves share the time that the transactions of the first wave have."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from shallow_mirror.config.values import TASK_SHARE, commit_interval_problem, default_commit_interval
from shallow_mirror.sinks.slots.slot_time import LEAST_TASK_MS, SlotTime

TIMEOUT_MS = 300_000
INTERVAL_MS = 20_000.0


def test_with_a_core_for_each_slot_nothing_is_shared() -> None:
    slot_time = SlotTime(8)
    slot_time.record_round(20_500, [20_000] * 8, INTERVAL_MS)
    assert slot_time.time_left_ms(TIMEOUT_MS) == TIMEOUT_MS * TASK_SHARE
    assert slot_time.commit_interval_ms(INTERVAL_MS, TIMEOUT_MS) == INTERVAL_MS


def test_before_a_round_was_seen_every_slot_may_have_to_wait_for_all_others() -> None:
    assert SlotTime(1).commit_interval_ms(INTERVAL_MS, TIMEOUT_MS) == INTERVAL_MS
    assert SlotTime(100).commit_interval_ms(INTERVAL_MS, TIMEOUT_MS) == pytest.approx(1_500)
    assert SlotTime(100).time_left_ms(TIMEOUT_MS) == TIMEOUT_MS * TASK_SHARE


def test_a_round_that_ran_in_waves_is_followed_by_one_whose_waves_fit_and_a_faster_one_by_the_usual() -> None:
    slot_time = SlotTime(40)
    slot_time.record_round(40 * 5_000, [5_000] * 40, INTERVAL_MS)
    interval_ms = slot_time.commit_interval_ms(INTERVAL_MS, TIMEOUT_MS)
    assert 40 * interval_ms <= TIMEOUT_MS * TASK_SHARE
    assert interval_ms < slot_time.time_left_ms(TIMEOUT_MS)
    slot_time.record_round(40 * interval_ms, [interval_ms] * 40, interval_ms)
    assert slot_time.commit_interval_ms(INTERVAL_MS, TIMEOUT_MS) == interval_ms
    slot_time.record_round(6_000, [5_500] * 40, interval_ms)
    assert slot_time.commit_interval_ms(INTERVAL_MS, TIMEOUT_MS) == INTERVAL_MS


def test_tasks_of_different_lengths_on_one_core_are_as_many_waves_as_tasks() -> None:
    """The slowest alone would tell of four: the next round would end behind the timeout."""
    slot_time = SlotTime(6)
    slot_time.record_round(12_400, [3_000, 1_500, 2_000, 1_500, 2_000, 2_000], 1_250)
    assert slot_time.time_left_ms(60_000) == 60_000 * TASK_SHARE / 6


def test_one_slot_with_most_of_the_data_is_no_wave() -> None:
    slot_time = SlotTime(6)
    slot_time.record_round(21_000, [20_000, 1_000, 1_000, 1_000, 1_000, 1_000], INTERVAL_MS)
    assert slot_time.commit_interval_ms(INTERVAL_MS, TIMEOUT_MS) == INTERVAL_MS


@given(st.floats(0, 1_500), st.integers(2, 12))
def test_what_tasks_take_beside_writing_is_left_to_them(overhead_ms: float, slots: int) -> None:
    """On one core, from the first round on, each task takes its interval and as long again as the last one did."""
    timeout_ms = slots * 4_000
    slot_time = SlotTime(slots)
    for _ in range(4):
        interval_ms = slot_time.commit_interval_ms(timeout_ms / 3, timeout_ms)
        all_tasks_ms = slots * (interval_ms + overhead_ms)
        slot_time.record_round(all_tasks_ms, [interval_ms + overhead_ms] * slots, interval_ms)
    assert all_tasks_ms <= timeout_ms * TASK_SHARE * 1.001


def test_a_round_without_tasks_says_nothing() -> None:
    slot_time = SlotTime(4)
    slot_time.record_round(60_000, [20_000] * 3, INTERVAL_MS)
    slot_time.record_round(500, [], INTERVAL_MS)
    assert slot_time.time_left_ms(TIMEOUT_MS) == TIMEOUT_MS * TASK_SHARE / 3


def test_a_round_that_failed_late_ran_in_waves_and_one_that_failed_early_says_nothing() -> None:
    slot_time = SlotTime(8)
    share_ms = TIMEOUT_MS * TASK_SHARE
    slot_time.record_failed_round(2 * share_ms, share_ms, 8)
    assert slot_time.time_left_ms(TIMEOUT_MS) == share_ms / 2
    slot_time.record_failed_round(1_000, share_ms / 2, 8)
    assert slot_time.time_left_ms(TIMEOUT_MS) == share_ms / 2


@pytest.mark.slow
@given(
    st.integers(10_000, 900_000),
    st.integers(1, 1000),
    st.lists(st.tuples(st.floats(0, 1e6), st.lists(st.floats(0, 1e6), max_size=20), st.floats(0, 1e5))),
)
def test_whatever_was_seen_all_waves_fit_and_a_slot_ends_before_its_deadline(
    timeout_ms: int, slots: int, rounds: list[tuple[float, list[float], float]]
) -> None:
    slot_time = SlotTime(slots)
    configured_ms = timeout_ms / 3
    for all_tasks_ms, task_ms, interval_ms in rounds:
        slot_time.record_round(all_tasks_ms, task_ms, interval_ms)
    left_ms = slot_time.time_left_ms(timeout_ms)
    assert min(LEAST_TASK_MS, timeout_ms * TASK_SHARE) <= left_ms <= timeout_ms * TASK_SHARE
    assert 0 < slot_time.commit_interval_ms(configured_ms, timeout_ms) < left_ms


def test_an_interval_has_to_be_below_the_share_of_the_timeout_and_the_default_fits_a_short_one() -> None:
    assert commit_interval_problem(20, 300_000) is None
    problem = commit_interval_problem(225, 300_000)
    assert problem is not None
    assert "not below 225, the 75% of write.transaction_timeout_ms=300000" in problem
    assert default_commit_interval(300_000) == default_commit_interval(60_000) == "20 seconds"
    assert default_commit_interval(10_000) == "3333 ms"
