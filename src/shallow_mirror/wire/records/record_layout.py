"""Pure: the layout of the records of opened batches, as arrays: what a rewrite changes of them, and what it copies.

Only the lengths are followed one by one; everything else is read for many records at once. The same rules hold as for
records that are read one by one (`UnpackedBatch.records`), which names the error where a rule does not hold.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shallow_mirror.wire.batches.header import LOG_APPEND_TIME_BIT, NATIVE_HEADER
from shallow_mirror.wire.records.unpacked_batch import MAX_LONG, MIN_LONG, UnpackedBatch, parse_record, read_varint
from shallow_mirror.wire.records.varints import Longs, VarintReader

MOST_RECORDS = 1 << 16
"""Records in one part, which bounds memory: about 200 bytes per record."""

_FEW = 16
"""Fewer records than that cost less one by one than as arrays."""


_STEPS = [1 + (byte >> 1) if byte < 0x80 else 2 + ((byte & 0x7F) >> 1) for byte in range(256)]
"""From one start to the next by the first byte of the length; the second one, if there is one, adds its share."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordSpans:
    """Neighbouring records of one block, int64[n] each. A record is the bytes [start, end), without a gap to the next one.

    [start, attributes) is its length, [time, number) and [number, tail) its timestamp and offset deltas. No rewrite changes
    the rest: [tail, end).
    """

    start: Longs
    attributes: Longs
    time: Longs
    number: Longs
    tail: Longs
    end: Longs
    timestamp_delta: Longs
    offset_delta: Longs

    def __len__(self) -> int:
        return len(self.start)

    def part(self, first: int, behind_last: int) -> RecordSpans:
        """Return records [first, behind_last)."""
        return RecordSpans(*(getattr(self, column)[first:behind_last] for column in self.__slots__))


def find_spans(batch: UnpackedBatch) -> Iterator[RecordSpans]:
    """Yield the layout of all records of a batch, MOST_RECORDS at a time. Raises CorruptBatchError."""
    block = _as_bytes(batch.block)
    reader = VarintReader(block)
    bounds = _Bounds.of(np.array([tuple(batch.header.values())], NATIVE_HEADER))
    pos, count, before = 0, 0, -1
    while pos < len(block):
        starts, pos = _starts(block, pos)
        spans = _spans(reader, starts, pos, bounds, before)
        count += len(starts)
        if spans is None or count > batch.header["records_count"]:
            raise _error_of(batch)
        before = int(spans.offset_delta[-1])
        yield spans
    if count != batch.header["records_count"]:
        raise _error_of(batch)


def find_joined_spans(headers: npt.NDArray[np.void], blocks: Sequence[memoryview]) -> tuple[bytes, RecordSpans] | None:
    """Return the blocks of whole batches as one, and all their records: of batch `i` the next `records_count[i]`.

    None if `find_spans` would raise for one of them, or if there are more than MOST_RECORDS.
    """
    counts, sizes = headers["records_count"].astype(np.int64), np.array([len(block) for block in blocks], np.int64)
    if counts.min() < 1 or not sizes.all() or counts.sum() > MOST_RECORDS:
        return None
    joined, bounds = b"".join(map(_as_bytes, blocks)), _Bounds.of(headers)
    reader, begins = VarintReader(joined), np.cumsum(sizes) - sizes
    starts, behind_last = _starts(joined, 0)
    if len(starts) != counts.sum() or (starts[bounds.first] != begins).any():
        return None
    spans = _spans(reader, starts, behind_last, bounds, -1)
    return None if spans is None else (joined, spans)


def _as_bytes(block: memoryview) -> bytes:
    """Return a block as bytes, not copied if it is the whole of a bytes object."""
    whole = block.obj
    return whole if isinstance(whole, bytes) and len(whole) == len(block) else bytes(block)


class _Bounds(NamedTuple):
    """The bounds of the headers, for each batch: its first record, its last offset delta, its least and most timestamp delta."""

    first: Longs
    last_offset_delta: Longs
    least_time: Longs
    most_time: Longs

    @classmethod
    def of(cls, headers: npt.NDArray[np.void]) -> _Bounds:
        counts, base = headers["records_count"].astype(np.int64), headers["base_timestamp"].astype(np.int64)
        is_any_time = (headers["attributes"] & LOG_APPEND_TIME_BIT) != 0
        return cls(
            np.cumsum(counts) - counts,
            headers["last_offset_delta"].astype(np.int64),
            np.where(is_any_time | (base >= 0), MIN_LONG, MIN_LONG - np.minimum(base, 0)),
            np.where(is_any_time | (base <= 0), MAX_LONG, MAX_LONG - np.maximum(base, 0)),
        )


def _error_of(batch: UnpackedBatch) -> Exception:
    deque(batch.records(), maxlen=0)
    return batch.corrupt(0, "its records cannot be read")


def _starts(block: bytes, pos: int) -> tuple[Longs, int]:
    """Return the begin of each record, from `pos` on, and the claimed end of the last one, at most just behind the block."""
    starts = np.fromiter(_each_start(block, pos), np.int64)
    try:
        length, pos = read_varint(block, int(starts[-1]))
    except (IndexError, ValueError):
        return starts, len(block) + 1
    return starts, min(pos + max(length, 0), len(block) + 1)


def _each_start(block: bytes, pos: int) -> Iterator[int]:
    """Yield at most MOST_RECORDS starts. The one loop over records: it takes longer than all other steps."""
    steps = _STEPS
    try:
        for _ in itertools.repeat(None, MOST_RECORDS):
            byte = block[pos]
            yield pos
            if byte < 0x80:
                pos += steps[byte]
            elif (second := block[pos + 1]) < 0x80:
                pos += steps[byte] + (second << 6)
            else:
                length, pos = read_varint(block, pos)
                pos += max(length, 0)
    except (IndexError, ValueError):
        return


def _spans(reader: VarintReader, start: Longs, behind_last: int, bounds: _Bounds, before: int) -> RecordSpans | None:
    """Return the layout; None if any rule does not hold."""
    # What was read is checked before it is used as a position: reading stays within the block.
    end = np.append(start[1:], behind_last)
    if behind_last > reader.size:
        return None
    lengths = reader.read(start)
    if lengths is None or (lengths[0] <= 0).any() or (lengths[0] != end - lengths[1]).any():
        return None
    times = reader.read(lengths[1] + 1)
    numbers = None if times is None else reader.read(times[1])
    if times is None or numbers is None:
        return None
    spans = RecordSpans(start, lengths[1], lengths[1] + 1, times[1], numbers[1], end, times[0], numbers[0])
    return spans if _have_possible_deltas(spans, bounds, before) and _have_whole_fields(reader, spans) else None


def _have_possible_deltas(spans: RecordSpans, bounds: _Bounds, before: int) -> bool:
    """Return whether offsets rise within each batch, from above `before` to its last at most, and times have 64 bits."""
    numbers, times, first = spans.offset_delta, spans.timestamp_delta, bounds.first
    is_rising = numbers[1:] > numbers[:-1]
    is_rising[first[1:] - 1] = True
    last = np.append(first[1:], len(numbers)) - 1
    if not is_rising.all() or (numbers[first] <= before).any() or (numbers[last] > bounds.last_offset_delta).any():
        return False
    is_early = np.minimum.reduceat(times, first) < bounds.least_time
    return not (is_early | (np.maximum.reduceat(times, first) > bounds.most_time)).any()


def _have_whole_fields(reader: VarintReader, spans: RecordSpans) -> bool:
    """Return whether key, value and headers of each record end with it."""
    pos: Longs | None = spans.tail
    for _ in ("key", "value"):
        pos = None if pos is None else _field_ends(reader, pos, spans.end, -1)
    counts = None if pos is None else reader.read(pos)
    if counts is None:
        return False
    count, pos = counts
    if (count < 0).any() or (count > spans.end - pos).any() or (pos[count == 0] != spans.end[count == 0]).any():
        return False
    return not count.any() or _have_whole_headers(reader, spans, pos, count)


def _field_ends(reader: VarintReader, pos: Longs, end: Longs, least: int) -> Longs | None:
    """Return the end of the field at each position; None if one is shorter than `least` or exceeds its record."""
    lengths = reader.read(pos)
    if lengths is None or (lengths[0] < least).any():
        return None
    behind = lengths[1] + lengths[0].clip(0, reader.size)
    return None if (behind > end).any() else behind


def _have_whole_headers(reader: VarintReader, spans: RecordSpans, pos: Longs, count: Longs) -> bool:
    """Check header by header for all records that have one more; few records are parsed one by one."""
    rows = np.flatnonzero(count)
    start, pos, end, left = spans.start[rows], pos[rows], spans.end[rows], count[rows]
    while len(left) > _FEW:
        for least in (0, -1):
            behind = _field_ends(reader, pos, end, least)
            if behind is None:
                return False
            pos = behind
        left = left - 1
        if (pos[left == 0] != end[left == 0]).any():
            return False
        more = left > 0
        start, pos, end, left = start[more], pos[more], end[more], left[more]
    block = memoryview(reader.block)
    try:
        return all(
            parse_record(block, position)[0] == record_end
            for position, record_end in zip(start.tolist(), end.tolist(), strict=True)
        )
    except (IndexError, ValueError):
        return False
