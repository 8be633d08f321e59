"""Pure: new record batches with the records of batches that cannot be copied as they are, or that are coalesced.

Keys, values, headers and timestamps are copied as bytes. New are the offset deltas, which have to be 0 .. n-1, and the base
of the timestamp deltas; of a batch that the source's broker has stamped also the timestamps. The result is a batch like any
other: `restamp` gives it its producer.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shallow_mirror.errors import BatchRefusedError, CorruptBatchError
from shallow_mirror.types import BatchLimits, LogAppendTimePolicy, TopicPartition
from shallow_mirror.wire.batches.batch_builder import build_batch
from shallow_mirror.wire.batches.crc import verify_crc
from shallow_mirror.wire.batches.header import CODEC_MASK, LOG_APPEND_TIME_BIT, NATIVE_HEADER, Codec
from shallow_mirror.wire.records.compression import compress
from shallow_mirror.wire.records.record_layout import RecordSpans, find_joined_spans, find_spans
from shallow_mirror.wire.records.record_rewriter import rewritten
from shallow_mirror.wire.records.unpacked_batch import unpack_batch
from shallow_mirror.wire.records.varints import Longs

_FARTHEST_TIME = 1 << 61
"""The limit of base timestamps and of deltas to them: their sums then fit into 64 bits."""


@dataclass(frozen=True, slots=True, eq=False)
class Rebuilt:
    """The result for one source batch, or a run of them: `batches` in order, perhaps none, and `counts`, the records of each.

    `offsets`: the source offset of every record, int64.
    """

    batches: tuple[bytes, ...]
    counts: tuple[int, ...]
    offsets: Longs


def rebuild(
    batch: memoryview,
    topic_partition: TopicPartition,
    *,
    position: int,
    limits: BatchLimits,
    max_opened_bytes: int,
    cut: int | None = None,
) -> Rebuilt:
    """Return the records of `batch` from offset `position` on, in its own codec, in batches within the target's size limit.

    `cut`: only those below this offset.

    Raises CorruptBatchError (also for a wrong checksum), BatchRefusedError for a batch that no rebuild can save, ConfigError.
    """
    if not verify_crc(batch):
        base_offset = int.from_bytes(batch[:8], "big", signed=True)
        raise CorruptBatchError(topic_partition, base_offset, 0, "its CRC does not match its payload")
    opened = unpack_batch(batch, topic_partition, max_bytes=max_opened_bytes)
    base_offset = opened.header["base_offset"]
    is_stamped, (base_timestamp,) = times_of(np.array([tuple(opened.header.values())], NATIVE_HEADER), limits)
    batches: list[bytes] = []
    counts: list[int] = []
    offsets = [np.empty(0, np.int64)]
    for spans in find_spans(opened):
        end = len(spans) if cut is None else int(np.searchsorted(spans.offset_delta, cut - base_offset))
        kept = spans.part(min(int(np.searchsorted(spans.offset_delta, position - base_offset)), end), end)
        if not len(kept):
            continue
        offsets.append(base_offset + kept.offset_delta)
        share = int(kept.end[-1] - kept.start[0]) / len(opened.block)
        run = _Run(0, len(kept), opened.codec, int(base_timestamp), math.ceil(len(batch) * share))
        times = kept.timestamp_delta * ~is_stamped
        for part, new_batch in _Writer(opened.block, kept, times, [run], limits.max_message_bytes).write():
            if len(new_batch) > limits.max_message_bytes:
                raise BatchRefusedError(
                    topic_partition,
                    base_offset,
                    f"its record at offset {offsets[-1][part.first]} alone makes a batch of {len(new_batch)} bytes, larger than "
                    f"max.message.bytes={limits.max_message_bytes} of the target topic",
                    f"Set its max.message.bytes to {len(new_batch)} or more and start again",
                )
            batches.append(new_batch)
            counts.append(part.behind_last - part.first)
    return Rebuilt(tuple(batches), tuple(counts), np.concatenate(offsets))


def rebuild_together(
    headers: npt.NDArray[np.void], blocks: Sequence[memoryview], run_lengths: Sequence[int], limits: BatchLimits
) -> list[Rebuilt | None]:
    """Rebuild whole batches with those opened blocks. The next `run_lengths[k]` of them, of one codec, become one.

    None for each run that `rebuild` would refuse; for all of them if records of some batch cannot be read, or the times of
    coalesced batches are too far apart.
    """
    joined = find_joined_spans(headers, blocks)
    if joined is None:
        return [None] * len(run_lengths)
    block, spans = joined
    is_stamped, bases = times_of(headers, limits)
    lengths, counts = np.array(run_lengths, np.int64), headers["records_count"].astype(np.int64)
    firsts = np.cumsum(lengths) - lengths
    times = spans.timestamp_delta * np.repeat(~is_stamped, counts)
    shifts = bases - np.repeat(bases[firsts], lengths)
    if shifts.any():
        if not (_are_near(bases) and _are_near(times)):
            return [None] * len(run_lengths)
        times = times + np.repeat(shifts, counts)
    runs = _runs_of(headers, firsts, bases)
    written: list[list[tuple[_Part, bytes]]] = [[] for _ in runs]
    for part, batch in _Writer(block, spans, times, runs, limits.max_message_bytes).write():
        written[part.run].append((part, batch))
    offsets = spans.offset_delta + np.repeat(headers["base_offset"].astype(np.int64), counts)
    return [_rebuilt(parts, offsets, limits.max_message_bytes) for parts in written]


def _runs_of(headers: npt.NDArray[np.void], firsts: Longs, bases: Longs) -> list[_Run]:
    """Return the runs. `firsts`: which batches begin one. A coalesced batch takes less than the limit, so its size is 0."""
    ends = np.cumsum(np.add.reduceat(headers["records_count"].astype(np.int64), firsts)).tolist()
    is_one = np.diff(firsts, append=len(headers)) == 1
    columns = (
        (headers["attributes"][firsts] & CODEC_MASK).tolist(),
        bases[firsts].tolist(),
        np.where(is_one, headers["batch_length"][firsts], 0).tolist(),
    )
    spans = itertools.pairwise([0, *ends])
    return [_Run(*span, Codec(codec), base, size) for span, codec, base, size in zip(spans, *columns, strict=True)]


def _rebuilt(written: Sequence[tuple[_Part, bytes]], offsets: Longs, max_bytes: int) -> Rebuilt | None:
    if any(len(batch) > max_bytes for _, batch in written):
        return None
    counts = tuple(part.behind_last - part.first for part, _ in written)
    return Rebuilt(tuple(batch for _, batch in written), counts, offsets[written[0][0].first : written[-1][0].behind_last])


def times_of(headers: npt.NDArray[np.void], limits: BatchLimits) -> tuple[npt.NDArray[np.bool_], Longs]:
    """Return for each batch whether all its records get its append time, and the base of their timestamp deltas."""
    is_stamped = (headers["attributes"] & LOG_APPEND_TIME_BIT != 0) & (limits.log_append_time is LogAppendTimePolicy.KEEP)
    return is_stamped, np.where(is_stamped, headers["max_timestamp"], headers["base_timestamp"]).astype(np.int64)


def _are_near(times: Longs) -> bool:
    return bool(times.min() > -_FARTHEST_TIME and times.max() < _FARTHEST_TIME)


class _Run(NamedTuple):
    """Records [first, behind_last) that become one batch. `source_bytes`, their size in one, tells if that may be too large."""

    first: int
    behind_last: int
    codec: Codec
    base_timestamp: int
    source_bytes: int


class _Part(NamedTuple):
    """Records [first, behind_last), all of one run or some: one batch."""

    run: int
    first: int
    behind_last: int


class _Writer:
    """Writes batches of all runs at once. `times`: of each record, since the base timestamp of its run."""

    def __init__(self, block: memoryview | bytes, spans: RecordSpans, times: Longs, runs: Sequence[_Run], max_bytes: int) -> None:
        self._block = block
        self._spans = spans
        self._times = times
        self._runs = runs
        self._max_bytes = max_bytes

    def write(self) -> Iterator[tuple[_Part, bytes]]:
        """Yield batches in order. A batch above the limit holds one record."""
        parts: list[_Part] = []
        for number, run in enumerate(self._runs):
            parts += self._cut(_Part(number, run.first, run.behind_last), math.ceil(run.source_bytes / self._max_bytes))
        return self._cut_to_fit(parts)

    def _cut_to_fit(self, parts: Sequence[_Part]) -> Iterator[tuple[_Part, bytes]]:
        for part, batch in zip(parts, self._batches(parts), strict=True):
            if len(batch) <= self._max_bytes or part.behind_last - part.first == 1:
                yield part, batch
            else:
                yield from self._cut_to_fit(self._cut(part, max(2, math.ceil(len(batch) / self._max_bytes))))

    def _batches(self, parts: Sequence[_Part]) -> Iterator[bytes]:
        """Yield the batches of consecutive parts: rewritten together, compressed one by one."""
        begin, end = parts[0].first, parts[-1].behind_last
        firsts = np.array([part.first for part in parts], np.int64) - begin
        counts = np.diff(firsts, append=end - begin)
        times, numbers = self._times[begin:end], np.arange(end - begin) - np.repeat(firsts, counts)
        records, starts = rewritten(self._block, self._spans.part(begin, end), timestamp_delta=times, offset_delta=numbers)
        bounds = [*starts[firsts].tolist(), len(records)]
        bases = np.array([self._runs[part.run].base_timestamp for part in parts], np.int64)
        newest = (bases + np.maximum.reduceat(times, firsts)).tolist()
        for part, count, latest, (start, behind) in zip(parts, counts.tolist(), newest, itertools.pairwise(bounds), strict=True):
            run = self._runs[part.run]
            yield build_batch(
                compress(records[start:behind], run.codec),
                attributes=run.codec,
                base_timestamp=run.base_timestamp,
                max_timestamp=latest,
                records_count=count,
                last_offset_delta=count - 1,
            )

    def _cut(self, whole: _Part, parts: int) -> list[_Part]:
        """Cut into about `parts` parts of similar size: at least two if `parts` is, and there are two records."""
        if parts <= 1:
            return [whole]
        spans, count = self._spans.part(whole.first, whole.behind_last), whole.behind_last - whole.first
        first = int(spans.start[0])
        cuts = first + np.arange(1, parts) * (int(spans.end[-1]) - first) // parts
        inner = np.clip(np.searchsorted(spans.end, cuts), min(1, count - 1), count - 1)
        bounds = (whole.first + np.unique(np.concatenate(([0], inner, [count])))).tolist()
        return [_Part(whole.run, start, end) for start, end in itertools.pairwise(bounds)]
