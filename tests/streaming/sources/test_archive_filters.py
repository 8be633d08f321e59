"""Filters of Spark become bounds that leave out nothing wanted."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringStartsWith,
)

from shallow_mirror.archive_reading.read_bounds import NO_END, ReadBounds
from shallow_mirror.streaming.sources.archive_filters import bounds_of

TIME = datetime(2026, 5, 1, 14, 3, 0, 123_456, tzinfo=UTC)
TIME_MS = 1_777_644_180_123


@pytest.mark.parametrize(
    ("pushed", "bounds"),
    [
        ([EqualTo(("topic",), "a")], ReadBounds(topics=frozenset({"a"}))),
        ([EqualNullSafe(("topic",), "a")], ReadBounds(topics=frozenset({"a"}))),
        ([In(("topic",), ("a", "b", None))], ReadBounds(topics=frozenset({"a", "b"}))),
        ([In(("topic",), ("a", "b")), EqualTo(("topic",), "b")], ReadBounds(topics=frozenset({"b"}))),
        ([In(("partition",), (1, 2))], ReadBounds(partitions=frozenset({1, 2}))),
        ([EqualTo(("offset",), 7)], ReadBounds(start_offset=7, end_offset=8)),
        ([In(("offset",), (7, 3))], ReadBounds(start_offset=3, end_offset=8)),
        ([GreaterThan(("offset",), 7), LessThan(("offset",), 9)], ReadBounds(start_offset=8, end_offset=9)),
        ([GreaterThanOrEqual(("offset",), 7), LessThanOrEqual(("offset",), 9)], ReadBounds(start_offset=7, end_offset=10)),
        (
            [GreaterThanOrEqual(("last_offset",), 7), LessThanOrEqual(("base_offset",), 9)],
            ReadBounds(start_offset=7, end_offset=10),
        ),
        ([GreaterThan(("timestamp",), TIME)], ReadBounds(min_timestamp_ms=TIME_MS)),
        ([LessThanOrEqual(("timestamp",), TIME)], ReadBounds(max_timestamp_ms=TIME_MS + 1)),
        (
            [EqualTo(("timestamp",), TIME.replace(tzinfo=None))],
            ReadBounds(min_timestamp_ms=TIME_MS, max_timestamp_ms=TIME_MS + 1),
        ),
        ([GreaterThanOrEqual(("max_timestamp_ms",), 5)], ReadBounds(min_timestamp_ms=5)),
        ([LessThan(("max_timestamp_ms",), 5)], ReadBounds()),
        ([EqualTo(("max_timestamp_ms",), 5)], ReadBounds(min_timestamp_ms=5)),
        ([Not(EqualTo(("topic",), "a")), IsNotNull(("topic",)), StringStartsWith(("topic",), "a")], ReadBounds()),
        ([EqualTo(("value",), b"x"), GreaterThan(("partition",), 3), EqualTo(("headers", "offset"), 1)], ReadBounds()),
    ],
)
def test_filters_bound_what_is_read(pushed: list[Any], bounds: ReadBounds) -> None:
    assert bounds_of(pushed, ReadBounds()) == bounds


def test_filters_that_contradict_each_other_read_nothing() -> None:
    contradictions = [
        [EqualTo(("topic",), "a"), EqualTo(("topic",), "b")],
        [GreaterThan(("offset",), 5), LessThan(("offset",), 5)],
        [In(("offset",), ())],
    ]
    for pushed in contradictions:
        bounds = bounds_of(pushed, ReadBounds())
        assert bounds.is_empty
        assert bounds.conditions() == ()
    assert ReadBounds().end_offset == NO_END
