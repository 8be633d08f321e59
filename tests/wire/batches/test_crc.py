from __future__ import annotations

import crc32c
import numpy as np
import pytest
from hypothesis import given, strategies as st
from tests.support.record_batches import batch, view

from shallow_mirror.wire.batches import index_batches
from shallow_mirror.wire.batches.crc import joined_crc, payload_crcs, verify_crcs

payloads = st.lists(st.binary(max_size=3_000), min_size=1, max_size=8)
longs = st.integers(-(1 << 63), (1 << 63) - 1)


@pytest.mark.slow
@given(payloads, longs, longs)
def test_the_payloads_checksum_follows_from_the_header_alone(contents: list[bytes], producer_id: int, timestamp: int) -> None:
    batches = [batch(i, payload=payload, producer_id=producer_id, timestamp=timestamp) for i, payload in enumerate(contents)]
    index = index_batches(view(*batches))
    assert payload_crcs(index.headers).tolist() == [crc32c.crc32c(content) for content in contents]


@pytest.mark.slow
@given(payloads, st.data())
def test_a_changed_byte_behind_the_checksum_is_found_in_its_batch_and_in_no_other(
    contents: list[bytes], data: st.DataObject
) -> None:
    records = view(*[batch(i, payload=payload) for i, payload in enumerate(contents)])
    index = index_batches(records)
    assert verify_crcs(records, index.pos, index.headers).all()
    chosen = data.draw(st.integers(0, len(contents) - 1))
    at = data.draw(st.integers(21, int(index.size_bytes[chosen]) - 1))
    records[int(index.pos[chosen]) + at] ^= data.draw(st.integers(1, 255))
    assert np.flatnonzero(~verify_crcs(records, index.pos, index.headers)).tolist() == [chosen]


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_the_checksum_of_all_pieces_follows_from_those_of_each(pieces: list[bytes]) -> None:
    assert joined_crc([crc32c.crc32c(piece) for piece in pieces], [len(piece) for piece in pieces]) == crc32c.crc32c(
        b"".join(pieces)
    )


@pytest.mark.slow
def test_pieces_of_more_than_four_gigabytes_are_joined() -> None:
    zeros, times = bytes(1 << 20), (1 << 32) // (1 << 20) + 3
    expected = crc32c.crc32c(b"x")
    shifted = joined_crc([expected, crc32c.crc32c(zeros)], [1, 1 << 20])
    for _ in range(times - 1):
        shifted = joined_crc([shifted, crc32c.crc32c(zeros)], [0, 1 << 20])
    of_zeros = [crc32c.crc32c(zeros)] * times
    assert joined_crc([expected, *of_zeros], [1, *([1 << 20] * times)]) == shifted
