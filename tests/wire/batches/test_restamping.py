from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tests.support.record_batches import batch, view

from shallow_mirror.wire import BATCH_HEADER_BYTES, LOG_APPEND_TIME_BIT, verify_crc
from shallow_mirror.wire.batches import index_batches
from shallow_mirror.wire.batches.restamping import (
    SEQUENCE_MODULUS,
    SharedProducer,
    StampedInPlace,
    restamp,
    restamp_at_offsets,
    restamped_at,
)


def split(records: memoryview) -> list[memoryview]:
    index = index_batches(records)
    return [records[start : start + size] for start, size in zip(index.pos.tolist(), index.size_bytes.tolist(), strict=True)]


@pytest.mark.slow
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


def test_batches_of_several_partitions_get_the_sequences_of_their_offsets() -> None:
    newest = SharedProducer(producer_id=7, now_ms=9_000, old_before_ms=500)
    oldest = SharedProducer(producer_id=8, now_ms=9_000, old_before_ms=2_000)
    first, between, last = batch(4, 2), batch(6, 1), batch(SEQUENCE_MODULUS + 9, 1)
    parts = [
        StampedInPlace(records, index_batches(records), np.array(chosen, np.int64), producer)
        for records, chosen, producer in (
            (view(first, between, last), [0, 2], newest),
            (view(), [], newest),
            (view(batch(30, 5)), [0], oldest),
        )
    ]
    restamp_at_offsets(parts)
    assert bytes(parts[0].records[len(first) : len(first) + len(between)]) == between
    sent = [sent for part in parts for sent in part.batches()]
    headers = [index_batches(each).headers[0] for each in sent]
    assert all(verify_crc(each) for each in sent)
    assert [(int(header["producer_id"]), int(header["base_sequence"])) for header in headers] == [(7, 4), (7, 9), (8, 30)]
    assert [int(header["attributes"]) for header in headers] == [0, 0, LOG_APPEND_TIME_BIT]
    assert [int(header["max_timestamp"]) for header in headers] == [1_000, 1_000, 9_000]
    assert [int(header["base_offset"]) for header in headers] == [0, 0, 0]


def test_a_single_batch_is_restamped_for_its_offset() -> None:
    producer = SharedProducer(producer_id=7, now_ms=9_000, old_before_ms=0)
    stamped = restamped_at(bytearray(batch(0, 3)), SEQUENCE_MODULUS + 1, producer)
    assert verify_crc(stamped)
    assert int(index_batches(stamped).headers[0]["base_sequence"]) == 1
