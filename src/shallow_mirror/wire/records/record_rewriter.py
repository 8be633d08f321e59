"""Pure: records of opened batches with other deltas: their heads are rewritten, the rest is copied.

The new heads of all records are put in front of their old bytes. That, cut at every head and tail, is an array of byte
strings; Arrow takes new heads and old tails out of it in turn, in native code. Per record there is no Python object.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from shallow_mirror.wire.records.record_layout import RecordSpans
from shallow_mirror.wire.records.varints import Longs, Octets, put_varints, varint_sizes

_ATTRIBUTES_BYTES = 1
_OFFSETS, _BYTES = 1, 2
"""Which buffers of an array of byte strings."""


def rewritten(
    block: memoryview | bytes, spans: RecordSpans, *, timestamp_delta: Longs, offset_delta: Longs
) -> tuple[memoryview, Longs]:
    """Return the records of `spans` with those deltas and attributes 0; and the begin of each, with the end of the last one."""
    heads, head_starts = _heads(spans, timestamp_delta, offset_delta)
    first, count = int(spans.start[0]), len(spans)
    old = np.frombuffer(block, np.uint8)[first : int(spans.end[-1])]
    bounds = np.empty(3 * count + 1, np.int64)
    bounds[:count] = head_starts
    bounds[count:-1:2] = spans.start
    bounds[count + 1 :: 2] = spans.tail
    bounds[-1] = spans.end[-1]
    bounds[count:] += len(heads) - first
    together = np.concatenate((heads, old))
    strings = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(together)]
    )
    order = np.empty(2 * count, np.int64)
    order[::2] = np.arange(count)
    order[1::2] = np.arange(count + 1, 3 * count, 2)
    made = strings.take(pa.array(order)).buffers()
    return memoryview(made[_BYTES]), np.frombuffer(made[_OFFSETS], np.int64, 2 * count + 1)[::2]


def _heads(spans: RecordSpans, timestamp_delta: Longs, offset_delta: Longs) -> tuple[Octets, Longs]:
    """Return length, attributes and deltas of all records, one behind the other, and the begin of each."""
    time_sizes, number_sizes = varint_sizes(timestamp_delta), varint_sizes(offset_delta)
    lengths = _ATTRIBUTES_BYTES + time_sizes + number_sizes + spans.end - spans.tail
    length_sizes = varint_sizes(lengths)
    sizes = length_sizes + _ATTRIBUTES_BYTES + time_sizes + number_sizes
    ends = np.cumsum(sizes)
    heads = np.zeros(int(ends[-1]), np.uint8)
    put_varints(heads, ends, offset_delta, number_sizes)
    put_varints(heads, ends - number_sizes, timestamp_delta, time_sizes)
    put_varints(heads, ends - sizes + length_sizes, lengths, length_sizes)
    return heads, ends - sizes
