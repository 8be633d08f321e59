"""What a leader checks of one sent batch, from its bytes alone (LogValidator, UnifiedLog, ProduceRequest).

Written against Kafka's rules and independent of the package under test.
"""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import crc32c
import pyarrow as pa

_HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = _HEADER.size
_BODY_START = 21
_SMALLEST_LENGTH = 14
_XERIAL = b"\x82SNAPPY\x00"

APPEND_TIME, TRANSACTIONAL, CONTROL = 0x08, 0x10, 0x20
_KNOWN_BITS = 0x7F

DEFAULT_CONFIGS = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "max.message.bytes": "1048588",
    "min.insync.replicas": "1",
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.after.max.ms": "3600000",
    "segment.bytes": "1073741824",
    "segment.ms": "604800000",
    "retention.ms": "604800000",
}


class RefusedError(Exception):
    """The broker answers `code`. `record_errors`: indices of the records that are to blame."""

    def __init__(self, code: int, message: str = "", record_errors: Sequence[int] = ()) -> None:
        self.code, self.message, self.record_errors = code, message, tuple(record_errors)
        super().__init__(f"{code}: {message}")


class Header(NamedTuple):
    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    records_count: int

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        return (self.base_sequence + self.last_offset_delta) % (1 << 31) if self.base_sequence >= 0 else -1

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)


class Record(NamedTuple):
    offset_delta: int
    timestamp: int
    has_key: bool


def header_of(batch: bytes) -> Header:
    return Header(*_HEADER.unpack_from(batch))


def split_batches(records: bytes) -> list[bytes]:
    """Whole entries; too few bytes for another are left out. Raises Refused(2) on impossible lengths or magic."""
    raw_batches, pos = [], 0
    while pos + 12 <= len(records):
        length = int.from_bytes(records[pos + 8 : pos + 12], "big", signed=True)
        if length < _SMALLEST_LENGTH:
            raise RefusedError(2, f"length {length}")
        if pos + 17 > len(records):
            break
        if not 0 <= records[pos + 16] <= 2:
            raise RefusedError(2, f"magic {records[pos + 16]}")
        if pos + 12 + length > len(records):
            break
        raw_batches.append(records[pos : pos + 12 + length])
        pos += 12 + length
    return raw_batches


def one_batch(records: bytes | None) -> bytes:
    """Exactly one batch of magic 2, or Refused(87)."""
    batches = split_batches(bytes(records or b""))
    if not batches:
        raise RefusedError(87, "no batch")
    if batches[0][16] != 2:
        raise RefusedError(87, "magic is not 2")
    if len(batches) > 1:
        raise RefusedError(87, "more than one batch")
    return batches[0]


def check_batch(batch: bytes, configs: Mapping[str, str], now_ms: int) -> list[Record]:
    """Everything before the producer's state. Raises Refused; returns the records."""
    if batch[:8] != bytes(8):
        raise RefusedError(87, "base offset is not 0")
    if len(batch) > int(configs["max.message.bytes"]):
        raise RefusedError(10, f"{len(batch)} bytes")
    if len(batch) < HEADER_BYTES or crc32c.crc32c(batch[_BODY_START:]) != int.from_bytes(batch[17:21], "big"):
        raise RefusedError(2, "size or CRC")
    header = header_of(batch)
    if header.attributes & 0x07 > 4:
        raise RefusedError(-1, "unknown codec")
    if header.last_offset_delta < 0 or header.records_count <= 0:
        raise RefusedError(87, "no records")
    if header.last_offset_delta + 1 != header.records_count:
        raise RefusedError(87, "count is not last offset delta + 1")
    if header.is_control:
        raise RefusedError(87, "control batch of a client")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise RefusedError(87, "producer id without a sequence")
    records = records_of(header, batch)
    _check_records(header, records, configs, now_ms)
    if len(batch) > int(configs["segment.bytes"]):
        raise RefusedError(18, "larger than a log segment")
    return records


def _check_records(header: Header, records: list[Record], configs: Mapping[str, str], now_ms: int) -> None:
    if "compact" in configs["cleanup.policy"]:
        without_key = [index for index, record in enumerate(records) if not record.has_key]
        if without_key:
            raise RefusedError(87, "a record of a compacted topic without a key", without_key)
    is_append_time = configs["message.timestamp.type"] == "LogAppendTime"
    if header.attributes & APPEND_TIME and is_append_time:
        raise RefusedError(32, "a client may not send append times")
    if not is_append_time:
        before, after = int(configs["message.timestamp.before.max.ms"]), int(configs["message.timestamp.after.max.ms"])
        wrong = [
            i
            for i, candidate in enumerate(records)
            if candidate.timestamp != -1 and not -after <= now_ms - candidate.timestamp <= before
        ]
        if wrong:
            raise RefusedError(32, "timestamp out of range", wrong)
    if header.attributes & 0x07 and [record.offset_delta for record in records] != list(range(len(records))):
        raise RefusedError(-1, "inner offsets of a compressed batch")


def records_of(header: Header, batch: bytes) -> list[Record]:
    """Check records. Raises Refused(87) where the bytes are not exactly those that the header counts, -1 where they do not open."""
    data = _opened(header.attributes & 0x07, batch[HEADER_BYTES:])
    try:
        return list(_walk(header, data))
    except (IndexError, ValueError) as error:
        raise RefusedError(87, f"records: {error}") from error


def _walk(header: Header, data: bytes) -> Iterator[Record]:
    pos = 0
    for _ in range(header.records_count):
        size, pos = _varint(data, pos)
        end = pos + size
        if size < 0 or end > len(data):
            raise ValueError(f"record of {size} bytes")
        timestamp_delta, pos = _varint(data, pos + 1)
        offset_delta, pos = _varint(data, pos)
        key_bytes, pos = _varint(data, pos)
        value_bytes, pos = _varint(data, pos + max(key_bytes, 0))
        headers, pos = _varint(data, pos + max(value_bytes, 0))
        if headers < 0:
            raise ValueError(f"{headers} record headers")
        for _ in range(headers):
            name_bytes, pos = _varint(data, pos)
            if name_bytes < 0:
                raise ValueError("record header without a name")
            text_bytes, pos = _varint(data, pos + name_bytes)
            pos += max(text_bytes, 0)
        if pos != end:
            raise ValueError(f"record ends at byte {pos}, not {end}")
        is_append_time = header.attributes & APPEND_TIME
        time = header.max_timestamp if is_append_time else header.base_timestamp + timestamp_delta
        yield Record(offset_delta, time, key_bytes >= 0)
    if pos != len(data):
        raise ValueError(f"{len(data) - pos} bytes behind the last record")


def _varint(data: bytes, pos: int) -> tuple[int, int]:
    raw = shift = 0
    while True:
        byte = data[pos]
        raw |= (byte & 0x7F) << shift
        pos += 1
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), pos
        shift += 7
        if shift > 63:
            raise ValueError("varint of more than ten bytes")


def _opened(codec: int, data: bytes) -> bytes:
    try:
        if codec == 0:
            return data
        if codec == 1:
            return zlib.decompress(data, 31)
        if codec == 2:
            return b"".join(_snappy_block(block) for block in _snappy_blocks(data))
        with pa.CompressedInputStream(pa.BufferReader(data), {3: "lz4", 4: "zstd"}[codec]) as stream:
            return bytes(stream.read())
    except (OSError, zlib.error, IndexError) as error:
        raise RefusedError(-1, f"cannot be opened: {error}") from error


def _snappy_blocks(data: bytes) -> Iterator[bytes]:
    """Java's framing, or one bare block as librdkafka writes it."""
    if not data.startswith(_XERIAL):
        yield data
        return
    stream = io.BytesIO(data[16:])
    while head := stream.read(4):
        yield stream.read(int.from_bytes(head, "big"))


def _snappy_block(block: bytes) -> bytes:
    size = shift = pos = 0
    while True:
        size |= (block[pos] & 0x7F) << shift
        pos, shift = pos + 1, shift + 7
        if block[pos - 1] < 0x80:
            return bytes(pa.Codec("snappy").decompress(block, size, asbytes=True))


def stored(
    batch: bytes, *, base_offset: int, leader_epoch: int, records: Sequence[Record], configs: Mapping[str, str], now_ms: int
) -> bytes:
    """As the leader writes it: offsets and epoch always, times and CRC only where they change."""
    header = header_of(batch)
    attributes, max_timestamp = header.attributes, max(record.timestamp for record in records)
    if configs["message.timestamp.type"] == "LogAppendTime":
        attributes, max_timestamp = attributes & _KNOWN_BITS | APPEND_TIME, now_ms
    elif attributes & APPEND_TIME:
        attributes &= _KNOWN_BITS & ~APPEND_TIME
    out = bytearray(batch)
    struct.pack_into(">q", out, 0, base_offset)
    struct.pack_into(">i", out, 12, leader_epoch)
    if (attributes, max_timestamp) != (header.attributes, header.max_timestamp):
        struct.pack_into(">h", out, 21, attributes)
        struct.pack_into(">q", out, 35, max_timestamp)
        struct.pack_into(">I", out, 17, crc32c.crc32c(bytes(out[_BODY_START:])))
    return bytes(out)


def marker_batch(
    base_offset: int,
    *,
    is_commit: bool,
    producer_id: int,
    producer_epoch: int,
    coordinator_epoch: int,
    leader_epoch: int,
    now_ms: int,
) -> bytes:
    """Return a control batch of 78 bytes."""
    record = (
        b"\x20\x00\x00\x00\x08"
        + struct.pack(">hh", 0, int(is_commit))
        + b"\x0c"
        + struct.pack(">hi", 0, coordinator_epoch)
        + b"\x00"
    )
    body = struct.pack(">hiqqqhii", TRANSACTIONAL | CONTROL, 0, now_ms, now_ms, producer_id, producer_epoch, -1, 1) + record
    return struct.pack(">qiibI", base_offset, len(body) + 9, leader_epoch, 2, crc32c.crc32c(body)) + body
