"""Tasks that run in waves share the time that the transactions of the first wave have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shallow_mirror.sinks.kafka.slots.slot_time import (
    LEAST_TASK_MS,
    TASK_SHARE,
    SlotTime,
    commit_interval_problem,
    default_commit_interval,
)

TIMEOUT_MS = 300_000
INTERVAL_MS = 20_000.0


def test_with_a_core_for_each_slot_nothing_is_shared() -> None:
    slot_time = SlotTime(8)
    slot_time.saw(20_500, 20_000, 8)
    assert slot_time.time_left_ms(TIMEOUT_MS) == TIMEOUT_MS * TASK_SHARE
    assert slot_time.commit_interval_ms(INTERVAL_MS, TIMEOUT_MS) == INTERVAL_MS


def test_before_a_round_was_seen_every_slot_may_have_to_wait_for_all_others() -> None:
    assert SlotTime(1).commit_interval_ms(INTERVAL_MS, TIMEOUT_MS) == INTERVAL_MS
    assert SlotTime(100).commit_interval_ms(INTERVAL_MS, TIMEOUT_MS) == pytest.approx(1_500)
    assert SlotTime(100).time_left_ms(TIMEOUT_MS) == TIMEOUT_MS * TASK_SHARE


def test_a_round_that_ran_in_waves_is_followed_by_one_whose_waves_fit_and_a_faster_one_by_the_usual() -> None:
    slot_time = SlotTime(40)
    slot_time.saw(40 * 5_000, 5_000, 40)
    interval_ms = slot_time.commit_interval_ms(INTERVAL_MS, TIMEOUT_MS)
    assert 40 * interval_ms <= TIMEOUT_MS * TASK_SHARE
    assert interval_ms < slot_time.time_left_ms(TIMEOUT_MS)
    slot_time.saw(40 * interval_ms, interval_ms, 40)
    assert slot_time.commit_interval_ms(INTERVAL_MS, TIMEOUT_MS) == interval_ms
    slot_time.saw(6_000, 5_500, 40)
    assert slot_time.commit_interval_ms(INTERVAL_MS, TIMEOUT_MS) == INTERVAL_MS


def test_a_round_without_tasks_says_nothing() -> None:
    slot_time = SlotTime(4)
    slot_time.saw(60_000, 20_000, 4)
    slot_time.saw(500, 0, 0)
    assert slot_time.time_left_ms(TIMEOUT_MS) == TIMEOUT_MS * TASK_SHARE / 3


def test_a_round_that_failed_late_ran_in_waves_and_one_that_failed_early_says_nothing() -> None:
    slot_time = SlotTime(8)
    share_ms = TIMEOUT_MS * TASK_SHARE
    slot_time.record_failed_round(2 * share_ms, share_ms, 8)
    assert slot_time.time_left_ms(TIMEOUT_MS) == share_ms / 2
    slot_time.record_failed_round(1_000, share_ms / 2, 8)
    assert slot_time.time_left_ms(TIMEOUT_MS) == share_ms / 2


@given(
    st.integers(10_000, 900_000),
    st.integers(1, 1000),
    st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(0, 1000))),
)
def test_whatever_was_seen_all_waves_fit_and_a_slot_ends_before_its_deadline(
    timeout_ms: int, slots: int, rounds: list[tuple[float, float, int]]
) -> None:
    slot_time = SlotTime(slots)
    configured_ms = timeout_ms / 3
    for all_tasks_ms, slowest_ms, tasks in rounds:
        slot_time.saw(all_tasks_ms, slowest_ms, tasks)
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
