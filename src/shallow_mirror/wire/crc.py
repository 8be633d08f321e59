"""Pure: CRC-32C of record batches: check, patch after a change of the header, and the payload's share of it.

CRC-32C is linear over GF(2): for two messages of equal length that differ only in their head, the checksums differ by the
checksum difference of the heads, advanced over the bytes that follow. So a header can be rewritten without reading the
payload, and a payload that was damaged since its producer computed the checksum stays recognisably damaged.
"""

from __future__ import annotations

import crc32c as _library
import numpy as np
import numpy.typing as npt

from shallow_mirror.wire.header import BATCH_HEADER_BYTES, CRC_START, LOG_OVERHEAD, covered_bytes

_POLYNOMIAL = 0x82F63B78
_LENGTH_BITS = 31

_CRC_POS = CRC_START - 4


def crc32c(data: memoryview | bytes | bytearray, before: int = 0) -> int:
    """Of `data`, or of what has the checksum `before` and `data` behind it."""
    return int(_library.crc32c(data, before))


def verify_crc(batch: memoryview) -> bool:
    """Whether the checksum of a whole batch matches its bytes."""
    return int.from_bytes(batch[_CRC_POS:CRC_START], "big") == crc32c(batch[CRC_START:])


def patch_crcs(
    old_crc: npt.NDArray[np.uint32],
    old_headers: npt.NDArray[np.uint8],
    new_headers: npt.NDArray[np.uint8],
    payload_bytes: npt.NDArray[np.int64],
) -> npt.NDArray[np.uint32]:
    """Checksums after bytes [21, 61) changed from `old_headers` to `new_headers`, both uint8[n, 40]."""
    difference = _crc_of_rows(old_headers ^ new_headers)
    return old_crc ^ _advance(difference, payload_bytes)


def verify_crcs(records: memoryview, pos: npt.NDArray[np.int64], headers: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """For each batch of `headers`, which begins at `pos` in `records`: whether its checksum matches its bytes."""
    starts, ends = (pos + CRC_START).tolist(), (pos + headers["batch_length"] + LOG_OVERHEAD).tolist()
    found = [_library.crc32c(records[start:end]) for start, end in zip(starts, ends, strict=True)]
    return np.asarray(np.array(found, np.uint32) == headers["crc"], np.bool_)


def payload_crcs(headers: npt.NDArray[np.void]) -> npt.NDArray[np.uint32]:
    """Checksums of the payloads alone, which follow from the headers: no payload is read.

    crc(H + P) = advance(crc(H), bytes of P) ^ crc(P). True of every batch whose own checksum holds.
    """
    covered = covered_bytes(headers)
    of_headers = _crc_of_rows(covered) ^ np.uint32(crc32c(bytes(covered.shape[1])))
    payload_bytes = headers["batch_length"].astype(np.int64) + LOG_OVERHEAD - BATCH_HEADER_BYTES
    return headers["crc"].astype(np.uint32) ^ _advance(of_headers, payload_bytes)


def _crc_of_rows(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Checksum without initial and final inversion: the linear part, which is what differences need."""
    crc = np.zeros(len(rows), np.uint32)
    for column in range(rows.shape[1]):
        crc = _BYTE_TABLE[(crc ^ rows[:, column]) & 0xFF] ^ (crc >> np.uint32(8))
    return crc


def _advance(crc: npt.NDArray[np.uint32], zero_bytes: npt.NDArray[np.int64]) -> npt.NDArray[np.uint32]:
    """Advance each checksum over that many zero bytes: one matrix product per set bit of the length."""
    out = crc.copy()
    for bit in range(_LENGTH_BITS):
        chosen = ((zero_bytes >> bit) & 1).astype(bool)
        if chosen.any():
            out[chosen] = _apply(_SHIFTS[bit], out[chosen])
    return out


def _apply(tables: npt.NDArray[np.uint32], crc: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    places = [(crc >> np.uint32(8 * place)) & 0xFF for place in range(4)]
    product: npt.NDArray[np.uint32] = tables[0][places[0]] ^ tables[1][places[1]] ^ tables[2][places[2]] ^ tables[3][places[3]]
    return product


def _byte_table() -> npt.NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ np.where(table & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    return table.astype(np.uint32)


_BYTE_TABLE = _byte_table()


def _shift_tables() -> list[npt.NDArray[np.uint32]]:
    """For 2**k zero bytes, k = 0 .. 30: four tables of 256, one per byte of the checksum."""
    bytes_of = np.arange(256, dtype=np.uint32)
    places = np.stack([bytes_of << np.uint32(8 * place) for place in range(4)])
    one = _BYTE_TABLE[places & 0xFF] ^ (places >> np.uint32(8))
    tables = [one.astype(np.uint32)]
    for _ in range(_LENGTH_BITS - 1):
        last = tables[-1]
        tables.append(_apply(last, last))
    return tables


_SHIFTS = _shift_tables()
