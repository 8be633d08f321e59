from __future__ import annotations

import importlib
import struct
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from tests.support.examples import examples
from tests.support.golden_files import VISIBLE, names, reads
from tests.support.record_batches import batch, record, varint
from tests.support.record_encoders import (
    COMPRESSING,
    ENCODERS,
    ENOUGH,
    A,
    every_codec,
    full_record,
    gzip,
    plain,
    records,
)

from shallow_mirror.errors import BatchRefusedError, ConfigError, CorruptBatchError, OffsetDeltasError
from shallow_mirror.wire import Codec
from shallow_mirror.wire.records.unpacked_batch import Record, open_batch

BASE = 700


every_compression = pytest.mark.parametrize("name", COMPRESSING)


def opened(raw: bytes, max_bytes: int = ENOUGH) -> list[Record]:
    return list(open_batch(memoryview(raw), A, max_bytes=max_bytes))


def compressed(name: str, block: bytes, count: int) -> bytes:
    codec, encode = ENCODERS[name]
    return batch(BASE, count, attributes=codec, payload=encode(block))


@pytest.mark.parametrize("name", names("fetch-"))
def test_captured_batches_open_to_what_another_consumer_received(name: str) -> None:
    for captured in reads(name):
        for i in np.flatnonzero(np.isin(captured.admission.verdicts, VISIBLE)).tolist():
            actual = list(open_batch(captured.bytes_of(i), captured.fetched.topic_partition, max_bytes=ENOUGH))
            expected = [each for each in captured.told_of(i) if each[0] >= int(captured.index.headers["base_offset"][i])]
            assert [[each.offset, each.timestamp_ms] for each in actual] == [each[:2] for each in expected]
            codecs = {str(content, "ascii") for each in actual for _, content in each.headers if content is not None}
            assert codecs <= {each[2] for each in expected}


@pytest.mark.slow
@every_codec
@given(records)
@settings(max_examples=examples(30))
def test_every_record_comes_out_as_it_went_in_whatever_the_codec(
    name: str, written: list[tuple[int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]]
) -> None:
    offsets, at = [], -1
    for step, *_ in written:
        at += step
        offsets.append(at)
    block = b"".join(
        full_record(delta, time, key, value, headers)
        for delta, (_, time, key, value, headers) in zip(offsets, written, strict=True)
    )
    codec, encode = ENCODERS[name]
    raw = batch(BASE, deltas=offsets, timestamp=5_000, attributes=codec, payload=encode(block))
    actual = [
        (opened_record.offset - BASE, opened_record.timestamp_ms - 5_000, plain(opened_record.key), plain(opened_record.value))
        for opened_record in opened(raw)
    ]
    assert actual == [(delta, ts, key, value) for delta, (_, ts, key, value, _) in zip(offsets, written, strict=True)]
    headers = [[(bytes(name), plain(content)) for name, content in record.headers] for record in opened(raw)]
    assert headers == [record[-1] for record in written]


def test_records_of_a_log_append_time_batch_have_the_batchs_time() -> None:
    raw = batch(BASE, 3, attributes=0x08, timestamp=777)
    assert [record.timestamp_ms for record in opened(raw)] == [777] * 3


def test_negative_timestamp_deltas_of_a_delete_horizon_count_from_it() -> None:
    raw = batch(BASE, 1, attributes=0x40, timestamp=9_000, payload=full_record(0, -8_000, b"k", b"v", []))
    assert [record.timestamp_ms for record in opened(raw)] == [1_000]


@pytest.mark.parametrize("name", ["gzip", "snappy of Java", "zstd"])
def test_frames_that_follow_each_other_are_one_block(name: str) -> None:
    codec, encode = ENCODERS[name]
    raw = batch(BASE, 2, attributes=codec, payload=encode(record(0)) + encode(record(1)))
    assert [record.offset for record in opened(raw)] == [BASE, BASE + 1]


ZSTD_SKIPPABLE = struct.pack("<II", 0x184D2A50, 4) + b"abcd"
TWO = record(0) + record(1)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gzip", lambda encode: encode(TWO[:5]) + encode(TWO[5:])),
        ("gzip", lambda encode: encode(b"") + encode(TWO) + encode(b"") * 100),
        ("gzip", lambda encode: encode(TWO) + bytes(20)),
        ("gzip", lambda encode: encode(TWO) + b"junk" * 4),
        ("gzip", lambda encode: encode(TWO) + encode(b"")[:8]),
        ("gzip", lambda encode: encode(TWO) + encode(b"yyyy")[:14]),
        ("lz4", lambda encode: encode(TWO) + bytes(20)),
        ("lz4", lambda encode: encode(TWO) + encode(TWO)),
        ("zstd", lambda encode: ZSTD_SKIPPABLE + encode(TWO[:5]) + ZSTD_SKIPPABLE + encode(TWO[5:]) + ZSTD_SKIPPABLE),
        ("zstd", lambda encode: encode(b"") + encode(TWO)),
        ("snappy of Java", lambda encode: encode(TWO) + b"\0\0"),
    ],
)
def test_blocks_that_brokers_store_are_opened(name: str, change: Callable[[Callable[[bytes], bytes]], bytes]) -> None:
    """Tried with Produce requests to brokers of 2.8.2 and 4.3.0, which answer without an error."""
    codec, encode = ENCODERS[name]
    raw = batch(BASE, 2, attributes=codec, payload=change(encode))
    assert [record.offset for record in opened(raw)] == [BASE, BASE + 1]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("gzip", lambda encode: encode(TWO)[:-3]),
        ("gzip", lambda encode: encode(TWO)[:-8] + bytes(8)),
        ("gzip", lambda encode: encode(TWO) + encode(b"xx")),
        ("lz4", lambda encode: encode(record(0)) + encode(record(1))),
        ("lz4", lambda encode: encode(b"") + encode(TWO)),
        ("lz4", lambda encode: encode(TWO)[:-4]),
        ("zstd", lambda encode: encode(TWO) + bytes(20)),
        ("snappy of Java", lambda encode: encode(TWO) + bytes(4)),
        ("snappy of librdkafka", lambda encode: encode(TWO) + bytes(20)),
    ],
)
def test_blocks_that_brokers_refuse_are_corrupt(name: str, change: Callable[[Callable[[bytes], bytes]], bytes]) -> None:
    codec, encode = ENCODERS[name]
    with pytest.raises(CorruptBatchError):
        opened(batch(BASE, 2, attributes=codec, payload=change(encode)))


@pytest.mark.slow
@every_compression
def test_a_bomb_is_refused_at_the_bound_and_takes_no_more_memory_than_that(name: str) -> None:
    raw = compressed(name, full_record(0, 0, None, bytes(20 << 20), []), 1)
    tracemalloc.start()
    with pytest.raises(BatchRefusedError, match="more than 1048576 bytes") as caught:
        opened(raw)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (caught.value.topic_partition, caught.value.base_offset) == (A, BASE)
    assert peak < 6 << 20


@every_compression
def test_a_small_block_takes_little_memory_however_large_the_bound(name: str) -> None:
    raw = compressed(name, record(0, value=bytes(1_000)), 1)
    opened(raw)
    tracemalloc.start()
    opened(raw, max_bytes=1 << 28)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@every_codec
def test_what_fills_the_bound_exactly_is_opened(name: str) -> None:
    block = record(0, value=bytes(3_000))
    assert len(opened(compressed(name, block, 1), max_bytes=len(block))) == 1
    with pytest.raises(BatchRefusedError):
        opened(compressed(name, block, 1), max_bytes=len(block) - 1)


@pytest.mark.slow
@every_compression
@given(st.data())
@settings(max_examples=examples(150), deadline=None)
def test_changed_bytes_of_a_block_end_in_our_errors_or_in_records(name: str, data: st.DataObject) -> None:
    codec, encode = ENCODERS[name]
    payload = bytearray(encode(b"".join(record(delta, b"key", b"value" * 20) for delta in range(8))))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    payload = payload[: data.draw(st.integers(0, len(payload)))]
    try:
        assert len(opened(batch(BASE, 8, attributes=codec, payload=bytes(payload)))) == 8
    except (CorruptBatchError, BatchRefusedError) as error:
        named = (error.topic_partition, error.base_offset)
    else:
        named = (A, BASE)
    assert named == (A, BASE)


@pytest.mark.slow
@given(st.binary(max_size=200), st.integers(-1, 5), st.integers(-3, 40))
@settings(max_examples=examples(500))
def test_bytes_that_are_no_records_end_in_our_errors(block: bytes, last_offset_delta: int, count: int) -> None:
    raw = bytearray(batch(BASE, 1, last_offset_delta=last_offset_delta, payload=block))
    raw[57:61] = struct.pack(">i", count)
    try:
        opened(bytes(raw))
    except (CorruptBatchError, OffsetDeltasError) as error:
        named = (error.topic_partition, error.base_offset)
    else:
        named = (A, BASE)
    assert named == (A, BASE)


@pytest.mark.parametrize(
    ("payload", "count", "reason"),
    [
        (record(0)[:-1], 1, "7 bytes long, where 6 are left|its bytes end too soon|bytes long"),
        (record(0) + b"x", 1, "1 bytes behind its 1 records"),
        (record(0), 2, "record 1 of 2 cannot be read: its bytes end too soon"),
        (b"\xff" * 12, 1, "varint of more than ten bytes"),
        (varint(-3) + b"abc", 1, "-3 bytes long"),
        (varint(8) + b"\x00\x00\x00" + varint(-2) + b"\x00" * 4, 1, "a field of -2 bytes"),
        (varint(6) + b"\x00\x00\x00\x01\x01" + varint(9), 1, "9 headers in 0 bytes"),
        (varint(8) + b"\x00\x00\x00\x01\x01\x02\x01\x01", 1, "a header without a name"),
        (varint(8) + b"\x00\x00\x00\x01\x01\x00\x00\x00", 1, "its fields end 2 bytes before it does"),
    ],
)  # fmt: skip
def test_each_wrong_record_is_named_with_its_reason(payload: bytes, count: int, reason: str) -> None:
    raw = bytearray(batch(BASE, 1, last_offset_delta=count - 1, payload=payload))
    raw[57:61] = struct.pack(">i", count)
    with pytest.raises(CorruptBatchError, match=f"orders-3: corrupt record batch at base offset {BASE}.*({reason})"):
        opened(bytes(raw))


def test_a_timestamp_outside_of_64_bits_is_refused() -> None:
    raw = batch(BASE, 1, timestamp=(1 << 63) - 1, payload=full_record(0, 1, None, None, []))
    with pytest.raises(CorruptBatchError, match="impossible timestamp"):
        opened(raw)


def test_a_block_of_very_many_empty_members_is_opened_soon() -> None:
    raw = batch(BASE, 1, attributes=Codec.GZIP, payload=gzip(b"") * 20_000 + gzip(record(0)))
    assert [record.offset for record in opened(raw)] == [BASE]


@pytest.mark.parametrize("deltas", [(0, 0, 0), (2, 1, 0), (0, 2, 4)])
def test_an_uncompressed_batch_whose_offsets_do_not_rise_is_named_as_the_producers_fault(deltas: tuple[int, ...]) -> None:
    """Brokers store such a batch as it is; of compressed ones they check the offset deltas."""
    block = b"".join(map(record, deltas))
    with pytest.raises(OffsetDeltasError, match=r"its producer sent it so.*write\.on_refused: quarantine"):
        opened(batch(BASE, 3, payload=block))
    with pytest.raises(CorruptBatchError, match="has offset delta"):
        opened(compressed("lz4", block, 3))


def test_an_unknown_codec_and_a_cut_header_are_corrupt() -> None:
    with pytest.raises(CorruptBatchError, match="unknown compression codec 6"):
        opened(batch(BASE, 1, attributes=6))
    with pytest.raises(CorruptBatchError, match="60 bytes are no record batch"):
        opened(batch(BASE, 1)[:60])


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", gone)
    with pytest.raises(ConfigError, match=r"package lz4, which is not installed: pip install 'shallow-mirror\[rebuild\]'"):
        opened(compressed("lz4", record(0), 1))
