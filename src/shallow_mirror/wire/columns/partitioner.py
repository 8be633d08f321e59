"""Pure: the partition of each record, as Java's default partitioner chooses it (org.apache.kafka.common.utils.Utils.murmur2)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shallow_mirror.wire.columns.record_columns import binary_buffers, byte_lengths
from shallow_mirror.wire.records.varints import Longs

Hashes = npt.NDArray[np.uint32]

_SEED, _M = 0x9747B28C, np.uint32(0x5BD1E995)
_R = np.uint32(24)
_POSITIVE = np.uint32(0x7FFFFFFF)
_WORD_BYTES = 4


def murmur2(keys: pa.BinaryArray) -> Hashes:
    """Return Java's hash of each key; of a null one that of no bytes.

    The loop is over the words of the longest key, not over rows.
    """
    starts, data = binary_buffers(keys)
    lengths = np.diff(starts)
    padded = np.concatenate((data, np.zeros(_WORD_BYTES, np.uint8)))
    words: Hashes = np.ndarray(len(data) + 1, "<u4", buffer=padded, strides=(1,))
    hashes = (np.uint32(_SEED) ^ lengths.astype(np.uint32)).astype(np.uint32)
    counts = lengths // _WORD_BYTES
    rows, begins = np.arange(len(lengths)), starts[:-1]
    least = int(counts.min(initial=0))
    for word in range(int(counts.max(initial=0))):
        if word >= least:
            rows = rows[counts[rows] > word]
        is_all = len(rows) == len(hashes)
        mixed = words[(begins if is_all else begins[rows]) + word * _WORD_BYTES] * _M
        mixed ^= mixed >> _R
        mixed *= _M
        if is_all:
            hashes *= _M
            hashes ^= mixed
        else:
            hashes[rows] = hashes[rows] * _M ^ mixed
    rest = lengths % _WORD_BYTES
    rows = np.flatnonzero(rest)
    # The rest of the last word, without the bytes behind the key.
    tail = words[begins[rows] + counts[rows] * _WORD_BYTES] & ((1 << 8 * rest[rows]) - 1).astype(np.uint32)
    hashes[rows] = (hashes[rows] ^ tail) * _M
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    return np.asarray(hashes ^ (hashes >> np.uint32(15)), np.uint32)


class Partitioner:
    """Chooses the partitions of the records of one topic, in the order in which they come.

    A key decides by its hash. Records without a key stay in one partition until `sticky_bytes` of them went there, then in the
    next one, beginning at `first`: batches become large, and the choice depends on nothing but the records.
    """

    def __init__(self, partition_count: int, *, sticky_bytes: int, first: int) -> None:
        self._partition_count = partition_count
        self._sticky_bytes = sticky_bytes
        self._first = first
        self._placed_bytes = 0

    def partitions(self, keys: pa.BinaryArray | None, value_bytes: Longs) -> Longs:
        """Return the partition of each record. `keys`: None if no record has one. `value_bytes`: sizes of the values."""
        if keys is None:
            return self._sticky(value_bytes)
        partitions = (murmur2(keys) & _POSITIVE).astype(np.int64) % self._partition_count
        if keys.null_count:
            rows = np.flatnonzero(byte_lengths(keys) < 0)
            partitions[rows] = self._sticky(value_bytes[rows])
        return np.asarray(partitions)

    def _sticky(self, value_bytes: Longs) -> Longs:
        ends = self._placed_bytes + np.cumsum(np.maximum(value_bytes, 1))
        self._placed_bytes = int(ends[-1]) if len(ends) else self._placed_bytes
        return np.asarray((self._first + (ends - 1) // self._sticky_bytes) % self._partition_count)
