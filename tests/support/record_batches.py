"""Record batches for tests, built field by field; the oracle for what `wire` reads and rewrites."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence

import crc32c

_BODY = struct.Struct(">hiqqqhii")


def varint(value: int) -> bytes:
    raw = (value << 1) ^ (value >> 63)
    out = bytearray()
    while raw > 0x7F:
        out.append((raw & 0x7F) | 0x80)
        raw >>= 7
    out.append(raw)
    return bytes(out)


def record(delta: int, key: bytes | None = None, value: bytes | None = b"v", *, timestamp_delta: int = 0) -> bytes:
    def field(data: bytes | None) -> bytes:
        return varint(-1) if data is None else varint(len(data)) + data

    body = b"\x00" + varint(timestamp_delta) + varint(delta) + field(key) + field(value) + varint(0)
    return varint(len(body)) + body


def batch(
    base_offset: int = 0,
    count: int = 1,
    *,
    deltas: Sequence[int] | None = None,
    last_offset_delta: int | None = None,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    leader_epoch: int = 3,
    timestamp: int = 1_000,
    max_timestamp: int | None = None,
    payload: bytes | None = None,
    magic: int = 2,
) -> bytes:
    deltas = list(range(count)) if deltas is None else list(deltas)
    if payload is None:
        payload = b"".join(record(delta) for delta in deltas)
    last = last_offset_delta if last_offset_delta is not None else (deltas[-1] if deltas else 0)
    newest = timestamp if max_timestamp is None else max_timestamp
    body = _BODY.pack(attributes, last, timestamp, newest, producer_id, producer_epoch, base_sequence, len(deltas)) + payload
    head = struct.pack(">qiibI", base_offset, len(body) + 9, leader_epoch, magic, crc32c.crc32c(body))
    return head + body


def marker(base_offset: int, kind: int, producer_id: int, *, coordinator_epoch: int = 5, producer_epoch: int = 0) -> bytes:
    """`kind`: 0 ABORT, 1 COMMIT."""
    key, value = struct.pack(">hh", 0, kind), struct.pack(">hi", 0, coordinator_epoch)
    body = b"\x00" + varint(0) + varint(0) + varint(len(key)) + key + varint(len(value)) + value + varint(0)
    payload = varint(len(body)) + body
    return batch(base_offset, 1, attributes=0x30, producer_id=producer_id, producer_epoch=producer_epoch, payload=payload)


def message(
    offset: int,
    key: bytes | None = None,
    value: bytes | None = b"v",
    *,
    magic: int = 1,
    timestamp: int = 1_000,
    attributes: int = 0,
) -> bytes:
    """Build an entry of a message set, as clients and brokers before 0.11 wrote it."""

    def field(data: bytes | None) -> bytes:
        return struct.pack(">i", -1) if data is None else struct.pack(">i", len(data)) + data

    body = struct.pack(">bb", magic, attributes) + (struct.pack(">q", timestamp) if magic else b"") + field(key) + field(value)
    return struct.pack(">qiI", offset, len(body) + 4, zlib.crc32(body)) + body


def view(*batches: bytes) -> memoryview:
    """Writable, as a receive buffer is."""
    return memoryview(bytearray(b"".join(batches)))


def numbered_batch(base_offset: int, count: int = 2) -> bytes:
    """Return a batch whose records have the key `k` and their offset as value."""
    return batch(base_offset, count, payload=b"".join(record(n, b"k", b"%d" % (base_offset + n)) for n in range(count)))
