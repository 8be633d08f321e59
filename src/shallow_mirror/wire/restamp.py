"""Pure: rewrite batch headers in place for one producer; the CRC is patched, never recomputed."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shallow_mirror.wire.batch_index import BatchIndex
from shallow_mirror.wire.crc import patch_crcs
from shallow_mirror.wire.header import BATCH_HEADER_BYTES, CODEC_MASK, HEADER, TRANSACTIONAL_BIT, covered_bytes

SEQUENCE_MODULUS = 1 << 31
"""Sequence 2147483647 is followed by 0 (DefaultRecordBatch.incrementSequence)."""


def restamp(
    records: memoryview,
    index: BatchIndex,
    chosen: npt.NDArray[np.int64],
    *,
    producer_id: int,
    producer_epoch: int,
    first_sequence: int,
    transactional: bool = True,
) -> int:
    """Rewrite the headers of batches `chosen` (indices, ascending) in `records`; returns the next sequence.

    Base offset 0, leader epoch -1, attributes reduced to the codec (and the transactional bit), consecutive sequences.
    Clearing log-append-time, control and delete-horizon bits is part of it. `index` keeps the source's headers.
    """
    if not len(chosen):
        return first_sequence
    headers = index.headers[chosen]
    counts = headers["records_count"].astype(np.int64)
    sequences = (first_sequence + np.concatenate(([0], np.cumsum(counts)))) % SEQUENCE_MODULUS
    old = headers.astype(HEADER)
    new = old.copy()
    new["base_offset"] = 0
    new["partition_leader_epoch"] = -1
    new["attributes"] = (headers["attributes"] & CODEC_MASK) | (TRANSACTIONAL_BIT if transactional else 0)
    new["producer_id"] = producer_id
    new["producer_epoch"] = producer_epoch
    new["base_sequence"] = sequences[:-1]
    new["crc"] = patch_crcs(
        headers["crc"].astype(np.uint32), covered_bytes(old), covered_bytes(new), index.size_bytes[chosen] - BATCH_HEADER_BYTES
    )
    _scatter(records, index.pos[chosen], _rows(new))
    return int(sequences[-1])


def _rows(headers: npt.NDArray[np.void]) -> npt.NDArray[np.uint8]:
    return headers.view(np.uint8).reshape(-1, BATCH_HEADER_BYTES)


def _scatter(records: memoryview, at: npt.NDArray[np.int64], rows: npt.NDArray[np.uint8]) -> None:
    raw = np.frombuffer(records, np.uint8)
    np.lib.stride_tricks.sliding_window_view(raw, BATCH_HEADER_BYTES, writeable=True)[at] = rows
