"""Pure: CRC-32C of record batches: check, patch after a change of the header, and the payload's share of it.

CRC-32C is linear over GF(2): for two messages of equal length that differ only in their head, the checksums differ by the
checksum difference of the heads, advanced over the bytes that follow. So a header can be rewritten without reading the
payload, and a payload that was damaged since its producer computed the checksum stays recognisably damaged.
"""

from __future__ import annotations

from collections.abc import Sequence

import crc32c as _library
import numpy as np
import numpy.typing as npt

from shallow_mirror.wire.batches.header import BATCH_HEADER_BYTES, CRC_START, LOG_OVERHEAD, covered_bytes

_POLYNOMIAL = 0x82F63B78
_LENGTH_BITS, _DIGIT_BITS = 44, 4
"""16 TiB: more than one object of a store can hold."""

_CRC_POS = CRC_START - 4


def crc32c(data: memoryview | bytes | bytearray, before: int = 0) -> int:
    """Return the checksum of `data`, or of bytes with the checksum `before` followed by `data`."""
    return int(_library.crc32c(data, before))


def joined_crc(crcs: Sequence[int], sizes: Sequence[int]) -> int:
    """Return the checksum of pieces that follow each other, from the checksum and the bytes of each: no piece is read."""
    bytes_behind = np.cumsum(np.array(sizes[::-1], np.int64))[::-1] - np.array(sizes, np.int64)
    return int(np.bitwise_xor.reduce(_advance(np.array(crcs, np.uint32), bytes_behind), initial=np.uint32(0)))


def verify_crc(batch: memoryview) -> bool:
    """Return whether the checksum of a whole batch matches its bytes."""
    return int.from_bytes(batch[_CRC_POS:CRC_START], "big") == crc32c(batch[CRC_START:])


def patch_crcs(
    old_crc: npt.NDArray[np.uint32],
    old_headers: npt.NDArray[np.uint8],
    new_headers: npt.NDArray[np.uint8],
    payload_bytes: npt.NDArray[np.int64],
) -> npt.NDArray[np.uint32]:
    """Return the checksums after bytes [21, 61) changed from `old_headers` to `new_headers`, both uint8[n, 40]."""
    return old_crc ^ _advance(_crcs_of_rows(old_headers) ^ _crcs_of_rows(new_headers), payload_bytes)


def verify_crcs(records: memoryview, pos: npt.NDArray[np.int64], headers: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Return for each batch of `headers`, which begins at `pos` in `records`, whether its checksum matches its bytes."""
    starts, ends = (pos + CRC_START).tolist(), (pos + headers["batch_length"] + LOG_OVERHEAD).tolist()
    checksums = [_library.crc32c(records[start:end]) for start, end in zip(starts, ends, strict=True)]
    return np.asarray(np.array(checksums, np.uint32) == headers["crc"], np.bool_)


def payload_crcs(headers: npt.NDArray[np.void]) -> npt.NDArray[np.uint32]:
    """Return the checksums of the payloads alone, which follow from the headers: no payload is read.

    crc(H + P) = advance(crc(H), bytes of P) ^ crc(P). True of every batch whose own checksum holds.
    """
    covered = covered_bytes(headers)
    payload_bytes = headers["batch_length"].astype(np.int64) + LOG_OVERHEAD - BATCH_HEADER_BYTES
    return headers["crc"].astype(np.uint32) ^ _advance(_crcs_of_rows(covered), payload_bytes)


def _crcs_of_rows(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    joined, size = rows.tobytes(), rows.shape[1]
    return np.array([_library.crc32c(joined[start : start + size]) for start in range(0, len(joined), size)], np.uint32)


def _advance(crc: npt.NDArray[np.uint32], zero_bytes: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Advance each checksum over that many zero bytes: one matrix product per hexadecimal digit of the lengths."""
    out = crc
    for digit in range(-(-int(zero_bytes.max(initial=0)).bit_length() // _DIGIT_BITS)):
        tables = _SHIFTS[digit]
        digits = (zero_bytes >> (_DIGIT_BITS * digit)) & (len(tables) - 1)
        out = (
            tables[digits, 0, out & 0xFF]
            ^ tables[digits, 1, (out >> 8) & 0xFF]
            ^ tables[digits, 2, (out >> 16) & 0xFF]
            ^ tables[digits, 3, out >> 24]
        )
    return out


def _apply(tables: npt.NDArray[np.uint32], crc: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    bytes_of_crc = [(crc >> np.uint32(8 * i)) & 0xFF for i in range(4)]
    product: npt.NDArray[np.uint32] = (
        tables[0][bytes_of_crc[0]] ^ tables[1][bytes_of_crc[1]] ^ tables[2][bytes_of_crc[2]] ^ tables[3][bytes_of_crc[3]]
    )
    return product


def _byte_table() -> npt.NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ np.where(table & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    return table.astype(np.uint32)


_BYTE_TABLE = _byte_table()


def _shift_tables() -> npt.NDArray[np.uint32]:
    """Return tables [k, d] that advance over d * 16**k zero bytes: four of 256, one per byte of the checksum."""
    bytes_of = np.arange(256, dtype=np.uint32)
    identity = np.stack([bytes_of << np.uint32(8 * i) for i in range(4)])
    shift = _BYTE_TABLE[identity & 0xFF] ^ (identity >> np.uint32(8))
    digits = []
    for _ in range(-(-_LENGTH_BITS // _DIGIT_BITS)):
        tables = [identity]
        for _ in range(1 << _DIGIT_BITS):
            tables.append(_apply(shift, tables[-1]))
        shift = tables.pop()
        digits.append(np.stack(tables))
    return np.stack(digits)


_SHIFTS = _shift_tables()
