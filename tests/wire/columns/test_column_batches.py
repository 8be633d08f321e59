"""Batches made of columns, read record by record."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from tests.support.record_encoders import plain

from shallow_mirror import Record, TopicPartition, open_batch
from shallow_mirror.wire import Codec, verify_crc
from shallow_mirror.wire.batches import index_batches
from shallow_mirror.wire.columns import ColumnBatch, Compression, RecordColumns, encode_columns

A = TopicPartition("orders", 3)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

Row = tuple[int, bytes | None, bytes | None, list[tuple[str, bytes | None]] | None, int]
"""Target, key, value, headers, timestamp in ms."""

contents = st.none() | st.binary(max_size=200)
headers = st.none() | st.lists(st.tuples(st.text(max_size=5), contents), max_size=3)
times = st.integers(0, 1 << 41) | st.integers(0, 100)
rows = st.lists(st.tuples(st.integers(0, 3), contents, contents, headers, times), min_size=1, max_size=60)


def columns_of(rows: list[Row]) -> RecordColumns:
    _, keys, values, headers, times = zip(*rows, strict=True)
    listed = [None if each is None else [{"key": key, "value": value} for key, value in each] for each in headers]
    return RecordColumns(
        pa.array(keys, pa.binary()), pa.array(values, pa.binary()), pa.array(listed, HEADERS), np.array(times, np.int64)
    )


def whole(batch: ColumnBatch, sequence: int = 0) -> memoryview:
    split = batch.stamped(producer_id=7, producer_epoch=2, base_sequence=sequence)
    return memoryview(bytes(split.header) + bytes(split.payload))


def fields(record: Record) -> tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]:
    listed = [(bytes(name).decode(), plain(value)) for name, value in record.headers]
    return plain(record.key), plain(record.value), listed, record.timestamp_ms


def encode(rows: list[Row], codec: Codec = Codec.NONE, batch_bytes: int = 500) -> list[ColumnBatch]:
    targets = np.array([row[0] for row in rows], np.int64)
    return encode_columns(columns_of(rows), targets, [batch_bytes] * 4, Compression(codec))


@pytest.mark.slow
@given(rows, st.sampled_from(list(Codec)), st.integers(1, 2000))
def test_every_row_is_in_one_batch_of_its_target_in_order(rows: list[Row], codec: Codec, batch_bytes: int) -> None:
    got: dict[int, list[object]] = {}
    for batch in encode(rows, codec, batch_bytes):
        data = whole(batch)
        records = list(open_batch(data, A, max_bytes=1 << 20))
        assert verify_crc(data)
        assert [record.offset for record in records] == list(range(batch.record_count))
        got.setdefault(batch.target, []).extend(map(fields, records))
        assert [rows[row][4] for row in batch.rows] == [record.timestamp_ms for record in records]
    expected: dict[int, list[object]] = {}
    for target, key, value, listed, time in rows:
        expected.setdefault(target, []).append((key, value, listed or [], time))
    assert got == expected


@pytest.mark.slow
@given(rows)
def test_the_header_says_what_is_in_the_batch(rows: list[Row]) -> None:
    for batch in encode(rows):
        (header,) = index_batches(whole(batch, sequence=9)).headers
        times = [rows[row][4] for row in batch.rows]
        assert (header["base_timestamp"], header["max_timestamp"]) == (times[0], max(times))
        assert header["records_count"] == len(times) == header["last_offset_delta"] + 1
        assert (header["producer_id"], header["producer_epoch"], header["base_sequence"]) == (7, 2, 9)
        assert header["attributes"] == 0x10


@pytest.mark.slow
@given(rows, st.integers(1, 2000))
def test_a_batch_stays_below_the_limit_unless_it_holds_one_record(rows: list[Row], batch_bytes: int) -> None:
    for batch in encode(rows, batch_bytes=batch_bytes):
        assert len(batch.payload) <= batch_bytes or batch.record_count == 1


@pytest.mark.parametrize("size", [1 << 7, 1 << 14, 1 << 21])
def test_lengths_of_more_bytes_are_written_in_full(size: int) -> None:
    (batch,) = encode([(0, b"k" * size, b"v" * size, [("h", b"w" * size)], 5)], batch_bytes=1)
    (record,) = open_batch(whole(batch), A, max_bytes=1 << 24)
    assert fields(record) == (b"k" * size, b"v" * size, [("h", b"w" * size)], 5)


def test_columns_without_keys_and_headers_make_records_without_them() -> None:
    values = pa.array([b"a", None, b""], pa.binary())
    columns = RecordColumns(None, values, None, np.array([3, 1, 2], np.int64))
    (batch,) = encode_columns(columns, np.zeros(3, np.int64), [1000], Compression(Codec.NONE))
    assert [fields(record) for record in open_batch(whole(batch), A, max_bytes=1000)] == [
        (None, b"a", [], 3),
        (None, None, [], 1),
        (None, b"", [], 2),
    ]


@pytest.mark.slow
@given(rows, st.data())
def test_a_slice_of_larger_arrays_is_encoded_alike(rows: list[Row], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(rows) - 1))
    every = columns_of(rows)
    assert every.keys is not None
    assert every.headers is not None
    part = RecordColumns(every.keys[first:], every.values[first:], every.headers[first:], every.timestamps_ms[first:])
    targets = np.zeros(len(rows) - first, np.int64)
    (sliced,) = encode_columns(part, targets, [1 << 20], Compression(Codec.NONE))
    (made,) = encode_columns(columns_of(rows[first:]), targets, [1 << 20], Compression(Codec.NONE))
    assert whole(sliced) == whole(made)


def test_no_rows_are_no_batches() -> None:
    empty = RecordColumns(None, pa.array([], pa.binary()), None, np.array([], np.int64))
    assert encode_columns(empty, np.array([], np.int64), [1], Compression(Codec.LZ4)) == []


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_a_higher_level_compresses_more(codec: Codec) -> None:
    text = "".join(f'{{"id": {i}, "name": "customer {i % 37}", "amount": {i * i % 1009}}}' for i in range(2000)).encode()
    columns = RecordColumns(None, pa.array([text], pa.binary()), None, np.array([0], np.int64))
    low, high = (
        encode_columns(columns, np.zeros(1, np.int64), [1 << 20], Compression(codec, level))[0].payload for level in (1, 9)
    )
    assert len(high) < len(low)
