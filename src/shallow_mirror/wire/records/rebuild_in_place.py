"""Pure: new record batches whose records keep their offsets, made of a batch that cannot be copied as it is.

Where records are missing (compaction), an uncompressed batch has fillers in their places: brokers refuse a batch whose count is
not its last offset delta + 1. Otherwise the records are rebuilt in the codec of the batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from shallow_mirror.errors import BatchRefusedError, CorruptBatchError
from shallow_mirror.types import BatchLimits, TopicPartition
from shallow_mirror.wire.batches.batch_builder import build_batch
from shallow_mirror.wire.batches.batch_index import index_batches
from shallow_mirror.wire.batches.crc import verify_crc
from shallow_mirror.wire.batches.header import BATCH_HEADER_BYTES, NATIVE_HEADER
from shallow_mirror.wire.records.fillers import filler_record
from shallow_mirror.wire.records.rebuild import rebuild, times_of
from shallow_mirror.wire.records.record_layout import RecordSpans, find_spans
from shallow_mirror.wire.records.record_rewriter import rewritten
from shallow_mirror.wire.records.unpacked_batch import unpack_batch
from shallow_mirror.wire.records.varints import Longs

_LONGEST_HOLE = 1_000
"""Longer holes are left to filler batches between two batches."""


class PlacedBatch(NamedTuple):
    """A batch to be appended at `offset`. `source_offsets`: of its records, without those of fillers, int64."""

    offset: int
    batch: bytes
    source_offsets: Longs

    @property
    def end(self) -> int:
        """Return the offset behind its last record."""
        return int(self.source_offsets[-1]) + 1


def rebuild_in_place(
    batch: memoryview,
    topic_partition: TopicPartition,
    *,
    position: int,
    limits: BatchLimits,
    max_opened_bytes: int,
    filler_key: bytes | None,
    cut: int | None = None,
) -> list[PlacedBatch]:
    """Return the records of `batch` from offset `position` on, in batches within the target's size limit.

    `cut`: only those below this offset. Each batch begins and ends with a record of the source; offsets between two batches
    hold none.

    Raises CorruptBatchError (also for a wrong checksum), BatchRefusedError for a batch that no rebuild can save, ConfigError.
    """
    header = index_batches(batch).headers[0]
    if int(header["records_count"]) != int(header["last_offset_delta"]) + 1:
        return list(_with_fillers(batch, topic_partition, position, cut, limits, max_opened_bytes, filler_record(filler_key)))
    rebuilt = rebuild(batch, topic_partition, position=position, cut=cut, limits=limits, max_opened_bytes=max_opened_bytes)
    ends = np.cumsum(rebuilt.counts).tolist()
    return [
        PlacedBatch(int(rebuilt.offsets[start]), new_batch, rebuilt.offsets[start:end])
        for new_batch, start, end in zip(rebuilt.batches, [0, *ends], ends, strict=False)
    ]


def _with_fillers(
    batch: memoryview,
    topic_partition: TopicPartition,
    position: int,
    cut: int | None,
    limits: BatchLimits,
    max_opened_bytes: int,
    filler: bytes,
) -> Iterator[PlacedBatch]:
    if not verify_crc(batch):
        base_offset = int.from_bytes(batch[:8], "big", signed=True)
        raise CorruptBatchError(topic_partition, base_offset, 0, "its CRC does not match its payload")
    opened = unpack_batch(batch, topic_partition, max_bytes=max_opened_bytes)
    base_offset = opened.header["base_offset"]
    is_stamped, (base_timestamp,) = times_of(np.array([tuple(opened.header.values())], NATIVE_HEADER), limits)
    for spans in find_spans(opened):
        behind_last = len(spans) if cut is None else int(np.searchsorted(spans.offset_delta, cut - base_offset))
        kept = spans.part(min(int(np.searchsorted(spans.offset_delta, position - base_offset)), behind_last), behind_last)
        first = 0
        while first < len(kept):
            end = _end_of_batch(kept, first, len(filler), limits.max_message_bytes)
            part = kept.part(first, end)
            times = part.timestamp_delta * ~is_stamped
            placed = _mixed_batch(opened.block, part, times, base_offset, int(base_timestamp), filler)
            if len(placed.batch) > limits.max_message_bytes:
                raise BatchRefusedError(
                    topic_partition,
                    base_offset,
                    f"its record at offset {placed.offset} alone makes an uncompressed batch of {len(placed.batch)} bytes, "
                    f"larger than max.message.bytes={limits.max_message_bytes} of the target topic",
                    f"Set its max.message.bytes to {len(placed.batch)} or more and start again",
                )
            yield placed
            first = end


_MOST_GROWTH = 15
"""Bytes by which new deltas and a new length may make a record longer."""


def _end_of_batch(spans: RecordSpans, first: int, filler_bytes: int, max_bytes: int) -> int:
    """Return behind which record a batch that begins with record `first` ends: in front of a long hole, or when it is full."""
    steps = np.diff(spans.offset_delta[first:], prepend=spans.offset_delta[first] - 1)
    long_holes = np.flatnonzero(steps > _LONGEST_HOLE)
    sizes = np.cumsum(spans.end[first:] - spans.start[first:] + _MOST_GROWTH + (steps - 1) * filler_bytes)
    fitting = int(np.searchsorted(sizes, max_bytes - BATCH_HEADER_BYTES, side="right"))
    ends = [max(1, fitting), len(sizes), *long_holes[:1].tolist()]
    return first + int(min(ends))


def _mixed_batch(
    block: memoryview | bytes, spans: RecordSpans, times: Longs, base_offset: int, base_timestamp: int, filler: bytes
) -> PlacedBatch:
    numbers = spans.offset_delta - spans.offset_delta[0]
    records, starts = rewritten(block, spans, timestamp_delta=times, offset_delta=numbers)
    behind_holes = np.flatnonzero(np.diff(numbers) > 1) + 1
    cuts = [0, *behind_holes.tolist(), len(spans)]
    payload = bytearray()
    for first, end in itertools.pairwise(cuts):
        if first:
            payload += filler * int(numbers[first] - numbers[first - 1] - 1)
        payload += records[int(starts[first]) : int(starts[end])]
    count = int(numbers[-1]) + 1
    offsets = base_offset + spans.offset_delta
    new_batch = build_batch(
        bytes(payload),
        attributes=0,
        base_timestamp=base_timestamp,
        max_timestamp=base_timestamp + int(times.max()),
        records_count=count,
        last_offset_delta=count - 1,
    )
    return PlacedBatch(int(offsets[0]), new_batch, offsets)
