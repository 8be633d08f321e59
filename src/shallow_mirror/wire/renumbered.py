"""Pure: the records of an opened batch once more, with offset deltas 0 .. n-1.

No field that is new takes more bytes than what was there. So it is written over the end of that, in one copy of the block,
and the bytes left over in front of it are taken out of the copy in the end, for all records at once.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from shallow_mirror.wire.record_spans import RecordSpans
from shallow_mirror.wire.varints import Longs, Octets, put_numbers, put_varints, varint_sizes

_BYTES_OF_A_SLICE = 256
"""To copy a slice takes as long as to look at that many bytes of a mask."""


def renumbered(block: memoryview, spans: RecordSpans, *, has_times: bool) -> memoryview:
    """The records of `spans` in `block`, their attributes 0, and their timestamp deltas, too, unless it `has_times` to keep."""
    first, behind = int(spans.start[0]), int(spans.end[-1])
    out = np.frombuffer(block, np.uint8)[first:behind].copy()
    start, attributes, time = spans.start - first, spans.attributes - first, spans.time - first
    number, tail = spans.number - first, spans.tail - first
    out[attributes] = 0
    numbers_left = tail - number - put_numbers(out, tail)
    left = numbers_left if has_times else numbers_left + (number - time - 1)
    rows = np.flatnonzero(left)
    if not has_times:
        out[number - 1] = 0
    if not len(rows):
        return memoryview(out.data)
    lengths_left = _overwrite(out, start[rows], attributes[rows], (spans.end - spans.attributes - left)[rows])
    over = [(number, numbers_left), (start[rows], lengths_left)]
    return _without(out, over if has_times else [*over, (time, number - time - 1)])


def _overwrite(out: Octets, start: Longs, end: Longs, values: Longs) -> Longs:
    """Puts each number at the end of its range; returns how many bytes of each range are left in front of it."""
    sizes = varint_sizes(values)
    put_varints(out, end, values, sizes)
    return np.asarray(end - start - sizes)


def _without(out: Octets, left_over: Iterable[tuple[Longs, Longs]]) -> memoryview:
    """`out` without those ranges: positions and bytes. Few gaps are closed in place, of many a mask is made."""
    gaps = np.concatenate(
        [start[count > place] + place for start, count in left_over for place in range(int(count.max(initial=0)))]
    )
    if len(gaps) * _BYTES_OF_A_SLICE > len(out):
        is_kept = np.ones(len(out), np.bool_)
        is_kept[gaps] = False
        return memoryview(out[is_kept].data)
    gaps.sort()
    whole, at = memoryview(out.data), int(gaps[0])
    for start, end in zip((gaps + 1).tolist(), [*gaps[1:].tolist(), len(out)], strict=True):
        whole[at : at + end - start] = whole[start:end]
        at += end - start
    return whole[:at]
