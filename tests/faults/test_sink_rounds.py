"""A few rounds of faults of a DataFrame sink, and the comparison on histories that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.faults.sink_numbers import differences, value_of
from tests.faults.sink_rounds import run_rounds
from tests.faults.sink_scene import QueryHistory

MICRO_BATCHES = [range(6), range(6, 12)]
RIGHT = [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]


@pytest.mark.thorough
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


def test_micro_batches_that_run_may_be_there_in_part_and_those_behind_them_may_not() -> None:
    partitions = [[value_of("one", number) for number in numbers] for numbers in RIGHT]
    assert differences("one", MICRO_BATCHES[:1], partitions, running=MICRO_BATCHES[1:]) == []
    assert differences("one", MICRO_BATCHES[:1], partitions, running=[range(6, 11)]) == ["unexpected: one/00000011"]
    assert differences("one", MICRO_BATCHES, [[], *partitions[1:]], running=[range(12, 18)])[0] == "lost: one/00000000"


def test_micro_batches_are_those_of_all_checkpoints_of_a_query(tmp_path: Path) -> None:
    newer, older = tmp_path / "newer", tmp_path / "older"
    for checkpoint in (newer, older):
        for log in ("offsets", "commits"):
            (checkpoint / log).mkdir(parents=True)
    for checkpoint, end in ((newer, 10), (older, 10), (older, 20), (older, 30)):
        (checkpoint / "offsets" / str(end // 10 - 1)).write_text(f'[{{"end": {end - 10}}}, {{"end": {end}}}]')
    for path in (newer / "commits/0", older / "commits/0", older / "commits/1"):
        path.touch()
    history = QueryHistory("one", [newer, older])
    assert history.read() == ([range(10), range(10, 20)], [range(20, 30)])
    history.lose_checkpoint(20)
    for checkpoint in (newer, older):
        for log in ("offsets", "commits"):
            for path in (checkpoint / log).iterdir():
                path.unlink()
    (newer / "offsets/0").write_text('v1\n{"batchWatermarkMs":0}\n{"end": 35}')  # as Spark writes it
    assert history.read() == ([range(10), range(10, 20)], [range(20, 35)])
