"""Pure: zig-zag numbers of many records at once: read where they lie, and written over longer ones."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shallow_mirror.wire.records.unpacked_batch import read_varint

_MOST_VARINT_BYTES = 10

Longs = npt.NDArray[np.int64]
Octets = npt.NDArray[np.uint8]
Unsigned = npt.NDArray[np.uint64]
Words = npt.NDArray[np.uint32]

_ENDS, _GROUPS = np.uint32(0x80808080), np.uint32(0x7F7F7F7F)
_EVEN_GROUPS, _ODD_GROUPS = np.uint32(0x007F007F), np.uint32(0x7F007F00)
_LOW_PAIR, _HIGH_PAIR = np.uint32(0x3FFF), np.uint32(0x3FFF0000)
_ONE, _TWO = np.uint32(1), np.uint32(2)
_BYTES_OF_WORD = 4
_MORE = 0x80
_FEW = 24
"""Fewer numbers than that cost less one by one than as arrays."""


class VarintReader:
    """Reads numbers of one block, which is not copied. Positions may be anywhere in it, and just behind its end."""

    def __init__(self, block: bytes) -> None:
        self.block, self.size = block, len(block)
        self._raw = np.frombuffer(block, np.uint8)
        self._whole_words = max(0, self.size - _BYTES_OF_WORD + 1)
        self._words: Words = np.ndarray(self._whole_words, "<u4", buffer=block, strides=(1,))

    def read(self, pos: Longs) -> tuple[Longs, Longs] | None:
        """Return the number at each position and its end; None if any has more than 64 bits or leaves the block.

        `pos` is not empty.
        """
        if len(pos) < _FEW:
            return self._read_one_by_one(pos)
        if int(pos.max()) >= self.size:
            return None
        first = self._raw[pos]
        if first.max() < _MORE:
            small = first.view(np.int8)
            return ((small >> 1) ^ -(small & 1)).astype(np.int64), pos + 1
        words = self._words_at(pos)
        ends = ~words & _ENDS
        if not ends.all():
            return self._read_long(pos)
        # All bits up to the first byte without a continuation bit, that byte included.
        within = ends ^ (ends - _ONE)
        end = pos + 1 + (within > 0xFF) + (within > 0xFFFF) + (within > 0xFFFFFF)
        words &= within & _GROUPS
        words = (words & _EVEN_GROUPS) | ((words & _ODD_GROUPS) >> _ONE)
        words = (words & _LOW_PAIR) | ((words & _HIGH_PAIR) >> _TWO)
        return ((words >> _ONE) ^ -(words & _ONE)).view(np.int32).astype(np.int64), end

    def _words_at(self, pos: Longs) -> Words:
        """Return the four bytes from each position; missing ones behind the block read as a number that does not end."""
        late = np.flatnonzero(pos >= self._whole_words)
        if not len(late):
            return self._words[pos]
        words = np.empty(len(pos), np.uint32)
        early = np.flatnonzero(pos < self._whole_words)
        words[early] = self._words[pos[early]]
        for row, position in zip(late.tolist(), pos[late].tolist(), strict=True):
            words[row] = int.from_bytes(self.block[position : position + _BYTES_OF_WORD].ljust(_BYTES_OF_WORD, b"\xff"), "little")
        return words

    def _read_one_by_one(self, pos: Longs) -> tuple[Longs, Longs] | None:
        try:
            pairs = [read_varint(self.block, position) for position in pos.tolist()]
        except (IndexError, ValueError):
            return None
        columns = np.array(pairs, np.int64)
        return columns[:, 0], columns[:, 1]

    def _read_long(self, pos: Longs) -> tuple[Longs, Longs] | None:
        """Read byte by byte those that have one more."""
        value, end = np.zeros(len(pos), np.uint64), pos.copy()
        rows = np.arange(len(pos))
        for i in range(_MOST_VARINT_BYTES):
            if int(end[rows].max()) >= self.size:
                return None
            byte = self._raw[end[rows]]
            value[rows] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * i)
            end[rows] += 1
            if i == _MOST_VARINT_BYTES - 1 and byte.max() > 1:
                return None
            rows = rows[byte >= 0x80]
            if not len(rows):
                break
        return (value >> np.uint64(1)).view(np.int64) ^ -(value & np.uint64(1)).view(np.int64), end


def varint_sizes(values: Longs) -> Longs:
    """Return how many bytes each number takes in its shortest form."""
    folded = _zigzag(values)
    sizes = np.ones(len(values), np.int64)
    largest = int(folded.max(initial=0))
    for i in range(1, _MOST_VARINT_BYTES):
        if largest >> (7 * i) == 0:
            break
        sizes += folded >= np.uint64(1 << (7 * i))
    return sizes


def put_varints(out: Octets, ends: Longs, values: Longs, sizes: Longs) -> None:
    """Write each number in front of its end; `sizes` are those of `varint_sizes`."""
    folded, starts = _zigzag(values), ends - sizes
    least, most = int(sizes.min(initial=_MOST_VARINT_BYTES)), int(sizes.max(initial=0))
    for i in range(most):
        rows = slice(None) if i < least else np.flatnonzero(sizes > i)
        group = (folded[rows] >> np.uint64(7 * i)).astype(np.uint8)
        if i < most - 1:
            group &= 0x7F
            group |= (sizes[rows] > i + 1).view(np.uint8) << 7
        out[starts[rows] + i] = group


def _zigzag(values: Longs) -> Unsigned:
    return np.asarray((values << 1) ^ (values >> 63)).view(np.uint64)
