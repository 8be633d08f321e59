"""Pure: where the records of an opened batch lie, as arrays: what a rewrite changes of them, and what it copies.

Only the lengths are followed one by one; everything else is read for many records at once. The same rules hold as for
records that are read one by one (`UnpackedBatch.records`), which also says what is wrong where one does not hold.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shallow_mirror.wire.records import UnpackedBatch, parse_record, read_varint

MOST_RECORDS = 1 << 16
"""In one part, which bounds memory: about 150 bytes a record while it is made."""

_FEW = 16
"""Fewer records than that cost less one by one than as arrays."""

_MOST_VARINT_BYTES = 10

Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Octets = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class RecordSpans:
    """Neighbouring records of one block, int64[n] each. A record is the bytes [start, end), without a gap to the next one.

    Behind its length, attributes and both deltas comes what no rewrite changes: [tail, end).
    """

    start: Longs
    tail: Longs
    end: Longs
    timestamp_delta: Longs
    offset_delta: Longs

    def __len__(self) -> int:
        return len(self.start)

    def part(self, first: int, behind_last: int) -> RecordSpans:
        """Records [first, behind_last)."""
        chosen = slice(first, behind_last)
        columns = (self.start, self.tail, self.end, self.timestamp_delta, self.offset_delta)
        return RecordSpans(*(column[chosen] for column in columns))


def find_spans(batch: UnpackedBatch) -> Iterator[RecordSpans]:
    """All records of the batch, MOST_RECORDS at a time. Raises CorruptBatch."""
    whole = batch.block.obj
    block = whole if isinstance(whole, bytes) and len(whole) == len(batch.block) else bytes(batch.block)
    raw = np.frombuffer(block, np.uint8)
    pos, found, before = 0, 0, -1
    while pos < len(block):
        starts, pos = _starts(block, pos)
        spans = _spans(batch, raw, starts, pos, before)
        found += len(starts)
        if spans is None or found > batch.header["records_count"]:
            raise _what_is_wrong(batch)
        before = int(spans.offset_delta[-1])
        yield spans
    if found != batch.header["records_count"]:
        raise _what_is_wrong(batch)


def _what_is_wrong(batch: UnpackedBatch) -> Exception:
    deque(batch.records(), maxlen=0)
    return batch.corrupt(0, "its records cannot be read")


def _starts(block: bytes, pos: int) -> tuple[Longs, int]:
    """Where records begin, from `pos` on, and where the last of them claims to end."""
    starts: list[int] = []
    append = starts.append
    behind = len(block)
    try:
        for _ in range(MOST_RECORDS):
            append(pos)
            byte = block[pos]
            if byte < 0x80:
                pos += 1 + (byte >> 1)
            elif (second := block[pos + 1]) < 0x80:
                pos += 2 + (second << 6 | (byte & 0x7F) >> 1)
            else:
                length, pos = read_varint(block, pos)
                pos += max(length, 0)
            if pos >= behind:
                break
    except (IndexError, ValueError):
        pos = behind + 1
    return np.array(starts, np.int64), min(pos, behind + 1)


def _spans(batch: UnpackedBatch, raw: Octets, start: Longs, behind_last: int, before: int) -> RecordSpans | None:
    """None where any rule does not hold. Positions are checked at the end only: reading stays within the block."""
    end = np.append(start[1:], behind_last)
    length, pos, ok = _varints(raw, start)
    ok &= (length >= 0) & (pos + length == end) & (end <= len(raw))
    timestamp_delta, pos, fine = _varints(raw, pos + 1)
    ok &= fine
    offset_delta, tail, fine = _varints(raw, pos)
    ok &= fine
    pos = tail
    for _ in ("key", "value"):
        length, pos, fine = _varints(raw, pos)
        ok &= fine & (length >= -1) & (length <= end - pos)
        pos = pos + np.clip(length, 0, len(raw))
    count, pos, fine = _varints(raw, pos)
    ok &= fine & (count >= 0) & (count <= end - pos) & ((count > 0) | (pos == end))
    ok &= np.diff(offset_delta, prepend=before) > 0
    ok &= offset_delta <= batch.header["last_offset_delta"]
    ok &= (batch.append_time_ms is not None) | _is_sum_in_range(batch.header["base_timestamp"], timestamp_delta)
    if not ok.all() or not _have_whole_headers(batch, raw, start, pos, end, count):
        return None
    return RecordSpans(start, tail, end, timestamp_delta, offset_delta)


def _have_whole_headers(batch: UnpackedBatch, raw: Octets, start: Longs, pos: Longs, end: Longs, count: Longs) -> bool:
    """Header by header for all records that have one more; few records are read one by one."""
    rows = np.flatnonzero(count)
    start, pos, end, left = start[rows], pos[rows], end[rows], count[rows]
    while len(left) > _FEW:
        for least in (0, -1):
            length, pos, fine = _varints(raw, pos)
            if not (fine & (length >= least) & (length <= end - pos)).all():
                return False
            pos = pos + np.maximum(length, 0)
        left = left - 1
        if (pos[left == 0] != end[left == 0]).any():
            return False
        more = left > 0
        start, pos, end, left = start[more], pos[more], end[more], left[more]
    try:
        return all(parse_record(batch.block, at)[0] == until for at, until in zip(start.tolist(), end.tolist(), strict=True))
    except (IndexError, ValueError):
        return False


def _is_sum_in_range(base: int, deltas: Longs) -> Bools:
    sums = np.int64(base) + deltas
    return np.asarray(((sums ^ np.int64(base)) & (sums ^ deltas)) >= 0, np.bool_)


def _varints(raw: Octets, pos: Longs) -> tuple[Longs, Longs, Bools]:
    """The zig-zag number at each position, where it ends, and whether it is one of at most 64 bits within the block."""
    last = len(raw) - 1
    ok = np.asarray(pos <= last, np.bool_)
    byte = raw[np.minimum(pos, last)]
    value, end = (byte & 0x7F).astype(np.uint64), pos + 1
    rows = np.flatnonzero(byte >= 0x80)
    for place in range(1, _MOST_VARINT_BYTES):
        if not len(rows):
            break
        at = end[rows]
        byte = raw[np.minimum(at, last)]
        ok[rows] &= at <= last
        value[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * place)
        end[rows] = at + 1
        if place == _MOST_VARINT_BYTES - 1:
            ok[rows] &= byte <= 1
        rows = rows[byte >= 0x80]
    signed = (value >> np.uint64(1)).view(np.int64) ^ -(value & np.uint64(1)).view(np.int64)
    return signed, end, ok
