"""Pure: a new record batch of magic 2 around a payload, complete with its checksum, and still without a producer."""

from __future__ import annotations

import struct

from shallow_mirror.wire.batches.crc import crc32c
from shallow_mirror.wire.batches.header import BATCH_HEADER_BYTES, LOG_OVERHEAD, MAGIC, NO_PRODUCER_ID

_IN_FRONT_OF_CRC = struct.Struct(">qiib")
_CRC = struct.Struct(">I")
_COVERED = struct.Struct(">hiqqqhii")
_NO_EPOCH = _NO_SEQUENCE = -1


def build_batch(
    payload: bytes | memoryview,
    *,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    records_count: int,
    last_offset_delta: int,
    base_offset: int = 0,
) -> bytes:
    """Return a whole batch. `payload`: the records, compressed as `attributes` say."""
    covered = _COVERED.pack(
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        NO_PRODUCER_ID,
        _NO_EPOCH,
        _NO_SEQUENCE,
        records_count,
    )
    length = BATCH_HEADER_BYTES - LOG_OVERHEAD + len(payload)
    in_front = _IN_FRONT_OF_CRC.pack(base_offset, length, _NO_EPOCH, MAGIC)
    return b"".join((in_front, _CRC.pack(crc32c(payload, crc32c(covered))), covered, payload))
