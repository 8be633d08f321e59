"""Filler batches take offsets, and hold no record that a consumer returns."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from tests.support.record_batches import batch, record, varint

from shallow_mirror.types import TopicPartition
from shallow_mirror.wire import BATCH_HEADER_BYTES, verify_crc
from shallow_mirror.wire.batches import index_batches
from shallow_mirror.wire.records import open_batch
from shallow_mirror.wire.records.fillers import (
    FILLER_KEY,
    FILLER_OFFSET_DELTA,
    MOST_FILLERS,
    Fillers,
    OffsetSpans,
    filler_record,
    find_fillers,
)


@pytest.mark.parametrize("key", [None, FILLER_KEY])
def test_a_filler_is_a_record_without_a_value_far_below_its_batch(key: bytes | None) -> None:
    assert filler_record(key) == record(FILLER_OFFSET_DELTA, key, None)
    assert len(filler_record(None)) == 11


@pytest.mark.parametrize("count", [1, 2, 1000])
def test_a_batch_of_fillers_takes_its_offsets(count: int) -> None:
    fillers = memoryview(Fillers(None, 1 << 20).batch(count, 1234))
    index = index_batches(fillers)
    assert index.stop is None
    assert index.consumed_bytes == len(fillers)
    header = index.headers[0]
    assert (header["records_count"], header["last_offset_delta"]) == (count, count - 1)
    assert (header["attributes"], header["base_timestamp"], header["max_timestamp"]) == (0, 1234, 1234)
    assert verify_crc(fillers)


def test_a_batch_keeps_within_the_limit_of_the_topic() -> None:
    small = Fillers(None, BATCH_HEADER_BYTES + 35)
    assert small.most_records == 3
    assert len(small.batch(3, 0)) <= BATCH_HEADER_BYTES + 35
    with pytest.raises(ValueError, match="4 fillers do not fit into one batch, 3 do"):
        small.batch(4, 0)
    assert Fillers(None, 100 << 20).most_records == MOST_FILLERS
    assert len(Fillers(None, 1 << 20).batch(MOST_FILLERS, 0)) <= 1 << 20


@given(st.integers(0, 10**12), st.integers(0, 10_000), st.integers(1, 700))
def test_spans_cover_a_hole_without_overlap(start: int, length: int, most: int) -> None:
    spans = OffsetSpans(start, start + length, most)
    position = start
    for first, count in spans:
        assert first == position
        assert 0 < count <= most
        position += count
    assert position == start + length
    assert spans[:2] == list(spans)[:2]


def test_the_delta_needs_five_bytes() -> None:
    assert len(varint(FILLER_OFFSET_DELTA)) == 5


def test_batches_of_fillers_alone_are_found() -> None:
    raw = (
        bytes(Fillers(None, 1 << 20).batch(3, 0))
        + batch(3, 1)
        + bytes(Fillers(FILLER_KEY, 1 << 20).batch(2, 0))
        + batch(6, deltas=[0, 1], payload=record(0) + filler_record(None))
        + batch(8, 1, payload=b"x" * len(filler_record(None)))
    )
    assert find_fillers(index_batches(memoryview(raw)), memoryview(raw)).tolist() == [True, False, True, False, False]


def test_a_batch_with_fillers_opens_to_its_records() -> None:
    raw = batch(6, 3, payload=record(0) + filler_record(None) + record(2))
    records = list(open_batch(memoryview(raw), TopicPartition("t", 0), max_bytes=1 << 20))
    assert [one.offset for one in records] == [6, 8]
