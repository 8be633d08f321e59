from __future__ import annotations

from typing import Any

import lz4.frame
import pytest
from hypothesis import given, settings, strategies as st
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from tests.support.examples import examples
from tests.support.legacy_batches import (
    COMPRESSING,
    OFFSET,
    TIME,
    Written,
    at_offsets,
    message_set,
    wrapped,
    written_messages,
)
from tests.support.record_batches import batch, message, view
from tests.support.record_encoders import ENCODERS, ENOUGH, A, gzip, plain

from shallow_mirror.errors import BatchRefusedError, CorruptBatchError
from shallow_mirror.wire import LOG_APPEND_TIME_BIT, verify_crcs
from shallow_mirror.wire.batches import BatchIndex, index_batches
from shallow_mirror.wire.records import compression, legacy_formats, open_batch
from shallow_mirror.wire.records.legacy_formats import Converted, convert_legacy


def converted(*entries: bytes) -> Converted:
    return convert_legacy(view(*entries), A, max_opened_bytes=ENOUGH)


def index_of(made: Converted) -> BatchIndex:
    """Whole batches with right checksums, and nothing else."""
    assert made.failure is None
    index = index_batches(made.records)
    assert index.stop is None
    assert index.consumed_bytes == len(made.records)
    assert verify_crcs(made.records, index.pos, index.headers).all()
    return index


def converted_records(made: Converted) -> Written:
    index = index_of(made)
    records = []
    for start, size in zip(index.pos.tolist(), index.size_bytes.tolist(), strict=True):
        for record in open_batch(made.records[start : start + size], A, max_bytes=ENOUGH):
            assert record.headers == ()
            records.append((record.offset, record.timestamp_ms, plain(record.key), plain(record.value)))
    return records


def visible_records(written: Written, magic: int) -> Written:
    """As consumers see it: magic 0 has no times."""
    return written if magic else [(offset, -1, key, value) for offset, _, key, value in written]


@pytest.mark.parametrize("magic", [0, 1])
def test_the_oracle_writes_what_another_client_writes(magic: int) -> None:
    builder = LegacyRecordBatchBuilder(magic, 0, 1 << 20)
    made = [(0, 1_000, b"k", b"value"), (1, 2_000, None, b""), (2, 3_000, b"", None)]
    for offset, time, key, value in made:
        builder.append(offset, timestamp=time, key=key, value=value)
    assert bytes(builder.build()) == message_set(made, magic=magic)


@pytest.mark.slow
@pytest.mark.parametrize("magic", [0, 1])
@given(written_messages, st.integers(0, 1 << 40))
@settings(max_examples=examples(60))
def test_uncompressed_messages_keep_offset_time_key_and_value(magic: int, steps: Written, first: int) -> None:
    written = at_offsets(steps, first)
    assert converted_records(converted(message_set(written, magic=magic))) == visible_records(written, magic)


@pytest.mark.thorough
@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("name", COMPRESSING)
@given(written_messages, st.integers(0, 1 << 40))
@settings(max_examples=examples(40))
def test_a_wrapper_becomes_one_batch_of_its_codec_with_the_offsets_of_its_messages(
    name: str, magic: int, steps: Written, first: int
) -> None:
    written = at_offsets(steps, first)
    inner = message_set(written, magic=magic, base=first if magic else 0)
    made = converted(wrapped(name, inner, written[-1][OFFSET], magic=magic))
    assert converted_records(made) == visible_records(written, magic)
    assert index_of(made).headers["attributes"].tolist() == [ENCODERS[name][0]]


def test_a_wrapper_whose_first_messages_were_compacted_away_counts_from_its_last() -> None:
    inner = message_set([(3, 10, b"a", b"1"), (7, 20, b"b", b"2")], magic=1)
    made = converted(wrapped("gzip", inner, 107, magic=1))
    assert converted_records(made) == [(103, 10, b"a", b"1"), (107, 20, b"b", b"2")]
    assert index_of(made).headers["last_offset_delta"].tolist() == [4]


def test_a_wrapper_at_offset_0_begins_there_as_old_clients_left_it() -> None:
    inner = message_set([(0, 10, None, b"1"), (1, 20, None, b"2")], magic=1)
    assert [record[OFFSET] for record in converted_records(converted(wrapped("lz4", inner, 0, magic=1)))] == [0, 1]


def test_the_append_time_of_a_wrapper_is_the_time_of_all_its_messages() -> None:
    inner = message_set([(0, 10, None, b"1"), (1, 20, None, b"2")], magic=1)
    made = converted(wrapped("gzip", inner, 1, magic=1, timestamp=5_000, attributes=LOG_APPEND_TIME_BIT))
    assert [record[TIME] for record in converted_records(made)] == [5_000, 5_000]
    assert index_of(made).headers["attributes"][0] & LOG_APPEND_TIME_BIT


def test_uncompressed_messages_that_a_broker_stamped_keep_that_time_as_their_own() -> None:
    made = converted(message(4, timestamp=7_000, attributes=LOG_APPEND_TIME_BIT))
    assert converted_records(made) == [(4, 7_000, None, b"v")]
    assert index_of(made).headers["attributes"].tolist() == [0]


def test_formats_may_follow_each_other_and_what_is_new_already_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legacy_formats, "SHARED_BATCH_BYTES", 30)
    new = batch(50, 3, attributes=0x10, producer_id=9, producer_epoch=0, base_sequence=0)
    old = [message(offset, magic=offset % 2) for offset in range(8)]
    made = converted(*old, new, message(53), message(54)[:-1])
    assert [record[OFFSET] for record in converted_records(made)] == [*range(8), 50, 51, 52, 53]
    index = index_of(made)
    assert index.headers["records_count"].tolist() == [4, 4, 3, 1]
    at = index.headers["base_offset"].tolist().index(50)
    assert bytes(made.records[int(index.pos[at]) :])[: len(new)] == new


def test_a_partial_batch_of_the_new_format_stays_partial() -> None:
    made = converted(message(4), batch(5, 2)[:-1])
    assert made.failure is None
    assert len(index_batches(made.records)) == 1


@pytest.mark.parametrize("content_size", [False, True])
@pytest.mark.parametrize("name", ["of magic 0", "of magic 1"])
def test_the_wrong_header_checksum_of_lz4_frames_is_expected_of_magic_0_only(name: str, content_size: bool) -> None:
    magic = int(name[-1])
    written: Written = [(7, 10, b"k", b"value" * 30)]
    frame = bytearray(lz4.frame.compress(message_set(written, magic=magic, base=0), store_size=content_size))
    frame[14 if content_size else 6] ^= 0x5A
    made = converted(message(7, None, bytes(frame), magic=magic, attributes=3))
    if magic == 0:
        assert converted_records(made) == visible_records(written, 0)
    else:
        assert isinstance(made.failure, CorruptBatchError)


def test_the_checksum_of_lz4_headers_is_the_one_that_the_library_writes() -> None:
    for size in (0, 1, 1_000, 1 << 20):
        for block_size in (4, 5, 6, 7):
            for store_size in (False, True):
                frame = lz4.frame.compress(bytes(size), block_size=block_size, store_size=store_size)
                assert bytes(compression.fix_lz4_checksum(memoryview(frame))) == frame


TWO = message_set([(0, 10, None, b"1"), (1, 20, None, b"2")], magic=1)
BAD: dict[str, tuple[bytes, str]] = {
    "a changed byte": (message(4)[:-1] + b"x", "its CRC does not match"),
    "a short length": (message(4)[:8] + b"\0\0\0\x0b" + message(4)[12:], "11 bytes of magic 1 are no message"),
    "a negative length": (message(4)[:8] + b"\xff" * 4 + message(4)[12:], "12 bytes are no message"),
    "a null set": (message(4, None, None, attributes=1), "a compressed set that is null"),
    "an empty set": (wrapped("gzip", b"", 4, magic=1), "a compressed set without messages"),
    "zstd": (message(4, None, b"x", attributes=4), "unknown compression codec 4"),
    "no codec": (message(4, None, b"x", attributes=7), "unknown compression codec 7"),
    "a broken block": (message(4, None, gzip(TWO)[:-5], attributes=1), "gzip block cannot be opened"),
    "half a message": (wrapped("gzip", TWO[:-1], 4, magic=1), "a message of 23 bytes at byte 35 of a compressed set"),
    "a set in a set": (wrapped("gzip", wrapped("gzip", TWO, 1, magic=1), 4, magic=1), "magic 1 and codec 1"),
    "another magic": (wrapped("gzip", message_set([(4, 0, None, b"")], magic=0), 4, magic=1), "magic 0 and codec 0"),
    "a last offset above the set's": (wrapped("gzip", message_set([(9, 0, None, b"")], magic=1), 4, magic=1), "last message says 9"),
    "offsets that fall": (wrapped("gzip", TWO + TWO, 4, magic=1), "offset 3 behind 4"),
    "times too far apart": (
        wrapped("gzip", message_set([(0, -5, None, b""), (1, (1 << 63) - 1, None, b"")], magic=1), 4, magic=1), "ms apart"
    ),
    "a key beyond the end": (message(4, b"kk")[:26] + b"\0\0\x0f\xff" + message(4, b"kk")[30:], "CRC"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_converted_is_named_behind_the_good_ones(what: str) -> None:
    entry, output = BAD[what]
    made = convert_legacy(view(message(2), message(3), entry, message(5)), A, max_opened_bytes=ENOUGH)
    assert isinstance(made.failure, CorruptBatchError)
    assert output in made.failure.reason
    assert (made.failure.topic_partition, made.failure.base_offset) == (A, 4)
    assert [record[OFFSET] for record in converted_records(Converted(made.records, None))] == [2, 3]


@pytest.mark.parametrize("name", COMPRESSING)
def test_a_bomb_is_refused_with_the_setting_that_bounds_it(name: str) -> None:
    inner = message(4, None, bytes(2 << 20))
    failure = converted(wrapped(name, inner, 4, magic=1)).failure
    assert isinstance(failure, BatchRefusedError)
    assert "read.fetch_bytes" in failure.remedy
    assert (failure.topic_partition, failure.base_offset) == (A, 4)


@pytest.mark.thorough
@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), max_size=6), st.integers(0, 400), st.booleans())
@settings(max_examples=examples(400))
def test_changed_bytes_end_in_our_errors_or_in_whole_batches(changes: list[Any], cut: int, has_right_crc: bool) -> None:
    inner = bytearray(message_set([(n, n * 10, b"key", b"value" * n) for n in range(5)], magic=1))
    entries = bytearray(message(3) + wrapped("lz4", bytes(inner), 9, magic=1) + batch(10, 2) + message(12, magic=0))
    target = inner if has_right_crc else entries
    for at, byte in changes:
        target[at % len(target)] = byte
    raw = wrapped("gzip", bytes(inner), 9, magic=1) if has_right_crc else bytes(entries[: cut or len(entries)])
    made = convert_legacy(view(raw), A, max_opened_bytes=ENOUGH)
    assert made.failure is None or isinstance(made.failure, CorruptBatchError | BatchRefusedError)
    index = index_batches(made.records)
    assert (index.pos + index.size_bytes <= len(made.records)).all()
