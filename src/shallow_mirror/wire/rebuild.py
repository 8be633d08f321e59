"""Pure: new record batches with the records of one that cannot be copied as it is.

Keys, values, headers and timestamps are copied as bytes. New are the offset deltas, which have to be 0 .. n-1, and of a
batch that the source's broker has stamped the timestamps. The result is a batch like any other: `restamp` gives it its
producer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shallow_mirror.errors import BatchRefused, CorruptBatch
from shallow_mirror.types import BatchLimits, LogAppendTimePolicy, TopicPartition
from shallow_mirror.wire.batch_builder import build_batch
from shallow_mirror.wire.compression import compress
from shallow_mirror.wire.crc import verify_crc
from shallow_mirror.wire.record_spans import RecordSpans, find_spans
from shallow_mirror.wire.records import UnpackedBatch, unpack_batch
from shallow_mirror.wire.renumbered import renumbered
from shallow_mirror.wire.varints import Longs


@dataclass(frozen=True, slots=True, eq=False)
class Rebuilt:
    """`batches` hold what is left of one source batch, in order; `counts`, records of each. Nothing may be left.

    `offsets`: the source offset of every record, int64.
    """

    batches: tuple[bytes, ...]
    counts: tuple[int, ...]
    offsets: Longs


def rebuild(
    batch: memoryview, topic_partition: TopicPartition, *, position: int, limits: BatchLimits, max_opened_bytes: int
) -> Rebuilt:
    """The records of `batch` from offset `position` on, in its own codec, in batches that the target's size limit lets pass.

    Raises CorruptBatch (also for a wrong checksum), BatchRefused for what no rebuild can save, ConfigError.
    """
    if not verify_crc(batch):
        base_offset = int.from_bytes(batch[:8], "big", signed=True)
        raise CorruptBatch(topic_partition, base_offset, 0, "its CRC does not match its payload")
    opened = unpack_batch(batch, topic_partition, max_bytes=max_opened_bytes)
    writer = _Writer(opened, limits)
    base_offset = opened.header["base_offset"]
    batches: list[bytes] = []
    counts: list[int] = []
    offsets = [np.empty(0, np.int64)]
    for spans in find_spans(opened):
        kept = spans.part(int(np.searchsorted(spans.offset_delta, position - base_offset)), len(spans))
        offsets.append(base_offset + kept.offset_delta)
        for part, made in writer.batches_of(kept, len(batch)):
            batches.append(made)
            counts.append(len(part))
    return Rebuilt(tuple(batches), tuple(counts), np.concatenate(offsets))


class _Writer:
    """Makes batches out of records of one source batch."""

    def __init__(self, opened: UnpackedBatch, limits: BatchLimits) -> None:
        self._opened, self._max_bytes = opened, limits.max_message_bytes
        self._source = memoryview(opened.block)
        kept_time = opened.append_time_ms if limits.log_append_time is LogAppendTimePolicy.KEEP else None
        self._append_time_ms = kept_time
        self._base_timestamp = opened.header["base_timestamp"] if kept_time is None else kept_time

    def batches_of(self, spans: RecordSpans, source_bytes: int) -> Iterator[tuple[RecordSpans, bytes]]:
        """`source_bytes`, the size of the source's batch, tells into how many parts to cut first."""
        if not len(spans):
            return
        share = int(spans.end[-1] - spans.start[0]) / max(1, len(self._opened.block))
        for part in _cut(spans, math.ceil(source_bytes * share / self._max_bytes)):
            yield from self._that_fit(part)

    def _that_fit(self, spans: RecordSpans) -> Iterator[tuple[RecordSpans, bytes]]:
        made = self._batch(spans)
        if len(made) <= self._max_bytes:
            yield spans, made
            return
        if len(spans) == 1:
            raise self._refused(spans, len(made))
        for part in _cut(spans, max(2, math.ceil(len(made) / self._max_bytes))):
            yield from self._that_fit(part)

    def _batch(self, spans: RecordSpans) -> bytes:
        has_times = self._append_time_ms is None
        payload = compress(renumbered(self._source, spans, has_times=has_times), self._opened.codec)
        return build_batch(
            payload,
            attributes=self._opened.codec,
            base_timestamp=self._base_timestamp,
            max_timestamp=self._base_timestamp + (int(spans.timestamp_delta.max()) if has_times else 0),
            records_count=len(spans),
            last_offset_delta=len(spans) - 1,
        )

    def _refused(self, spans: RecordSpans, size_bytes: int) -> BatchRefused:
        offset = self._opened.header["base_offset"] + int(spans.offset_delta[0])
        return BatchRefused(
            self._opened.topic_partition,
            self._opened.header["base_offset"],
            f"its record at offset {offset} alone makes a batch of {size_bytes} bytes, larger than "
            f"max.message.bytes={self._max_bytes} of the target topic",
            f"Set its max.message.bytes to {size_bytes} or more and start again",
        )


def _cut(spans: RecordSpans, parts: int) -> Iterator[RecordSpans]:
    """About `parts` parts of about as many bytes each; two at the least where two are asked for and there are two records."""
    if parts <= 1:
        yield spans
        return
    count, first = len(spans), int(spans.start[0])
    wanted = first + np.arange(1, parts) * (int(spans.end[-1]) - first) // parts
    inner = np.clip(np.searchsorted(spans.end, wanted), min(1, count - 1), count - 1)
    bounds = np.unique(np.concatenate(([0], inner, [count]))).tolist()
    for start, end in itertools.pairwise(bounds):
        yield spans.part(start, end)
