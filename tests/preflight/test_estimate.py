from __future__ import annotations

import json

import pytest

from shallow_mirror.preflight.estimate import LEAST_MEASURED_BYTES, PartitionSample, backlog_of, mirror_pace, reading_pace

MB = 1_000_000


def sample(position: int, end: int, reached: int, read_bytes: int) -> PartitionSample:
    return PartitionSample(position=position, end=end, reached=reached, read_bytes=read_bytes)


def test_a_backlog_that_was_read_whole_is_exact_also_where_the_last_batch_reaches_beyond_its_end() -> None:
    backlog = backlog_of([sample(10, 20, 25, 700), sample(5, 5, 5, 0)])
    assert (backlog.size_bytes, backlog.offsets, backlog.is_exact, backlog.unread_partitions) == (700, 10, True, 0)


def test_a_sample_is_continued_over_the_rest() -> None:
    backlog = backlog_of([sample(0, 1_000, 100, 5_000), sample(0, 10, 10, 30)])
    assert (backlog.size_bytes, backlog.is_exact) == (50_030, False)


def test_of_a_partition_that_could_not_be_read_nothing_is_invented() -> None:
    backlog = backlog_of([sample(0, 1_000, 0, 0), sample(0, 10, 10, 30)])
    assert (backlog.size_bytes, backlog.is_exact, backlog.unread_partitions) == (30, False, 1)


@pytest.mark.parametrize(("size", "seconds"), [(LEAST_MEASURED_BYTES - 1, 1.0), (LEAST_MEASURED_BYTES, 0.0)])
def test_too_few_bytes_say_nothing_about_the_pace(size: int, seconds: float) -> None:
    assert reading_pace(size, seconds) is None


def test_the_pace_of_reading_says_what_it_is_of() -> None:
    pace = reading_pace(10 * MB, 2.0)
    assert pace is not None
    assert (pace.bytes_per_s, pace.seconds_for(20 * MB)) == (5 * MB, 4.0)
    assert "reading alone" in pace.basis


def test_the_mirrors_pace_is_that_of_its_larger_micro_batches() -> None:
    rows = [
        {"fetched_bytes": 6 * MB, "duration_ms": json.dumps({"Total": 1_000.0})},
        {"fetched_bytes": 2 * MB, "duration_ms": json.dumps({"Total": 3_000.0})},
        {"fetched_bytes": 1_000, "duration_ms": json.dumps({"Total": 500.0})},
        {"fetched_bytes": 5 * MB, "duration_ms": json.dumps({})},
    ]
    pace = mirror_pace(rows)
    assert pace is not None
    assert pace.bytes_per_s == 2 * MB
    assert pace.basis == "this mirror's last 2 micro-batches of at least 1 MiB"
    assert mirror_pace(rows[2:]) is None
