"""Any number of micro-batches becomes a few hundred points that say the same."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tests.report.contents import BEGIN, row, rows_of_a_day

from shallow_mirror.report.time_series import BARS, BATCHES, POINTS, STEPS, grouped, history_of, lag_points, rates


def test_steps_are_grouped_and_add_up_to_all_of_them_but_the_part_of_another() -> None:
    durations = {
        "Between": 80.0,
        "RunSlots": 300.0,
        "SlowestSlot": 200.0,
        "EndTxn": 3.0,
        "AwaitVisible": 9.0,
        "Settle": 2.0,
        "Total": 500.0,
    }
    history = history_of([row(1, duration_ms=json.dumps(durations))])
    actual = dict(zip(STEPS, history.step_ms[0], strict=True))
    assert actual == {
        "take decision": 0,
        "Spark's job": 100,
        "copying": 200,
        "decide": 0,
        "end and make visible": 12,
        "other": 2,
    }


def test_batches_in_quarantine_are_not_among_the_dropped() -> None:
    history = history_of([row(1, dropped_batch_counts=json.dumps({"aborted": 3, "commit": 1, "quarantined": 2}))])
    assert dict(zip(BATCHES, history.batches[0], strict=True)) == {"raw": 10, "rebuilt": 2, "dropped": 4, "quarantined": 2}


def test_rows_that_older_versions_wrote_or_that_came_in_any_order_are_read() -> None:
    history = history_of([row(3, duration_ms="{}"), row(1, duration_ms=json.dumps({"Total": 500.0})), row(2)])
    assert history.micro_batch.tolist() == [1, 2, 3]
    assert (history.seconds > 0).all()


@pytest.mark.slow
@given(st.integers(1, 700), st.integers(1, 300))
def test_rates_hold_every_byte_and_have_no_peak_above_what_a_micro_batch_did(count: int, points: int) -> None:
    history = history_of([row(number, size_bytes=1_000 + number) for number in range(1, count + 1)])
    byte_rates = rates(history, points)
    width_s = byte_rates.edges_s[1] - byte_rates.edges_s[0]
    assert byte_rates.bytes_per_s.sum() * width_s == pytest.approx(history.size_bytes.sum(), rel=1e-3)
    assert byte_rates.bytes_per_s.max() <= (history.size_bytes / history.seconds).max() * 1.001
    assert len(byte_rates.bytes_per_s) <= points


def test_the_highest_lag_of_a_stretch_is_not_lost_and_an_unknown_one_is_left_out() -> None:
    history = history_of(
        [row(number, lag_offsets=None if number % 3 == 0 else 9_999 if number == 700 else 5) for number in range(1, 2_001)]
    )
    at_s, lag = lag_points(history)
    assert len(at_s) == len(lag) <= POINTS
    assert (lag.max(), lag.min()) == (9_999, 5)
    at_s, lag = lag_points(history_of([row(1, lag_offsets=None)]))
    assert (len(at_s), len(lag)) == (0, 0)


@pytest.mark.parametrize("count", [1, 5, BARS, BARS + 1, 1_003])
def test_groups_are_few_and_hold_every_micro_batch(count: int) -> None:
    history = history_of([row(number) for number in range(1, count + 1)])
    sums, means = (grouped(history, history.batches, is_mean=is_mean) for is_mean in (False, True))
    assert len(sums.values) <= BARS
    assert sums.values.sum() == history.batches.sum()
    assert np.allclose(means.values, history.batches[0])
    assert (sums.first[0], sums.last[-1]) == (1, count)
    assert (sums.first[1:] == sums.last[:-1] + 1).all()


def test_a_micro_batch_that_is_alone_has_a_rate_of_its_own_time() -> None:
    byte_rates = rates(history_of([row(1)]))
    assert byte_rates.edges_s[-1] == BEGIN.timestamp() + 2
    assert byte_rates.bytes_per_s == pytest.approx([2e6, 2e6], rel=1e-3)


def test_an_hour_of_standstill_is_an_hour_without_bytes() -> None:
    byte_rates = rates(history_of(rows_of_a_day(2_000)))
    assert (byte_rates.bytes_per_s == 0).sum() > POINTS / 4
