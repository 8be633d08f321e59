from __future__ import annotations

import pytest
from benchmarks.window import MicroBatchEnd, NoWindowError, Sample, spent_in, steady_window


def sample(at: float, target_bytes: int, cpu_s: float = 0.0) -> Sample:
    return Sample(at, cpu_s, 0.0, 0.0, target_bytes)


def ends(*copied: float) -> list[MicroBatchEnd]:
    """One a second."""
    return [MicroBatchEnd(100.0 + i, copied_bytes) for i, copied_bytes in enumerate(copied)]


def test_a_log_that_grows_steadily_is_measured_from_five_to_ninety_five_percent() -> None:
    samples = [sample(1000 + i, 10 * i) for i in range(101)]
    window = steady_window(samples, None)
    assert (window.begin, window.end, window.note) == (1005.0, 1095.0, "")
    assert window.share == pytest.approx(0.9)


def test_the_begin_lies_between_samples_in_proportion() -> None:
    window = steady_window([sample(0, 0), sample(10, 100), sample(20, 100), sample(30, 200)], None)
    assert [window.begin, window.end] == pytest.approx([1.0, 29.0])
    assert "only 2 samples" in window.note


def test_what_waits_in_front_of_the_first_bytes_and_behind_the_last_is_outside() -> None:
    idle_before = [sample(i, 0) for i in range(50)]
    copying = [sample(50 + i, 10 * i) for i in range(101)]
    idle_behind = [sample(151 + i, 1000) for i in range(50)]
    window = steady_window([*idle_before, *copying, *idle_behind], None)
    assert (window.begin, window.end) == (55.0, 145.0)


def test_nothing_copied_is_no_window() -> None:
    with pytest.raises(NoWindowError, match="nothing was copied"):
        steady_window([sample(0, 0), sample(1, 0)], None)


def test_a_copy_that_is_over_within_one_sample_is_no_window() -> None:
    with pytest.raises(NoWindowError, match="larger --gb"):
        steady_window([sample(0, 100)], None)


def test_many_micro_batches_are_measured_from_end_to_end_within_five_and_ninety_five_percent() -> None:
    window = steady_window([], ends(3, *range(10, 101, 10)))
    assert (window.begin, window.end, window.note) == (101.0, 109.0, "")
    assert window.share == pytest.approx(0.8)


def test_few_micro_batches_are_all_measured_but_the_first_and_counted() -> None:
    window = steady_window([], ends(5, 50, 100))
    assert (window.begin, window.end) == (100.0, 102.0)
    assert window.share == pytest.approx(0.95)
    assert window.note == "2 micro-batches in the window, all behind the first"


def test_a_single_micro_batch_is_no_window() -> None:
    with pytest.raises(NoWindowError, match="1 micro-batches are too few"):
        steady_window([], ends(100))


def test_what_was_spent_is_interpolated_between_samples() -> None:
    samples = [sample(0, 0, 0.0), sample(10, 0, 10.0), sample(20, 0, 40.0)]
    window = steady_window([], [MicroBatchEnd(5.0, 10), MicroBatchEnd(15.0, 100)])
    assert spent_in(window, samples, lambda sample: sample.copier_cpu_s) == pytest.approx(20.0)
