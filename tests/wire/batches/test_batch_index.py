from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from tests.support.record_batches import batch, view

from shallow_mirror.wire.batches.batch_index import StopReason, index_batches


def test_whole_batches_are_found_and_a_partial_last_one_is_left() -> None:
    whole = [batch(0, 3), batch(3, 1), batch(10, 2)]
    cut = batch(12, 5)
    index = index_batches(view(*whole, cut[:-1]))
    assert index.headers["base_offset"].tolist() == [0, 3, 10]
    assert index.last_offset.tolist() == [2, 3, 11]
    assert index.size_bytes.tolist() == [len(raw) for raw in whole]
    assert index.consumed_bytes == sum(len(raw) for raw in whole)
    assert index.stop is None


@pytest.mark.parametrize(
    ("magic", "reason"), [(0, StopReason.LEGACY_MAGIC), (1, StopReason.LEGACY_MAGIC), (3, StopReason.UNKNOWN_MAGIC)]
)
def test_another_record_format_stops_after_the_good_batches(magic: int, reason: StopReason) -> None:
    index = index_batches(view(batch(0, 2), batch(2, 1, magic=magic)))
    assert len(index) == 1
    assert index.stop is not None
    assert (index.stop.reason, index.stop.base_offset) == (reason, 2)


@pytest.mark.parametrize("length", [-1, 0, 48, -(2**31)])
def test_an_impossible_length_stops(length: int) -> None:
    lying = bytearray(batch(7, 1))
    lying[8:12] = length.to_bytes(4, "big", signed=True)
    index = index_batches(memoryview(lying))
    assert index.stop is not None
    assert index.stop.reason is StopReason.BAD_LENGTH


def test_a_length_beyond_the_buffer_is_a_partial_batch() -> None:
    lying = bytearray(batch(7, 1))
    lying[8:12] = (2**31 - 1).to_bytes(4, "big")
    index = index_batches(memoryview(lying))
    assert (len(index), index.consumed_bytes, index.stop) == (0, 0, None)


@given(st.binary(max_size=400))
def test_hostile_bytes_end_within_the_buffer(data: bytes) -> None:
    index = index_batches(memoryview(data))
    assert 0 <= index.consumed_bytes <= len(data)
    assert int(index.size_bytes.sum()) == index.consumed_bytes
