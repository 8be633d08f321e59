from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.record_batches import batch, view

from shallow_mirror.wire.batches.batch_index import index_batches
from shallow_mirror.wire.batches.crc import verify_crc
from shallow_mirror.wire.batches.header import BATCH_HEADER_BYTES
from shallow_mirror.wire.batches.restamp import restamp


def split(records: memoryview) -> list[memoryview]:
    index = index_batches(records)
    return [records[start : start + size] for start, size in zip(index.pos.tolist(), index.size_bytes.tolist(), strict=True)]


@given(
    payloads=st.lists(st.binary(max_size=3000), min_size=1, max_size=5),
    producer_id=st.integers(0, 2**63 - 1),
    producer_epoch=st.integers(0, 32767),
    first=st.integers(0, 2**31 - 1),
    codec=st.integers(0, 4),
)
def test_a_patched_crc_is_the_recomputed_one_and_the_payload_is_untouched(
    payloads: list[bytes], producer_id: int, producer_epoch: int, first: int, codec: int
) -> None:
    source = [batch(9 * i, 3, attributes=codec, payload=payload) for i, payload in enumerate(payloads)]
    records = view(*source)
    index = index_batches(records)
    restamp(records, index, np.arange(len(index)), producer_id=producer_id, producer_epoch=producer_epoch, first_sequence=first)
    for before, after in zip(source, split(records), strict=True):
        assert verify_crc(after)
        assert bytes(after[BATCH_HEADER_BYTES:]) == before[BATCH_HEADER_BYTES:]


@pytest.mark.parametrize("size", [0, 1, 2, 255, 256, 4_095, 65_537, 1_000_003])
def test_the_patch_holds_for_payloads_of_any_size(size: int) -> None:
    records = view(batch(5, 2, payload=bytes(range(256)) * (size // 256) + bytes(size % 256)))
    restamp(records, index_batches(records), np.array([0]), producer_id=77, producer_epoch=1, first_sequence=0)
    assert verify_crc(records)


def test_sequences_continue_and_wrap_to_zero() -> None:
    records = view(batch(0, 3), batch(3, 2), batch(5, 4))
    index = index_batches(records)
    after = restamp(records, index, np.arange(3), producer_id=1, producer_epoch=0, first_sequence=2**31 - 4)
    assert index_batches(records).headers["base_sequence"].tolist() == [2**31 - 4, 2**31 - 1, 1]
    assert after == 5


def test_only_the_codec_survives_of_the_attributes() -> None:
    records = view(batch(4, 1, attributes=0x08 | 0x40 | 4))
    restamp(records, index_batches(records), np.array([0]), producer_id=1, producer_epoch=2, first_sequence=0)
    header = index_batches(records).headers[0]
    assert (header["attributes"], header["base_offset"], header["partition_leader_epoch"]) == (0x14, 0, -1)
    assert (header["producer_id"], header["producer_epoch"]) == (1, 2)


def test_batches_that_are_not_chosen_stay_as_they_are() -> None:
    source = [batch(0, 1), batch(1, 1), batch(2, 1)]
    records = view(*source)
    restamp(records, index_batches(records), np.array([1]), producer_id=1, producer_epoch=0, first_sequence=0)
    assert [bytes(part) for part in split(records)][::2] == source[::2]


def test_a_payload_damaged_before_stays_damaged_after() -> None:
    records = view(batch(0, 2))
    records[-1] ^= 1
    restamp(records, index_batches(records), np.array([0]), producer_id=1, producer_epoch=0, first_sequence=0)
    assert not verify_crc(records)
