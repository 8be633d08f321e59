"""Pure: keys and values of the records of many opened batches, as columns: for logs of which every record is read.

Their layout is read at once (`find_joined_spans`), which pays where batches are small and many. Headers are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.batches.header import LOG_APPEND_TIME_BIT, NATIVE_HEADER
from shallow_mirror.wire.records.record_layout import RecordSpans, find_joined_spans, find_spans
from shallow_mirror.wire.records.unpacked_batch import UnpackedBatch, unpack_batch
from shallow_mirror.wire.records.varints import Longs, VarintReader


@dataclass(frozen=True, slots=True, eq=False)
class Fields:
    """A key or a value of each record, int64[n]: the bytes [start, start + length) of a block; a length of -1 is null."""

    start: Longs
    length: Longs

    def take(self, rows: Longs) -> Fields:
        return Fields(self.start[rows], self.length[rows])

    def slices(self, block: bytes) -> list[bytes | None]:
        ends = self.start + self.length
        return [None if end < start else block[start:end] for start, end in zip(self.start.tolist(), ends.tolist(), strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class RecordFields:
    """Neighbouring records, in the order of the log: offsets and timestamps are int64[n]."""

    block: bytes
    offsets: Longs
    timestamps_ms: Longs
    keys: Fields
    values: Fields

    def __len__(self) -> int:
        return len(self.offsets)


class LoggedRecord(NamedTuple):
    """`key` and `value` None are null."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


def logged_records(batch: memoryview, topic_partition: TopicPartition, *, max_bytes: int) -> list[LoggedRecord]:
    """Return all records of a whole batch of magic 2. Raises as `unpack_batch` and `read_fields`."""
    return [
        LoggedRecord(*columns)
        for fields in read_fields([unpack_batch(batch, topic_partition, max_bytes=max_bytes)])
        for columns in zip(
            fields.offsets.tolist(),
            fields.timestamps_ms.tolist(),
            fields.keys.slices(fields.block),
            fields.values.slices(fields.block),
            strict=True,
        )
    ]


def read_fields(batches: Sequence[UnpackedBatch]) -> Iterator[RecordFields]:
    """Yield all records of these batches, in one piece if there are at most MOST_RECORDS. Raises as `UnpackedBatch.records`."""
    # Compaction leaves batches without records.
    batches = [batch for batch in batches if batch.header["records_count"] or len(batch.block)]
    if not batches:
        return
    headers = np.array([tuple(batch.header.values()) for batch in batches], NATIVE_HEADER)
    joined = find_joined_spans(headers, [batch.block for batch in batches])
    if joined is not None:
        yield _fields(*joined, np.repeat(headers, headers["records_count"]))
        return
    for row, batch in enumerate(batches):
        block = bytes(batch.block)
        for spans in find_spans(batch):  # raises if it is damaged
            yield _fields(block, spans, headers[row : row + 1])


def _fields(block: bytes, spans: RecordSpans, headers: npt.NDArray[np.void]) -> RecordFields:
    """`headers`: of the batch of each record, or of all of them."""
    reader = VarintReader(block)
    keys = _read_fields(reader, spans.tail)
    values = _read_fields(reader, keys.start + np.maximum(keys.length, 0))
    is_append_time = (headers["attributes"] & LOG_APPEND_TIME_BIT) != 0
    timestamps_ms = np.where(is_append_time, headers["max_timestamp"], headers["base_timestamp"] + spans.timestamp_delta)
    return RecordFields(block, headers["base_offset"] + spans.offset_delta, timestamps_ms, keys, values)


def _read_fields(reader: VarintReader, pos: Longs) -> Fields:
    lengths = reader.read(pos)
    assert lengths is not None, "find_spans has read the same fields"
    return Fields(start=lengths[1], length=lengths[0])
