"""Test support: encoders of records in every codec, and records with everything in them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import strategies as st
from tests.support.record_batches import varint

from shallow_mirror.types import TopicPartition
from shallow_mirror.wire import Codec

A = TopicPartition("orders", 3)

ENOUGH = 1 << 20


def gzip(data: bytes) -> bytes:
    encoder = zlib.compressobj(wbits=31)
    return encoder.compress(data) + encoder.flush()


def xerial(data: bytes, part: int = 50) -> bytes:
    """As Java writes: a header, then parts with their lengths."""
    parts = [bytes(cramjam.snappy.compress_raw(data[at : at + part])) for at in range(0, len(data), part)]
    return b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(part)) + part for part in parts)


def raw_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def lz4_frame(data: bytes) -> bytes:
    return bytes(lz4.frame.compress(data))


def zstd(data: bytes) -> bytes:
    """Without the content size, as producers write it."""
    return bytes(zstandard.ZstdCompressor(write_content_size=False).compress(data))


ENCODERS: dict[str, tuple[Codec, Callable[[bytes], bytes]]] = {
    "none": (Codec.NONE, bytes),
    "gzip": (Codec.GZIP, gzip),
    "snappy of Java": (Codec.SNAPPY, xerial),
    "snappy of librdkafka": (Codec.SNAPPY, raw_snappy),
    "lz4": (Codec.LZ4, lz4_frame),
    "zstd": (Codec.ZSTD, zstd),
}

COMPRESSING = [name for name in ENCODERS if name != "none"]

every_codec = pytest.mark.parametrize("name", ENCODERS)


def field(data: bytes | None) -> bytes:
    return varint(-1) if data is None else varint(len(data)) + data


def full_record(
    offset_delta: int, timestamp_delta: int, key: bytes | None, value: bytes | None, headers: list[tuple[bytes, bytes | None]]
) -> bytes:
    body = b"\x00" + varint(timestamp_delta) + varint(offset_delta) + field(key) + field(value) + varint(len(headers))
    body += b"".join(field(name) + field(content) for name, content in headers)
    return varint(len(body)) + body


def plain(data: memoryview | None) -> bytes | None:
    return None if data is None else bytes(data)


contents = st.none() | st.binary(max_size=300)

records = st.lists(
    st.tuples(
        st.integers(1, 100_000), st.integers(-(1 << 40), 1 << 40), contents, contents,
        st.lists(st.tuples(st.binary(max_size=20), contents), max_size=4),
    ),
    min_size=1, max_size=20,
)  # fmt: skip
