from __future__ import annotations

import pytest
from benchmarks.arrivals import Arrival, Latencies, Pause, Phase, caught_up_after_s, order_problems, pauses


def arrivals(partition: int, *times: tuple[float, float]) -> list[Arrival]:
    """Numbered in the order given; each is (sent, arrived)."""
    return [Arrival(partition, number, sent, arrived) for number, (sent, arrived) in enumerate(times)]


def arrived_at(partition: int, *times: float) -> list[Arrival]:
    return arrivals(partition, *((time, time) for time in times))


def numbered(partition: int, *numbers: int) -> list[Arrival]:
    return [Arrival(partition, number, 0.0, 0.0) for number in numbers]


def test_a_record_counts_in_the_phase_in_which_it_was_sent() -> None:
    records = arrivals(0, (9.0, 30.0), (10.0, 11.0), (19.0, 24.0), (20.0, 50.0))
    figures = Latencies.of(records, Phase("broken", 10.0, 20.0))
    assert figures == Latencies(records=2, median_s=3.0, p95_s=5.0, p99_s=5.0, max_s=5.0)


def test_quantiles_are_of_all_records_of_the_phase() -> None:
    records = arrivals(0, *((100.0, 100.0 + number / 100) for number in range(1, 101)))
    figures = Latencies.of(records, Phase("healthy", 100.0, 101.0))
    assert (figures.median_s, figures.p95_s, figures.p99_s, figures.max_s) == pytest.approx((0.505, 0.96, 1.0, 1.0))


def test_a_phase_without_records_has_no_figures() -> None:
    with pytest.raises(ValueError, match="'healed'"):
        Latencies.of(arrived_at(0, 1.0), Phase("healed", 10.0, 20.0))


def test_a_partition_that_pauses_while_others_arrive_is_a_pause() -> None:
    records = [*arrived_at(0, *range(0, 21)), *arrived_at(1, 0.0, 3.0, 12.0, 13.0)]
    assert pauses(records, 5.0) == [Pause(3.0, 12.0, 9.0, 1)]


def test_pauses_of_several_partitions_with_a_moment_in_common_are_one() -> None:
    records = [*arrived_at(0, 0.0, 10.0, 11.0), *arrived_at(1, 1.0, 12.0, 13.0), *arrived_at(2, 20.0, 26.0)]
    assert pauses(records, 5.0) == [Pause(0.0, 12.0, 11.0, 2), Pause(20.0, 26.0, 6.0, 1)]


def test_pauses_that_follow_each_other_are_not_made_one_long_one() -> None:
    """Each overlaps with the one before it, and they have no moment in common."""
    records = [*arrived_at(0, 0.0, 6.0), *arrived_at(1, 5.0, 11.0), *arrived_at(2, 10.0, 16.0)]
    assert pauses(records, 5.0) == [Pause(0.0, 11.0, 6.0, 2), Pause(10.0, 16.0, 6.0, 1)]


def test_a_partition_has_caught_up_when_the_last_record_sent_before_has_arrived() -> None:
    records = arrivals(0, (10.0, 61.0), (49.0, 64.5), (51.0, 70.0))
    assert caught_up_after_s(records, 50.0) == 14.5
    assert caught_up_after_s(arrivals(0, (10.0, 11.0), (51.0, 70.0)), 50.0) == 0.0


def test_records_that_arrived_once_and_in_order_are_no_problem() -> None:
    assert order_problems([*numbered(0, 0, 1, 2), *numbered(1, 0)], {0: 3, 1: 1}) == []


def test_what_is_lost_duplicated_out_of_order_or_never_sent_is_named_by_partition() -> None:
    records = [*numbered(0, 0, 2), *numbered(1, 0, 1, 1), *numbered(2, 1, 0), *numbered(3, 0, 1)]
    assert order_problems(records, {0: 3, 1: 2, 2: 2, 3: 1, 4: 2}) == [
        "partition 0: 1 lost",
        "partition 1: 1 duplicated",
        "partition 2: 1 out of order",
        "partition 3: 1 never sent",
        "partition 4: 2 lost",
    ]
