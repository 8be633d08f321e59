"""Pure: a new record batch of magic 2 around a payload, complete with its checksum."""

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
    """Return a whole batch, still without a producer. `payload`: the records, compressed as `attributes` say."""
    header = build_header(
        payload,
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        records_count=records_count,
        last_offset_delta=last_offset_delta,
        base_offset=base_offset,
    )
    return header + payload


def build_header(
    payload: bytes | memoryview,
    *,
    attributes: int,
    base_timestamp: int,
    max_timestamp: int,
    records_count: int,
    last_offset_delta: int,
    base_offset: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = _NO_EPOCH,
    base_sequence: int = _NO_SEQUENCE,
) -> bytes:
    """Return the header of the batch that consists of it and `payload`."""
    covered = _COVERED.pack(
        attributes,
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        records_count,
    )
    length = BATCH_HEADER_BYTES - LOG_OVERHEAD + len(payload)
    in_front = _IN_FRONT_OF_CRC.pack(base_offset, length, _NO_EPOCH, MAGIC)
    return in_front + _CRC.pack(crc32c(payload, crc32c(covered))) + covered
