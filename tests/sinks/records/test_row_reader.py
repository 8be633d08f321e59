"""Rows in windows, and the partitions they go to."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from shallow_mirror.sinks.records.row_reader import RowReader, TargetTopic, windows

TOPICS = {name: TargetTopic(name, f"id of {name}", count, 1 << 20) for name, count in (("a", 3), ("b", 2))}


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


def reader(topic: str | None = None, first: int = 0) -> RowReader:
    return RowReader(1, topic, TOPICS.get, sticky_bytes=100, first=first, now_ms=lambda: 77)


@pytest.mark.slow
@given(st.lists(st.lists(st.binary(max_size=50), max_size=20), max_size=6), st.integers(1, 200))
def test_windows_have_all_rows_in_order_and_about_so_many_bytes(parts: list[list[bytes]], size: int) -> None:
    batches = [batch(value=pa.array(part, pa.binary())) for part in parts]
    got = list(windows(batches, size))
    assert [value for window in got for value in window["value"].to_pylist()] == [value for part in parts for value in part]
    assert all(window.num_rows for window in got)
    assert all(window.num_rows == 1 or window.nbytes <= 3 * size + 200 for window in got)


def test_rows_of_several_topics_and_partitions_are_numbered_by_target() -> None:
    rows = reader()
    window = batch(
        topic=pa.array(["b", "a", "b", "a"]),
        value=pa.array([b"1", b"2", b"3", b"4"]),
        partition=pa.array([1, 2, 0, None], pa.int32()),
    )
    records, numbers = rows.read(window)
    targets = [(rows.targets[number].topic, rows.targets[number].partition) for number in numbers.tolist()]
    assert targets == [("b", 1), ("a", 2), ("b", 0), ("a", 0)]
    assert records.timestamps_ms.tolist() == [77] * 4


def test_a_null_timestamp_is_the_time_of_writing_and_others_are_floored() -> None:
    times = pa.array([1999, None, 0], pa.timestamp("us", tz="UTC"))
    records, _ = reader("a").read(batch(value=pa.array([b"1", b"2", b"3"]), timestamp=times))
    assert records.timestamps_ms.tolist() == [1, 77, 0]


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()])
def test_texts_and_bytes_are_the_same(kind: pa.DataType) -> None:
    value = pa.array(["ä", None]).cast(kind) if kind == pa.string() else pa.array(["ä".encode(), None])
    records, _ = reader("a").read(batch(value=value))
    assert records.values.to_pylist() == ["ä".encode(), None]
