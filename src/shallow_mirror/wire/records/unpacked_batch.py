"""Pure: an opened record batch, and its records one by one.

Raw copies never come here. Anybody may have written what is opened: sizes are trusted only as far as there are bytes, and
the caller bounds what comes out of decompression.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from shallow_mirror.errors import BatchRefusedError, CorruptBatchError, OffsetDeltasError
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.batches.header import BATCH_HEADER_BYTES, CODEC_MASK, HEADER, LOG_APPEND_TIME_BIT, Codec
from shallow_mirror.wire.records.compression import BlockTooLargeError, CorruptBlockError, decompress
from shallow_mirror.wire.records.fillers import FILLER_OFFSET_DELTA

OPENED_FETCHES = 16
"""An opened batch may take this many `read.fetch_bytes`."""

LARGER_BLOCKS = "Raise read.fetch_bytes, which bounds what may be opened, and start again"
"""The remedy where that is not enough."""

Headers = tuple[tuple[memoryview, memoryview | None], ...]

_HEADER = struct.Struct(">qiibIhiqqqhii")
_MAX_VARINT_SHIFT = 63
MIN_LONG, MAX_LONG = -(1 << 63), (1 << 63) - 1
_MAX_UNSIGNED = (1 << 64) - 1


class Record(NamedTuple):
    """One record. `key`, `value` and the values of `headers` are views of the opened batch; None is null, which is not empty."""

    offset: int
    timestamp_ms: int
    key: memoryview | None
    value: memoryview | None
    headers: Headers


@dataclass(frozen=True, slots=True)
class UnpackedBatch:
    """The header's fields by name, and the records behind it, decompressed but not yet parsed."""

    topic_partition: TopicPartition
    header: Mapping[str, int]
    block: memoryview

    @property
    def codec(self) -> Codec:
        return Codec(self.header["attributes"] & CODEC_MASK)

    @property
    def append_time_ms(self) -> int | None:
        """Return the time that all records of a LogAppendTime batch have, None for other batches."""
        return self.header["max_timestamp"] if self.header["attributes"] & LOG_APPEND_TIME_BIT else None

    def corrupt(self, pos: int, reason: str) -> CorruptBatchError:
        """Return the error of damaged records. `pos`: within the opened records."""
        return CorruptBatchError(self.topic_partition, self.header["base_offset"], pos, reason)

    def records(self) -> Iterator[Record]:
        """Yield records. Raises CorruptBatchError if their count is another than the header's.

        Raises OffsetDeltasError if offsets do not rise within the header's.

        Fillers (`fillers.py`) are passed over, as consumers do. A record of a LogAppendTime batch has the batch's time, as
        consumers see it.
        """
        base_offset, base_timestamp, append_time = self.header["base_offset"], self.header["base_timestamp"], self.append_time_ms
        count, last_delta = self.header["records_count"], self.header["last_offset_delta"]
        pos, before = 0, -1
        for number in range(count):
            try:
                end, (timestamp_delta, offset_delta, key, value, headers) = parse_record(self.block, pos)
            except (IndexError, ValueError) as error:
                raise self.corrupt(pos, f"record {number} of {count} cannot be read: {_reason(error)}") from error
            if offset_delta == FILLER_OFFSET_DELTA and self.codec is Codec.NONE:
                pos = end
                continue
            if not before < offset_delta <= last_delta:
                reason = f"record {number} has offset delta {offset_delta}, behind {before} of at most {last_delta}"
                if self.codec is Codec.NONE:  # brokers check the deltas of compressed records only
                    raise OffsetDeltasError(self.topic_partition, base_offset, reason)
                raise self.corrupt(pos, reason)
            timestamp_ms = base_timestamp + timestamp_delta if append_time is None else append_time
            if not MIN_LONG <= timestamp_ms <= MAX_LONG:
                raise self.corrupt(pos, f"record {number} has the impossible timestamp {timestamp_ms}")
            pos, before = end, offset_delta
            yield Record(base_offset + offset_delta, timestamp_ms, key, value, headers)
        if pos != len(self.block):
            raise self.corrupt(pos, f"{len(self.block) - pos} bytes behind its {count} records")


def open_batch(batch: memoryview, topic_partition: TopicPartition, *, max_bytes: int) -> Iterator[Record]:
    """Yield the records of a whole batch of magic 2. Raises as `unpack_batch` and `UnpackedBatch.records`."""
    return unpack_batch(batch, topic_partition, max_bytes=max_bytes).records()


def unpack_batch(batch: memoryview, topic_partition: TopicPartition, *, max_bytes: int) -> UnpackedBatch:
    """Decompress a whole batch of magic 2; its checksum is not verified. `max_bytes` bounds the result.

    Raises CorruptBatchError, BatchRefusedError above the bound, ConfigError if the codec's library is not installed.
    """
    if len(batch) < BATCH_HEADER_BYTES:
        raise CorruptBatchError(topic_partition, -1, 0, f"{len(batch)} bytes are no record batch")
    header = dict(zip(HEADER.names or (), _HEADER.unpack_from(batch), strict=True))
    codec = header["attributes"] & CODEC_MASK
    if codec > max(Codec):
        raise CorruptBatchError(topic_partition, header["base_offset"], 0, f"unknown compression codec {codec}")
    try:
        block = decompress(batch[BATCH_HEADER_BYTES:], Codec(codec), max_bytes)
    except CorruptBlockError as error:
        reason = f"its {Codec(codec).name.lower()} block cannot be opened: {error}"
        raise CorruptBatchError(topic_partition, header["base_offset"], 0, reason) from error
    except BlockTooLargeError as error:
        raise BatchRefusedError(
            topic_partition,
            header["base_offset"],
            f"its records take more than {max_bytes} bytes when they are opened",
            LARGER_BLOCKS,
        ) from error
    return UnpackedBatch(topic_partition, header, block)


def _reason(error: Exception) -> str:
    return "its bytes end too soon" if isinstance(error, IndexError) else str(error)


def parse_record(block: memoryview, pos: int) -> tuple[int, tuple[int, int, memoryview | None, memoryview | None, Headers]]:
    """Return the end of the record that begins at `pos`, and its fields. Raises IndexError, ValueError."""
    length, pos = read_varint(block, pos)
    end = pos + length
    if length < 0 or end > len(block):
        raise ValueError(f"{length} bytes long, where {len(block) - pos} are left")
    timestamp_delta, pos = read_varint(block, pos + 1)
    offset_delta, pos = read_varint(block, pos)
    key, pos = _field(block, pos, end)
    value, pos = _field(block, pos, end)
    count, pos = read_varint(block, pos)
    if not 0 <= count <= end - pos:
        raise ValueError(f"{count} headers in {end - pos} bytes")
    headers: list[tuple[memoryview, memoryview | None]] = []
    for _ in range(count):
        name, pos = _field(block, pos, end)
        if name is None:
            raise ValueError("a header without a name")
        content, pos = _field(block, pos, end)
        headers.append((name, content))
    if pos != end:
        raise ValueError(f"its fields end {end - pos} bytes before it does")
    return end, (timestamp_delta, offset_delta, key, value, tuple(headers))


def _field(block: memoryview, pos: int, end: int) -> tuple[memoryview | None, int]:
    length, pos = read_varint(block, pos)
    if length == -1:
        return None, pos
    if length < 0 or pos + length > end:
        raise ValueError(f"a field of {length} bytes, where {end - pos} are left")
    return block[pos : pos + length], pos + length


def read_varint(block: memoryview | bytes, pos: int) -> tuple[int, int]:
    """Return the zig-zag number at `pos`, and its end. Raises IndexError, ValueError."""
    byte = block[pos]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), pos + 1
    raw, shift = byte & 0x7F, 7
    while True:
        pos += 1
        byte = block[pos]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            if raw > _MAX_UNSIGNED:
                raise ValueError(f"a varint of more than 64 bits at byte {pos}")
            return (raw >> 1) ^ -(raw & 1), pos + 1
        shift += 7
        if shift > _MAX_VARINT_SHIFT:
            raise ValueError(f"a varint of more than ten bytes at byte {pos}")
