"""A few rounds of faults of a DataFrame sink, and the comparison on histories that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults.sink_numbers import differences, value_of
from tests.faults.sink_rounds import run_rounds

MICRO_BATCHES = [range(6), range(6, 12)]
RIGHT = [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]


def test_rounds_of_different_faults_lose_repeat_and_reorder_nothing(tmp_path: Path) -> None:
    done, record_count, found = run_rounds(4, 1, tmp_path)
    assert (found, len(done)) == ([], 4)
    assert record_count > 0


@pytest.mark.parametrize(
    ("partition", "expected"),
    [
        ([0, 3, 6, 9], []),
        ([3, 0, 6, 9], []),  # of two slots of one micro-batch
        ([0, 3, 6], ["lost: one/00000009"]),
        ([0, 0, 3, 6, 9], ["2 times: one/00000000", "reordered in partition 0: one/00000000"]),
        ([6, 0, 3, 9], ["reordered in partition 0: one/00000000"]),
        ([0, 3, 6, 9, 12], ["unexpected: one/00000012"]),
    ],
)
def test_the_comparison_finds_what_is_wrong(partition: list[int], expected: list[str]) -> None:
    partitions = [[value_of("one", number) for number in numbers] for numbers in [partition, *RIGHT[1:]]]
    assert differences("one", MICRO_BATCHES, partitions) == expected
