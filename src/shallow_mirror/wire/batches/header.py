"""Pure: the 61-byte header of a record batch, magic 2, as a numpy structure (DefaultRecordBatch)."""

from __future__ import annotations

import enum
import struct

import numpy as np
import numpy.typing as npt

LOG_OVERHEAD = 12
"""Bytes in front of what batchLength counts: base offset and batchLength itself."""

BASE_OFFSET = struct.Struct(">q")
"""At the start of a batch; no checksum covers it."""

BATCH_HEADER_BYTES = 61
MAGIC = 2
MAGIC_POS = 16
CRC_START = 21
"""The CRC covers [21, end of batch)."""

CODEC_MASK = 0x07
LOG_APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

NO_PRODUCER_ID = -1

HEADER = np.dtype(
    [
        ("base_offset", ">i8"),
        ("batch_length", ">i4"),
        ("partition_leader_epoch", ">i4"),
        ("magic", ">i1"),
        ("crc", ">u4"),
        ("attributes", ">i2"),
        ("last_offset_delta", ">i4"),
        ("base_timestamp", ">i8"),
        ("max_timestamp", ">i8"),
        ("producer_id", ">i8"),
        ("producer_epoch", ">i2"),
        ("base_sequence", ">i4"),
        ("records_count", ">i4"),
    ]
)
"""As on the wire: packed, big-endian, 61 bytes."""

NATIVE_HEADER = HEADER.newbyteorder("=")


def covered_bytes(headers: npt.NDArray[np.void]) -> npt.NDArray[np.uint8]:
    """Return bytes [21, 61) of each header as on the wire, uint8[n, 40]: the part that the CRC covers."""
    return headers.astype(HEADER).view(np.uint8).reshape(-1, BATCH_HEADER_BYTES)[:, CRC_START:]


class Codec(enum.IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4
