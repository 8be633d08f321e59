"""Pure: conversion of message sets of magic 0 and 1 (brokers before 0.11, old log segments) to batches of magic 2.

A batch has the offsets that its messages had, holes included, so that no other file has to handle older formats: what cannot
be copied so is rebuilt like any other batch. A compressed wrapper becomes one batch of the same codec; consecutive
uncompressed messages share one. Rules: LegacyRecord, AbstractLegacyRecordBatch.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from shallow_mirror.errors import BatchRefusedError, ConfigError, CorruptBatchError, MirrorError
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.batches.batch_builder import build_batch
from shallow_mirror.wire.batches.header import CODEC_MASK, LOG_APPEND_TIME_BIT, LOG_OVERHEAD, MAGIC, MAGIC_POS, Codec
from shallow_mirror.wire.protocol.primitives import uvarint
from shallow_mirror.wire.records.compression import (
    BlockTooLargeError,
    CorruptBlockError,
    compress,
    decompress,
    fix_lz4_checksum,
)
from shallow_mirror.wire.records.unpacked_batch import LARGER_BLOCKS

SHARED_BATCH_BYTES = 1 << 18
"""Uncompressed messages share a batch up to about this size."""

_OFFSET_AND_LENGTH = struct.Struct(">qi")
_HEAD = struct.Struct(">qiIbb")
_LENGTH = struct.Struct(">i")
_TIMESTAMP = struct.Struct(">q")
_LEAST_BYTES = {0: 14, 1: 22}
_NO_TIMESTAMP = -1
_NO_END = (1 << 63) - 1
_NULL = b"\x01"
_NO_HEADERS = b"\x00"


@dataclass(frozen=True, slots=True)
class Converted:
    """A converted response part.

    `records`, writable, begin with whole batches of magic 2. The bytes behind them were no whole message; `failure`: why
    conversion stopped.
    """

    records: memoryview
    failure: MirrorError | None


@dataclass(frozen=True, slots=True)
class _Message:
    offset: int
    magic: int
    attributes: int
    timestamp_ms: int
    key: memoryview | None
    value: memoryview | None

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK


@dataclass(slots=True)
class _Batch:
    """A batch that is being built: its records are encoded as they are added."""

    base_offset: int = -1
    last_offset: int = -1
    base_timestamp: int = _NO_TIMESTAMP
    max_timestamp: int = _NO_TIMESTAMP
    count: int = 0
    block: bytearray = field(default_factory=bytearray)

    def add(self, message: _Message, offset: int) -> None:
        """Append a record. Raises ValueError if offsets do not rise, or are too far apart for one batch."""
        if not self.count:
            self.base_offset, self.base_timestamp, self.max_timestamp = offset, message.timestamp_ms, message.timestamp_ms
        elif offset <= self.last_offset:
            raise ValueError(f"offset {offset} behind {self.last_offset}")
        if offset < 0 or offset - self.base_offset >= 1 << 31:
            raise ValueError(f"offset {offset} in one batch with {self.base_offset}")
        parts = (
            b"\x00" + _varint(message.timestamp_ms - self.base_timestamp) + _varint(offset - self.base_offset),
            _field(message.key),
            _field(message.value),
            _NO_HEADERS,
        )
        self.block += _varint(sum(map(len, parts)))
        for part in parts:
            self.block += part
        self.last_offset, self.count = offset, self.count + 1
        self.max_timestamp = max(self.max_timestamp, message.timestamp_ms)

    def build(self, codec: Codec, append_time_ms: int | None) -> bytes:
        return build_batch(
            compress(memoryview(self.block), codec),
            attributes=codec if append_time_ms is None else codec | LOG_APPEND_TIME_BIT,
            base_timestamp=self.base_timestamp,
            max_timestamp=self.max_timestamp if append_time_ms is None else append_time_ms,
            records_count=self.count,
            last_offset_delta=self.last_offset - self.base_offset,
            base_offset=self.base_offset,
        )


def convert_legacy(
    records: memoryview, topic_partition: TopicPartition, *, max_opened_bytes: int, range_end: int = _NO_END
) -> Converted:
    """Convert a response part. Batches of magic 2 and of unknown formats are copied: indexing them reports the latter.

    `range_end`: messages from there on share no batch with those in front, which another reader does not get.
    """
    conversion = _Conversion(max_opened_bytes, range_end)
    pos = 0
    while pos + MAGIC_POS < len(records):
        offset, length = _OFFSET_AND_LENGTH.unpack_from(records, pos)
        magic, end = records[pos + MAGIC_POS], pos + LOG_OVERHEAD + max(length, 0)
        if end > len(records) or (magic >= MAGIC and length <= 0):
            break
        try:
            conversion.take(magic, records[pos:end])
        except BlockTooLargeError:
            rule = f"its messages take more than {max_opened_bytes} bytes when they are opened"
            return conversion.finish(BatchRefusedError(topic_partition, offset, rule, LARGER_BLOCKS))
        except ConfigError as error:
            return conversion.finish(error)
        except ValueError as error:
            return conversion.finish(CorruptBatchError(topic_partition, offset, pos, f"message of magic {magic}: {error}"))
        pos = end
    if pos + MAGIC_POS < len(records) and records[pos + MAGIC_POS] >= MAGIC:
        conversion.copy(records[pos:])
    return conversion.finish(None)


class _Conversion:
    """The batches so far, and the open batch that uncompressed messages are added to."""

    def __init__(self, max_opened_bytes: int, range_end: int) -> None:
        self._max_opened_bytes = max_opened_bytes
        self._range_end = range_end
        self._out = bytearray()
        self._shared = _Batch()

    def take(self, magic: int, entry: memoryview) -> None:
        """Convert a whole entry. Raises ValueError, BlockTooLargeError, ConfigError; then nothing was added."""
        if magic >= MAGIC:
            return self.copy(entry)
        message = _parse_message(entry)
        if message.codec:
            return self.copy(_unwrap(message, self._max_opened_bytes))
        is_other_range = self._shared.base_offset < self._range_end <= message.offset
        if is_other_range or len(self._shared.block) >= SHARED_BATCH_BYTES:
            self.copy(b"")
        self._shared.add(message, message.offset)

    def copy(self, batches: memoryview | bytes) -> None:
        self._out += self._shared.build(Codec.NONE, None) if self._shared.count else b""
        self._out += batches
        self._shared = _Batch()

    def finish(self, failure: MirrorError | None) -> Converted:
        self.copy(b"")
        return Converted(memoryview(self._out), failure)


def _parse_message(entry: memoryview) -> _Message:
    """Parse a whole entry. Raises ValueError."""
    if len(entry) < _HEAD.size:
        raise ValueError(f"{len(entry)} bytes are no message")
    offset, length, crc, magic, attributes = _HEAD.unpack_from(entry)
    if length < _LEAST_BYTES.get(magic, length + 1):
        raise ValueError(f"{length} bytes of magic {magic} are no message")
    if zlib.crc32(entry[MAGIC_POS:]) != crc:
        raise ValueError("its CRC does not match its bytes")
    pos, timestamp_ms = _HEAD.size, _NO_TIMESTAMP
    if magic == 1:
        (timestamp_ms,) = _TIMESTAMP.unpack_from(entry, pos)
        pos += _TIMESTAMP.size
    key, pos = _parse_part(entry, pos)
    value, pos = _parse_part(entry, pos)
    if pos != len(entry):
        raise ValueError(f"{len(entry) - pos} bytes behind its value")
    return _Message(offset, magic, attributes, timestamp_ms, key, value)


def _parse_part(entry: memoryview, pos: int) -> tuple[memoryview | None, int]:
    if pos + _LENGTH.size > len(entry):
        raise ValueError("its bytes end too soon")
    (length,) = _LENGTH.unpack_from(entry, pos)
    pos += _LENGTH.size
    if length == -1:
        return None, pos
    if length < 0 or pos + length > len(entry):
        raise ValueError(f"a key or value of {length} bytes, where {len(entry) - pos} are left")
    return entry[pos : pos + length], pos + length


def _unwrap(wrapper: _Message, max_opened_bytes: int) -> bytes:
    """Return the messages of a compressed wrapper as one batch. Raises ValueError, BlockTooLargeError, ConfigError."""
    block = _decompress_wrapper(wrapper, max_opened_bytes)
    last = -1
    for entry in _entries(block):
        last = _HEAD.unpack_from(entry)[0]
    if last < 0:
        raise ValueError("a compressed set without messages")
    base = _base_offset(wrapper, last)
    batch = _Batch()
    for entry in _entries(block):
        message = _parse_message(entry)
        if message.codec or message.magic != wrapper.magic:
            raise ValueError(f"inside a compressed set lies a message of magic {message.magic} and codec {message.codec}")
        batch.add(message, base + message.offset)
    is_append_time = wrapper.magic == 1 and wrapper.attributes & LOG_APPEND_TIME_BIT
    return batch.build(Codec(wrapper.codec), wrapper.timestamp_ms if is_append_time else None)


def _decompress_wrapper(wrapper: _Message, max_opened_bytes: int) -> memoryview:
    if wrapper.value is None:
        raise ValueError("a compressed set that is null")
    if wrapper.codec not in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4):
        raise ValueError(f"unknown compression codec {wrapper.codec}")
    value = wrapper.value
    if wrapper.magic == 0 and wrapper.codec == Codec.LZ4:
        value = fix_lz4_checksum(value)
    try:
        return decompress(value, Codec(wrapper.codec), max_opened_bytes)
    except CorruptBlockError as error:
        raise ValueError(f"its {Codec(wrapper.codec).name.lower()} block cannot be opened: {error}") from error


def _base_offset(wrapper: _Message, last: int) -> int:
    """Return the offset that those of inner messages are relative to (KIP-31). Raises ValueError."""
    # A wrapper of magic 1 has the offset of its last message; old clients left 0 there, with absolute inner offsets.
    if wrapper.magic == 0 or wrapper.offset == 0:
        return 0
    if wrapper.offset < last:
        raise ValueError(f"a compressed set at offset {wrapper.offset} whose last message says {last}")
    return wrapper.offset - last


def _entries(block: memoryview) -> Iterator[memoryview]:
    pos = 0
    while pos < len(block):
        if pos + _HEAD.size > len(block):
            raise ValueError(f"half a message at byte {pos} of a compressed set")
        _, length = _OFFSET_AND_LENGTH.unpack_from(block, pos)
        end = pos + LOG_OVERHEAD + length
        if length < min(_LEAST_BYTES.values()) or end > len(block):
            raise ValueError(f"a message of {length} bytes at byte {pos} of a compressed set of {len(block)}")
        yield block[pos:end]
        pos = end


def _varint(value: int) -> bytes:
    """Encode a zig-zag number. Raises ValueError for more than 64 bits."""
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError(f"timestamps that lie {value} ms apart")
    return uvarint((value << 1) ^ (value >> 63))


def _field(data: memoryview | None) -> bytes:
    return _NULL if data is None else _varint(len(data)) + data
