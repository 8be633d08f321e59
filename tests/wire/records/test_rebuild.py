from __future__ import annotations

import struct

import crc32c
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tests.support.examples import examples
from tests.support.golden_files import VISIBLE, names, reads
from tests.support.rebuilt_batches import all_contents, contents, header, is_accepted, offsets_of, rebuilt
from tests.support.record_batches import batch, record
from tests.support.record_encoders import (
    COMPRESSING,
    ENCODERS,
    A,
    every_codec,
    full_record,
    gzip,
    records,
)

from shallow_mirror.errors import BatchRefusedError, CorruptBatchError
from shallow_mirror.types import LogAppendTimePolicy
from shallow_mirror.wire import Codec
from shallow_mirror.wire.records import record_layout

BASE = 700
Written = list[tuple[int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]]


def written_batch(name: str, written: Written, *, attributes: int = 0) -> bytes:
    offsets = (np.cumsum([step for step, *_ in written]) - 1).tolist()
    block = b"".join(
        full_record(delta, time, key, value, headers)
        for delta, (_, time, key, value, headers) in zip(offsets, written, strict=True)
    )
    codec, encode = ENCODERS[name]
    return batch(BASE, deltas=offsets, timestamp=5_000, attributes=codec | attributes, payload=encode(block))


@pytest.mark.slow
@every_codec
@given(records, st.integers(0, 30), st.sampled_from([0, 0x08, 0x40]))
@settings(max_examples=examples(40))
def test_every_record_from_the_position_on_is_kept_and_brokers_accept_the_batch(
    name: str, written: Written, skipped: int, attributes: int
) -> None:
    raw = written_batch(name, written, attributes=attributes)
    offsets = offsets_of(raw)
    position = offsets[min(skipped, len(offsets) - 1)]
    made = rebuilt(raw, position=position)
    kept = offsets.index(position)
    assert made.offsets.tolist() == offsets[kept:]
    assert all_contents(made) == contents(raw)[kept:]
    assert made.counts == (len(offsets) - kept,)
    assert [header(batch).attributes for batch in made.batches] == [ENCODERS[name][0]]
    assert all(is_accepted(batch) for batch in made.batches)


@pytest.mark.thorough
@every_codec
@given(records, st.integers(140, 2_000))
@settings(max_examples=examples(40))
def test_batches_above_the_targets_limit_are_split_between_records_or_refused_by_the_record(
    name: str, written: Written, max_message_bytes: int
) -> None:
    raw = written_batch(name, written)
    refused: BatchRefusedError | None = None
    try:
        made = rebuilt(raw, max_message_bytes=max_message_bytes)
    except BatchRefusedError as error:
        refused = error
    if refused is not None:
        assert (refused.topic_partition, refused.base_offset) == (A, BASE)
        offset = int(refused.rule.split("at offset ")[1].split()[0])
        output = int(refused.rule.split("batch of ")[1].split()[0])
        assert offset in offsets_of(raw)
        assert output > max_message_bytes
        return
    assert all(len(batch) <= max_message_bytes for batch in made.batches)
    assert all(is_accepted(batch) for batch in made.batches)
    assert sum(made.counts) == len(made.offsets)
    assert made.counts == tuple(header(batch).records_count for batch in made.batches)
    assert all_contents(made) == contents(raw)


def test_a_split_makes_no_more_batches_than_needed_where_records_are_alike() -> None:
    raw = batch(BASE, payload=b"".join(record(delta, value=bytes(90)) for delta in range(100)), count=100)
    made = rebuilt(raw, max_message_bytes=2_700)
    assert len(made.batches) == 4
    assert made.counts == (25, 25, 25, 25)


@pytest.mark.parametrize("sizes", [(10, 10, 900), (900, 10, 10), (10, 900, 10), (900, 900)])
def test_a_large_record_between_small_ones_travels_alone(sizes: tuple[int, ...]) -> None:
    raw = batch(BASE, len(sizes), payload=b"".join(record(i, value=bytes(size)) for i, size in enumerate(sizes)))
    made = rebuilt(raw, max_message_bytes=980)
    assert all_contents(made) == contents(raw)


@pytest.mark.parametrize("name", names("fetch-"))
def test_captured_batches_keep_their_records(name: str) -> None:
    for captured in reads(name):
        for i in np.flatnonzero(np.isin(captured.admission.verdicts, VISIBLE)).tolist():
            raw = bytes(captured.bytes_of(i))
            made = rebuilt(raw)
            assert all_contents(made) == contents(raw)
            assert made.offsets.tolist() == offsets_of(raw)
            assert all(is_accepted(each) for each in made.batches)


def test_append_times_are_kept_or_the_producers_as_the_policy_says() -> None:
    block = full_record(0, 0, b"k", b"v", []) + full_record(4, -30, b"k", b"v", [])
    raw = batch(BASE, deltas=[0, 4], attributes=0x08, timestamp=5_000, max_timestamp=9_000, payload=block)
    (kept,) = rebuilt(raw).batches
    assert [content[0] for content in contents(kept)] == [9_000, 9_000]
    assert header(kept).max_timestamp == 9_000
    (producers,) = rebuilt(raw, policy=LogAppendTimePolicy.PRODUCER).batches
    assert [content[0] for content in contents(producers)] == [5_000, 4_970]
    assert header(producers).max_timestamp == 5_000


def test_the_delete_horizon_is_cleared_and_what_was_counted_from_it_keeps_its_time() -> None:
    block = full_record(2, -8_000, b"k", None, [])
    raw = batch(BASE, deltas=[2], attributes=0x40, timestamp=9_000, max_timestamp=1_000, payload=block)
    (made,) = rebuilt(raw).batches
    assert contents(made) == [(1_000, b"k", None, [])]
    assert (header(made).attributes, header(made).max_timestamp) == (0, 1_000)


def test_records_without_a_time_stay_without() -> None:
    (made,) = rebuilt(batch(BASE, deltas=[0, 3], timestamp=-1)).batches
    assert [content[0] for content in contents(made)] == [-1, -1]
    assert header(made).max_timestamp == -1


def test_attributes_of_records_which_mean_nothing_are_zero_afterwards() -> None:
    body = bytearray(record(0) + record(3))
    body[1] = 0x7F
    (made,) = rebuilt(batch(BASE, deltas=[0, 3], payload=bytes(body))).batches
    assert made[61:] == record(0) + record(1)


def test_what_lies_wholly_below_the_position_leaves_no_batch() -> None:
    made = rebuilt(batch(BASE, deltas=[0, 1], last_offset_delta=5), position=BASE + 3)
    assert (made.batches, made.counts, len(made.offsets)) == ((), (), 0)


def test_more_records_than_are_rewritten_at_once_are_more_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_layout, "MOST_RECORDS", 40)
    raw = batch(BASE, deltas=range(0, 300, 3))
    made = rebuilt(raw, position=BASE + 100)
    assert made.counts == (6, 40, 20)
    assert made.offsets.tolist() == list(range(BASE + 102, BASE + 300, 3))
    assert all_contents(made) == contents(raw)[34:]


@pytest.mark.parametrize("name", COMPRESSING)
def test_a_bomb_is_refused_with_the_setting_that_bounds_it(name: str) -> None:
    codec, encode = ENCODERS[name]
    raw = batch(BASE, 1, attributes=codec, payload=encode(record(0, value=bytes(2 << 20))))
    with pytest.raises(BatchRefusedError, match=r"more than 1048576 bytes .*read\.fetch_bytes") as refused:
        rebuilt(raw)
    assert (refused.value.topic_partition, refused.value.base_offset) == (A, BASE)


def test_a_wrong_checksum_is_corrupt_and_not_laundered() -> None:
    damaged = bytearray(batch(BASE, deltas=[0, 2]))
    damaged[-2] ^= 1
    with pytest.raises(CorruptBatchError, match=f"orders-3: .* base offset {BASE}: .*CRC does not match"):
        rebuilt(bytes(damaged))


def with_count(raw: bytes, count: int) -> bytes:
    changed = bytearray(raw)
    changed[57:61] = struct.pack(">i", count)
    changed[17:21] = struct.pack(">I", crc32c.crc32c(bytes(changed[21:])))
    return bytes(changed)


@pytest.mark.parametrize(("count", "reason"), [(1, "bytes behind its 1 records"), (3, "record 2 of 3 cannot be read")])
def test_a_count_that_lies_is_corrupt(count: int, reason: str) -> None:
    with pytest.raises(CorruptBatchError, match=reason):
        rebuilt(with_count(batch(BASE, deltas=[0, 2], last_offset_delta=5), count))


def test_a_block_that_cannot_be_opened_is_corrupt() -> None:
    raw = batch(BASE, 1, attributes=Codec.GZIP, payload=gzip(record(0))[:-4])
    with pytest.raises(CorruptBatchError, match="gzip block cannot be opened"):
        rebuilt(raw)


@pytest.mark.slow
@pytest.mark.parametrize("attributes", [0, 0x08], ids=["own times", "append time"])
def test_thousands_of_records_whose_numbers_times_and_lengths_become_shorter_are_kept(
    attributes: int,
) -> None:
    deltas = list(range(40, 9_000 * 3, 3))
    block = b"".join(full_record(n, n * 977 - 5_000, b"k" * (n % 3), b"v" * (n % 70), [(b"h", None)] * (n % 2)) for n in deltas)
    raw = batch(BASE, deltas=deltas, attributes=attributes, timestamp=5_000, max_timestamp=9_000, payload=block)
    made = rebuilt(raw, position=BASE + 100)
    kept = sum(delta >= 100 for delta in deltas)
    assert all_contents(made) == contents(raw)[-kept:]
    assert made.offsets.tolist() == offsets_of(raw)[-kept:]
    assert is_accepted(made.batches[0])
