"""Pure: a new record batch of magic 2 around a payload, complete with its checksum, and still without a producer."""

from __future__ import annotations

import numpy as np

from shallow_mirror.wire.crc import crc32c
from shallow_mirror.wire.header import BATCH_HEADER_BYTES, CRC_START, HEADER, LOG_OVERHEAD, MAGIC, NO_PRODUCER_ID

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
    """`payload` are the records, compressed as `attributes` say."""
    header = np.zeros(1, HEADER)
    header["base_offset"] = base_offset
    header["batch_length"] = BATCH_HEADER_BYTES - LOG_OVERHEAD + len(payload)
    header["partition_leader_epoch"] = header["producer_epoch"] = _NO_EPOCH
    header["magic"], header["attributes"] = MAGIC, attributes
    header["last_offset_delta"], header["records_count"] = last_offset_delta, records_count
    header["base_timestamp"], header["max_timestamp"] = base_timestamp, max_timestamp
    header["producer_id"], header["base_sequence"] = NO_PRODUCER_ID, _NO_SEQUENCE
    header["crc"] = crc32c(payload, crc32c(header.tobytes()[CRC_START:]))
    return b"".join((header.tobytes(), payload))
