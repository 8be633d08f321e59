"""Pure: rewrite batch headers in place for one producer; the CRC is patched, never recomputed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shallow_mirror.wire.batches.batch_index import BatchIndex, headers_anywhere
from shallow_mirror.wire.batches.crc import patch_crcs
from shallow_mirror.wire.batches.header import BATCH_HEADER_BYTES, CODEC_MASK, HEADER, TRANSACTIONAL_BIT, covered_bytes

SEQUENCE_MODULUS = 1 << 31
"""Sequence 2147483647 is followed by 0 (DefaultRecordBatch.incrementSequence)."""


@dataclass(frozen=True, slots=True, eq=False)
class Stamped:
    """Batches of one partition to be restamped from `first_sequence` on: `chosen` (ascending) of `index`, in `records`."""

    records: memoryview
    index: BatchIndex
    chosen: npt.NDArray[np.int64]
    first_sequence: int

    def batches(self) -> list[memoryview]:
        starts, sizes = self.index.pos[self.chosen].tolist(), self.index.size_bytes[self.chosen].tolist()
        return [self.records[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def restamp_all(parts: Sequence[Stamped], *, producer_id: int, producer_epoch: int, transactional: bool = True) -> list[int]:
    """Rewrite the headers of `parts` where they lie; return the next sequence of each.

    Base offset 0, leader epoch -1, attributes reduced to the codec (and the transactional bit), consecutive sequences.
    The indices keep the source's headers.
    """
    headers = np.concatenate([part.index.headers[part.chosen] for part in parts])
    if not len(headers):
        return [part.first_sequence for part in parts]
    sizes = np.concatenate([part.index.size_bytes[part.chosen] for part in parts])
    sequences, following = _sequences(parts, headers["records_count"])
    old = headers.astype(HEADER)
    new = old.copy()
    new["base_offset"] = 0
    new["partition_leader_epoch"] = -1
    # Without log-append-time, control and delete-horizon bits: brokers set them, and refuse them of producers.
    new["attributes"] = (headers["attributes"] & CODEC_MASK) | (TRANSACTIONAL_BIT if transactional else 0)
    new["producer_id"] = producer_id
    new["producer_epoch"] = producer_epoch
    new["base_sequence"] = sequences
    new["crc"] = patch_crcs(headers["crc"].astype(np.uint32), covered_bytes(old), covered_bytes(new), sizes - BATCH_HEADER_BYTES)
    ends = np.cumsum([len(part.chosen) for part in parts]).tolist()
    for part, rows in zip(parts, np.split(new, ends[:-1]), strict=True):
        header_slots = headers_anywhere(part.records)
        header_slots[part.index.pos[part.chosen]] = rows.view(header_slots.dtype)
    return following


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
    """Restamp batches of one partition; return the next sequence."""
    parts = [Stamped(records, index, chosen, first_sequence)]
    return restamp_all(parts, producer_id=producer_id, producer_epoch=producer_epoch, transactional=transactional)[0]


def _sequences(parts: Sequence[Stamped], counts: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int64], list[int]]:
    """Return the first sequence of every batch, and the next one of every part."""
    sequences, following, start = [], [], 0
    for part in parts:
        end = start + len(part.chosen)
        running = part.first_sequence + np.cumsum(counts[start:end], dtype=np.int64)
        sequences.append((running - counts[start:end]) % SEQUENCE_MODULUS)
        following.append(int(running[-1]) % SEQUENCE_MODULUS if end > start else part.first_sequence)
        start = end
    return np.concatenate(sequences), following
