"""Pure: control batches (ControlRecordType, EndTxnMarker): the transaction markers among them."""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

from shallow_mirror.wire.batches.header import BATCH_HEADER_BYTES


class MarkerType(enum.Enum):
    ABORT = 0
    COMMIT = 1
    OTHER = -1


@dataclass(frozen=True, slots=True)
class Marker:
    """The record of a control batch. `coordinator_epoch` is None if it is no transaction marker."""

    type: MarkerType
    coordinator_epoch: int | None


_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


def parse_marker(batch: memoryview) -> Marker:
    """Parse the one record of a control batch. Raises ValueError on bytes that cannot be one."""
    pos = BATCH_HEADER_BYTES
    _, pos = _varint(batch, pos)
    pos += 1
    _, pos = _varint(batch, pos)
    _, pos = _varint(batch, pos)
    key, pos = _field(batch, pos)
    value, _ = _field(batch, pos)
    if len(key) < _KEY.size:
        raise ValueError(f"control record key of {len(key)} bytes")
    _, number = _KEY.unpack_from(key)
    if number not in (MarkerType.ABORT.value, MarkerType.COMMIT.value):
        return Marker(MarkerType.OTHER, None)
    if len(value) < _VALUE.size:
        raise ValueError(f"transaction marker value of {len(value)} bytes")
    return Marker(MarkerType(number), _VALUE.unpack_from(value)[1])


def _field(batch: memoryview, pos: int) -> tuple[memoryview, int]:
    length, pos = _varint(batch, pos)
    if length < 0 or pos + length > len(batch):
        raise ValueError(f"control record field of {length} bytes at byte {pos} of {len(batch)}")
    return batch[pos : pos + length], pos + length


def _varint(batch: memoryview, pos: int) -> tuple[int, int]:
    raw = shift = 0
    while True:
        if pos >= len(batch) or shift > 63:
            raise ValueError(f"varint runs out of the batch at byte {pos}")
        byte = batch[pos]
        raw |= (byte & 0x7F) << shift
        pos += 1
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), pos
        shift += 7
