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
import numpy.typing as npt

from shallow_mirror.errors import BatchRefused, CorruptBatch
from shallow_mirror.types import BatchLimits, LogAppendTimePolicy, TopicPartition
from shallow_mirror.wire.batch_builder import build_batch
from shallow_mirror.wire.compression import compress
from shallow_mirror.wire.crc import verify_crc
from shallow_mirror.wire.record_spans import Longs, RecordSpans, find_spans
from shallow_mirror.wire.records import UnpackedBatch, unpack_batch

_MOST_VARINT_BYTES = 10

Unsigned = npt.NDArray[np.uint64]


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
        deltas = spans.timestamp_delta if self._append_time_ms is None else np.zeros(len(spans), np.int64)
        payload = compress(_renumbered(self._source, spans, deltas), self._opened.codec)
        return build_batch(
            payload,
            attributes=self._opened.codec,
            base_timestamp=self._base_timestamp,
            max_timestamp=self._base_timestamp + int(deltas.max()),
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
    count, first = len(spans), int(spans.start[0])
    wanted = first + np.arange(1, parts) * (int(spans.end[-1]) - first) // max(1, parts)
    inner = np.clip(np.searchsorted(spans.end, wanted), min(1, count - 1), count - 1)
    bounds = np.unique(np.concatenate(([0], inner, [count]))).tolist()
    for start, end in itertools.pairwise(bounds):
        yield spans.part(start, end)


def _renumbered(source: memoryview, spans: RecordSpans, timestamp_deltas: Longs) -> memoryview:
    """The records with these timestamp deltas, offset deltas 0 .. n-1 and attributes 0."""
    times, numbers = _zigzag(timestamp_deltas), _zigzag(np.arange(len(spans)))
    time_bytes, number_bytes = _varint_bytes(times), _varint_bytes(numbers)
    lengths = _zigzag(1 + time_bytes + number_bytes + spans.end - spans.tail)
    length_bytes = _varint_bytes(lengths)
    head_bytes = length_bytes + 1 + time_bytes + number_bytes
    ends = np.cumsum(head_bytes + spans.end - spans.tail)
    tails = ends - (spans.end - spans.tail)
    out = np.empty(int(ends[-1]), np.uint8)
    _copy_tails(source, spans, memoryview(out.data), tails)
    heads = tails - head_bytes
    _put_varints(out, heads, lengths, length_bytes)
    out[heads + length_bytes] = 0
    _put_varints(out, heads + length_bytes + 1, times, time_bytes)
    _put_varints(out, tails - number_bytes, numbers, number_bytes)
    return memoryview(out.data)


def _copy_tails(source: memoryview, spans: RecordSpans, out: memoryview, tails: Longs) -> None:
    """Neighbours that move by as much are copied at once, with what lies between them, which is overwritten then."""
    shifts = tails - spans.tail
    firsts = np.flatnonzero(np.diff(shifts, prepend=shifts[0] - 1))
    lasts = np.append(firsts[1:], len(spans)) - 1
    runs = zip(spans.tail[firsts].tolist(), spans.end[lasts].tolist(), tails[firsts].tolist(), strict=True)
    for start, end, at in runs:
        out[at : at + end - start] = source[start:end]


def _zigzag(values: Longs) -> Unsigned:
    return np.asarray((values << 1) ^ (values >> 63)).view(np.uint64)


def _varint_bytes(values: Unsigned) -> Longs:
    sizes = np.ones(len(values), np.int64)
    largest = int(values.max())
    for place in range(1, _MOST_VARINT_BYTES):
        if largest >> (7 * place) == 0:
            break
        sizes += values >= np.uint64(1 << (7 * place))
    return sizes


def _put_varints(out: npt.NDArray[np.uint8], at: Longs, values: Unsigned, sizes: Longs) -> None:
    least = int(sizes.min())
    for place in range(int(sizes.max())):
        rows = slice(None) if place < least else sizes > place
        group = (values[rows] >> np.uint64(7 * place)).astype(np.uint8) & 0x7F
        more = (sizes[rows] > place + 1).view(np.uint8) << 7
        out[at[rows] + place] = group | more
