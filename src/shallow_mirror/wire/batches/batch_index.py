"""Pure: where the record batches of a fetched buffer lie, and their headers as arrays.

Only lengths and magic are read per batch; everything else is read for all batches at once.
"""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shallow_mirror.wire.batches.crc import verify_crc
from shallow_mirror.wire.batches.header import (
    BATCH_HEADER_BYTES,
    CONTROL_BIT,
    HEADER,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_POS,
    NATIVE_HEADER,
)

_OFFSET_AND_LENGTH = struct.Struct(">qi")
_HEADER_BYTES = np.dtype((np.void, BATCH_HEADER_BYTES))


class StopReason(enum.Enum):
    LEGACY_MAGIC = "record format older than magic 2"
    UNKNOWN_MAGIC = "unknown record format"
    BAD_LENGTH = "impossible batch length"


@dataclass(frozen=True, slots=True)
class IndexStop:
    """Why indexing ended before the end of the buffer. A partial last batch is normal, and not a stop."""

    pos: int
    base_offset: int
    reason: StopReason
    detail: str


@dataclass(frozen=True, slots=True)
class BatchIndex:
    """The batches of a buffer. `pos` and `size_bytes` (header included) are int64[n]; `headers` is a native-endian copy."""

    pos: npt.NDArray[np.int64]
    size_bytes: npt.NDArray[np.int64]
    headers: npt.NDArray[np.void]
    stop: IndexStop | None
    consumed_bytes: int

    def __len__(self) -> int:
        return len(self.pos)

    @property
    def last_offset(self) -> npt.NDArray[np.int64]:
        return np.asarray(self.headers["base_offset"] + self.headers["last_offset_delta"], np.int64)

    def adjacent_runs(self, chosen: npt.NDArray[np.bool_]) -> list[tuple[int, int]]:
        """Return [first, end) of the batches in `chosen` (bool[n]) whose offsets follow each other without a hole."""
        follows = chosen[1:] & chosen[:-1] & (self.headers["base_offset"][1:] == self.last_offset[:-1] + 1)
        starts = np.flatnonzero(chosen & ~np.append(False, follows))
        ends = np.flatnonzero(chosen & ~np.append(follows, False)) + 1
        return list(zip(starts.tolist(), ends.tolist(), strict=True))


def index_batches(records: memoryview) -> BatchIndex:
    """Index the whole batches of `records`. Never raises on hostile bytes: `stop` says at which position it stopped, and why."""
    size = len(records)
    starts: list[int] = []
    pos, stop = 0, None
    while pos + MAGIC_POS < size:
        base_offset, length = _OFFSET_AND_LENGTH.unpack_from(records, pos)
        magic = records[pos + MAGIC_POS]
        if magic != MAGIC:
            reason = StopReason.LEGACY_MAGIC if magic < MAGIC else StopReason.UNKNOWN_MAGIC
            stop = IndexStop(pos, base_offset, reason, f"magic {magic}")
            break
        if length < BATCH_HEADER_BYTES - LOG_OVERHEAD or base_offset < 0:
            stop = IndexStop(pos, base_offset, StopReason.BAD_LENGTH, f"base offset {base_offset}, batch length {length}")
            break
        if pos + LOG_OVERHEAD + length > size:
            break
        starts.append(pos)
        pos += LOG_OVERHEAD + length
    positions = np.array(starts, dtype=np.int64)
    headers = headers_anywhere(records)[positions].view(HEADER).astype(NATIVE_HEADER) if starts else np.empty(0, NATIVE_HEADER)
    return BatchIndex(positions, headers["batch_length"].astype(np.int64) + LOG_OVERHEAD, headers, stop, pos)


def headers_anywhere(records: memoryview) -> npt.NDArray[np.void]:
    """Return the header bytes at every position of `records` that has room: a view, writable if `records` is."""
    return np.ndarray(max(len(records) - BATCH_HEADER_BYTES + 1, 0), _HEADER_BYTES, records, strides=(1,))


def has_an_end(header: Any) -> bool:
    """Return whether count and last offset delta agree, so that they can be trusted although something is damaged."""
    return bool(int(header["records_count"]) == int(header["last_offset_delta"]) + 1 > 0)


def can_be_quarantined(index: BatchIndex, i: int, batch: memoryview) -> bool:
    """Return whether batch `i` of `index` may be quarantined.

    `batch`: all its bytes, before or after it was restamped: a patched checksum fails if the one before did.
    """
    header = index.headers[i]
    delta = int(header["last_offset_delta"])
    # Never a control batch: without its marker, the batches behind it may be taken for aborted or committed wrongly.
    if delta < 0 or header["attributes"] & CONTROL_BIT:
        return False
    is_followed = i + 1 < len(index) and int(index.headers["base_offset"][i + 1]) == int(header["base_offset"]) + delta + 1
    return has_an_end(header) or is_followed or verify_crc(batch)
