"""The arrays of a block against its records read one by one: the same records, and the same blocks refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tests.support.examples import examples
from tests.support.record_batches import batch, record, varint
from tests.support.record_encoders import ENOUGH, A, full_record, records

from shallow_mirror.errors import CorruptBatchError, OffsetDeltasError
from shallow_mirror.wire.records import Record, UnpackedBatch, record_layout, unpack_batch, varints
from shallow_mirror.wire.records.record_layout import find_spans

RecordPlaces = list[tuple[int, int]] | str


def unpacked(raw: bytes) -> UnpackedBatch:
    return unpack_batch(memoryview(raw), A, max_bytes=ENOUGH)


def read_one_by_one(opened: UnpackedBatch) -> RecordPlaces:
    """Offset and time of each record, or the error."""
    try:
        records: list[Record] = list(opened.records())
    except (CorruptBatchError, OffsetDeltasError) as error:
        return str(error)
    return [(record.offset, record.timestamp_ms) for record in records]


def read_by_spans(opened: UnpackedBatch) -> RecordPlaces:
    base_offset, base_timestamp, append_time = (
        opened.header["base_offset"],
        opened.header["base_timestamp"],
        opened.append_time_ms,
    )
    reported = []
    try:
        for spans in find_spans(opened):
            assert (spans.start < spans.tail).all()
            assert (spans.tail < spans.end).all()
            assert spans.start[1:].tolist() == spans.end[:-1].tolist()
            for time, delta in zip(spans.timestamp_delta.tolist(), spans.offset_delta.tolist(), strict=True):
                reported.append((base_offset + delta, base_timestamp + time if append_time is None else append_time))
    except (CorruptBatchError, OffsetDeltasError) as error:
        return str(error)
    return reported


def raw_batch(block: bytes, count: int, last_offset_delta: int, attributes: int = 0, timestamp: int = 1_000) -> bytes:
    raw = bytearray(batch(700, 1, last_offset_delta=last_offset_delta, payload=block, attributes=attributes, timestamp=timestamp))
    raw[57:61] = struct.pack(">i", count)
    return bytes(raw)


def assert_told_alike(raw: bytes) -> None:
    opened = unpacked(raw)
    assert read_by_spans(opened) == read_one_by_one(opened)


@pytest.mark.thorough
@given(records, st.sampled_from([0, 0x08]), st.integers(1, 30), st.sampled_from([0, 100]))
@settings(max_examples=examples(200))
def test_spans_have_the_same_offsets_and_times_however_many_are_read_at_once(
    written: list[tuple[int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]],
    attributes: int,
    at_once: int,
    few: int,
) -> None:
    offsets = (np.cumsum([step for step, *_ in written]) - 1).tolist()
    block = b"".join(
        full_record(delta, time, key, value, headers)
        for delta, (_, time, key, value, headers) in zip(offsets, written, strict=True)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_layout, "MOST_RECORDS", at_once)
        patch.setattr(varints, "_FEW", few)
        assert_told_alike(raw_batch(block, len(offsets), offsets[-1], attributes))


changed_block = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=5)


@pytest.mark.thorough
@pytest.mark.parametrize("few", [0, 16], ids=["headers in arrays", "headers one by one"])
@given(changed_block, st.integers(18, 22), st.integers(0, 10**6))
@settings(max_examples=examples(400))
def test_changed_bytes_are_refused_by_spans_just_where_they_are_one_by_one(
    few: int, changes: list[tuple[int, int]], count: int, cut: int
) -> None:
    headers: list[tuple[bytes, bytes | None]] = [(b"a", b"bc"), (b"", None)]
    made = b"".join(full_record(delta, delta * 70, b"key", b"v" * delta * 9, headers * (delta % 3)) for delta in range(20))
    block = bytearray(made)
    for at, byte in changes:
        block[at % len(block)] = byte
    if cut % 3 == 0:
        block = block[: cut % len(block)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_layout, "_FEW", few)
        patch.setattr(varints, "_FEW", few)
        assert_told_alike(raw_batch(bytes(block), count, 20))


@pytest.mark.thorough
@given(st.binary(max_size=120), st.integers(0, 12), st.integers(-1, 30))
@settings(max_examples=examples(600))
def test_bytes_that_are_no_records_are_refused_alike(block: bytes, count: int, last_offset_delta: int) -> None:
    assert_told_alike(raw_batch(block, count, last_offset_delta))


HUGE = (1 << 63) - 1


@pytest.mark.parametrize(
    ("block", "timestamp"),
    [
        (full_record(0, HUGE, None, b"v", []), 1),
        (full_record(0, HUGE, None, b"v", []), 0),
        (full_record(0, -HUGE - 1, None, b"v", []), -1),
        (full_record(0, -HUGE - 1, None, b"v", []), 0),
        (varint(14) + b"\x00" + b"\xff" * 9 + b"\x01" + b"\x00\x01\x01\x00", 0),
        (varint(14) + b"\x00" + b"\xff" * 9 + b"\x02" + b"\x00\x01\x01\x00", 0),
        (b"\xff" * 9 + b"\x01" + record(0), 0),
        (b"\xfe" * 9 + b"\x01" + record(0), 0),
        (b"\xff" * 5000, 0),
    ],
)
def test_numbers_at_the_edge_of_64_bits_are_shown_alike(block: bytes, timestamp: int) -> None:
    assert_told_alike(raw_batch(block, 1, 0, timestamp=timestamp))
