"""Good batches and message sets to change, and what makes changed ones right again where that hides what lies behind."""

from __future__ import annotations

import struct
import zlib

import crc32c
from tests.support.golden_files import frame_of, names
from tests.support.legacy_batches import message_set, wrapped
from tests.support.record_batches import batch, marker, message, record
from tests.support.record_encoders import ENCODERS, full_record

from shallow_mirror.wire import BATCH_HEADER_BYTES
from shallow_mirror.wire.batches import index_batches
from shallow_mirror.wire.batches.header import LOG_OVERHEAD
from shallow_mirror.wire.protocol import parse_fetch_response

WRAPPING = ["gzip", "snappy of Java", "snappy of librdkafka", "lz4"]
"""Codecs of message sets."""

_LEAST_LEGACY_BYTES = 18


def captured() -> list[bytes]:
    """Return the records of every partition of the captured Fetch responses."""
    raw_responses = [
        bytes(partition.records) for name in names("fetch-") for partition in parse_fetch_response(frame_of(name)).partitions
    ]
    return [raw for raw in raw_responses if raw]


def captured_batches(codec: int | None = None) -> list[bytes]:
    """One by one; of a codec."""
    raw_batches = []
    for records in captured():
        index = index_batches(memoryview(records))
        for start, size in zip(index.pos.tolist(), index.size_bytes.tolist(), strict=True):
            if codec is None or records[start + 22] & 7 == codec:
                raw_batches.append(records[start : start + size])
    return sorted(set(raw_batches))


def blocks() -> list[tuple[bytes, list[int], int]]:
    """Return opened records, their offset deltas, and attributes of a batch of them."""
    headers: list[tuple[bytes, bytes | None]] = [(b"name", b"value"), (b"", None)]
    made = []
    for count, step, attributes in ((1, 1, 0), (3, 1, 0x08), (30, 3, 0), (70, 2, 0x08), (200, 1, 0x40)):
        deltas = list(range(0, count * step, step))
        records = [full_record(n, n * 77, b"key" if n % 2 else None, b"v" * (n % 90), headers * (n % 3)) for n in deltas]
        made.append((b"".join(records), deltas, attributes))
    return made


def batches(name: str) -> list[bytes]:
    codec, encode = ENCODERS[name]
    made = [
        batch(700, deltas=deltas, attributes=codec | attributes, max_timestamp=9_000, payload=encode(block))
        for block, deltas, attributes in blocks()
    ]
    return [*made, *captured_batches(codec)[:4]]


def opened_batches() -> list[bytes]:
    """Header and records that are not compressed, whatever the header says: what `closed` makes a batch of."""
    return [
        batch(700, deltas=deltas, attributes=attributes, max_timestamp=9_000, payload=block)
        for block, deltas, attributes in blocks()
    ]


def responses() -> list[bytes]:
    """Return what a Fetch response holds of a partition: transactions, markers, holes, all codecs, a partial last batch."""
    producer = {"attributes": 0x10, "producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    txns = batch(0, 2, **producer) + batch(2, 1) + marker(3, 0, 7) + batch(4, 2, **producer) + marker(6, 1, 7)  # type: ignore[arg-type]
    mixed = b"".join(batches(name)[2] for name in ENCODERS)
    return [txns, mixed, txns + mixed[:-5], *captured()]


def small_batches() -> list[bytes]:
    """Neighbours of one codec, with a marker and a hole between some of them."""
    made = []
    for name in ENCODERS:
        codec, encode = ENCODERS[name]
        each = [
            batch(2 * n + n // 3, 2, attributes=codec, timestamp=900 + n, payload=encode(record(0, b"k") + record(1, None, None)))
            for n in range(6)
        ]
        made.append(b"".join([*each[:3], marker(6, 1, 7), *each[3:]]))
    return [*made, b"".join(made)]


def message_sets() -> list[bytes]:
    written = [(n * 2, 1_000 + n, b"key" if n % 2 else None, b"value" * n) for n in range(9)]
    return [message_set(written, magic=0), message_set(written, magic=1), message(5, magic=1) + batch(6, 3) + message(9, magic=0)]


def wrappers() -> list[bytes]:
    return [
        wrapped(name, message_set, 16, magic=magic) + message(17, magic=magic)
        for name in WRAPPING
        for magic, message_set in enumerate(message_sets()[:2])
    ]


def with_right_checksum(data: bytes) -> bytes:
    """One batch: its length, magic and CRC fit its bytes. Too short a header is filled up."""
    made = bytearray(data.ljust(BATCH_HEADER_BYTES, b"\0"))
    made[8:12] = struct.pack(">i", len(made) - LOG_OVERHEAD)
    made[16] = 2
    made[17:21] = struct.pack(">I", crc32c.crc32c(bytes(made[21:])))
    return bytes(made)


def with_right_checksums(data: bytes) -> bytes:
    """Every whole batch that can be found in it."""
    made, batch_index = bytearray(data), index_batches(memoryview(data))
    for start, size in zip(batch_index.pos.tolist(), batch_index.size_bytes.tolist(), strict=True):
        made[start : start + size] = with_right_checksum(data[start : start + size])
    return bytes(made)


def closed(name: str, data: bytes) -> bytes:
    """Build a batch of this codec and a right CRC around records that are not compressed."""
    codec, encode = ENCODERS[name]
    made = bytearray(data.ljust(BATCH_HEADER_BYTES, b"\0"))
    made[22] = made[22] & ~7 | codec
    return with_right_checksum(bytes(made[:BATCH_HEADER_BYTES]) + encode(bytes(made[BATCH_HEADER_BYTES:])))


def with_right_message_checksums(data: bytes) -> bytes:
    """Return a message set of which each entry's CRC fits its bytes, as far as its lengths lead."""
    made, pos = bytearray(data), 0
    while pos + _LEAST_LEGACY_BYTES <= len(made):
        end = pos + LOG_OVERHEAD + struct.unpack_from(">i", made, pos + 8)[0]
        if not pos + _LEAST_LEGACY_BYTES <= end <= len(made):
            break
        if made[pos + 16] < 2:
            struct.pack_into(">I", made, pos + 12, zlib.crc32(made[pos + 16 : end]))
        pos = end
    return bytes(made)
