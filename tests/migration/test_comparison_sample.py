"""A plan compares the last rows of the map, and says how long all of them take."""

from __future__ import annotations

import pytest

from shallow_mirror.migration.comparison_sample import ComparisonSample, MappedRow, choose_sample, comparison_s
from shallow_mirror.migration.observations import MappedEnd
from shallow_mirror.types import TopicPartition

FIRST, SECOND = TopicPartition("orders", 0), TopicPartition("orders", 1)


def row(source: TopicPartition, start: int, end: int, target_end: int | None, size_bytes: int) -> MappedRow:
    return MappedRow(source, start, end, target_end, size_bytes)


def test_little_is_compared_as_a_whole_and_takes_what_it_took() -> None:
    sample = choose_sample([row(FIRST, 0, 10, 10, 50), row(SECOND, 0, 5, 7, 50)], most_bytes=100)
    assert (sample.after, sample.is_whole) == ({}, True)
    assert comparison_s(sample, 0.4, 0.3) == 0.4


def test_of_much_the_last_rows_of_each_partition_are_compared() -> None:
    rows = [
        row(FIRST, 20, 30, 35, 40),  # in any order
        row(FIRST, 0, 10, 12, 100),
        row(FIRST, 10, 20, None, 0),  # nothing was written: the copy still ends at 12
        row(SECOND, 0, 9, 9, 50),
    ]
    sample = choose_sample(rows, most_bytes=100)
    assert sample == ComparisonSample(after={FIRST: MappedEnd(10, 12)}, sample_bytes=90, held_bytes=190)
    assert comparison_s(sample, 2.0, 0.2) == pytest.approx(0.2 + 1.8 * 190 / 90)


def test_rows_that_are_all_larger_than_a_sample_say_nothing_of_the_time() -> None:
    sample = choose_sample([row(FIRST, 0, 10, 12, 1_000)], most_bytes=100)
    assert sample.after == {FIRST: MappedEnd(10, 12)}
    assert comparison_s(sample, 0.2, 0.2) is None


def test_a_sample_that_took_less_than_nothing_does_is_not_negative() -> None:
    assert comparison_s(ComparisonSample(after={}, sample_bytes=1, held_bytes=100), 0.1, 0.2) == 0.2


def test_an_empty_map_is_compared_at_once() -> None:
    assert choose_sample([]) == ComparisonSample(after={}, sample_bytes=0, held_bytes=0)
