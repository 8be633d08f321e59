"""Pure: rewrite batch headers in place for one producer; the CRC is patched, never recomputed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shallow_mirror.wire.batches.batch_index import BatchIndex, headers_anywhere, index_batches
from shallow_mirror.wire.batches.crc import patch_crcs
from shallow_mirror.wire.batches.header import (
    BASE_OFFSET,
    BATCH_HEADER_BYTES,
    CODEC_MASK,
    HEADER,
    LOG_APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    covered_bytes,
)

SEQUENCE_MODULUS = 1 << 31
"""Sequence 2147483647 is followed by 0 (DefaultRecordBatch.incrementSequence)."""


@dataclass(frozen=True, slots=True, eq=False)
class ChosenBatches:
    """Batches of one partition to be restamped: `chosen` (ascending) of `index`, in `records`."""

    records: memoryview
    index: BatchIndex
    chosen: npt.NDArray[np.int64]

    def batches(self) -> list[memoryview]:
        """Return them as they lie in `records`: as they were before, or, afterwards, as they are restamped."""
        starts, sizes = self.index.pos[self.chosen].tolist(), self.index.size_bytes[self.chosen].tolist()
        return [self.records[start : start + size] for start, size in zip(starts, sizes, strict=True)]


@dataclass(frozen=True, slots=True, eq=False)
class Stamped(ChosenBatches):
    """Batches that get consecutive sequences from `first_sequence` on."""

    first_sequence: int


def restamp_all(parts: Sequence[Stamped], *, producer_id: int, producer_epoch: int, transactional: bool = True) -> list[int]:
    """Rewrite the headers of `parts` in place; return the next sequence of each.

    Base offset 0, leader epoch -1, attributes reduced to the codec (and the transactional bit), consecutive sequences.
    The indices keep the source's headers.
    """
    headers, sizes = _headers_and_sizes(parts)
    if not len(headers):
        return [part.first_sequence for part in parts]
    sequences, following = _sequences(parts, headers["records_count"])
    new = _reduced(headers, TRANSACTIONAL_BIT if transactional else 0)
    new["producer_id"] = producer_id
    new["producer_epoch"] = producer_epoch
    new["base_sequence"] = sequences
    _replace(parts, headers, new, sizes)
    return following


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedProducer:
    """The producer id that every writer of a target partition shares; its epoch is 0.

    Brokers forget a producer by the age of its newest batch. A batch whose newest record is older than `old_before_ms` is sent
    with the bit of LogAppendTime and the time `now_ms`, by which the broker remembers the producer. A topic with CreateTime
    clears the bit, and keeps the times of the records.
    """

    producer_id: int
    now_ms: int
    old_before_ms: int


@dataclass(frozen=True, slots=True, eq=False)
class StampedInPlace(ChosenBatches):
    """Batches that are to be appended at the base offsets that they have."""

    producer: SharedProducer


def restamp_at_offsets(parts: Sequence[StampedInPlace]) -> None:
    """Rewrite the headers of `parts` in place. The indices keep the former headers.

    The sequence of a batch is its offset modulo 2^31, so that a broker appends it at that offset or not at all.
    """
    headers, sizes = _headers_and_sizes(parts)
    if not len(headers):
        return
    counts, producers = [len(part.chosen) for part in parts], [part.producer for part in parts]
    new = _reduced(headers, 0)
    is_old = headers["max_timestamp"] < np.repeat([producer.old_before_ms for producer in producers], counts)
    new["attributes"][is_old] |= LOG_APPEND_TIME_BIT
    new["max_timestamp"][is_old] = np.repeat([producer.now_ms for producer in producers], counts)[is_old]
    new["producer_id"] = np.repeat([producer.producer_id for producer in producers], counts)
    new["producer_epoch"] = 0
    new["base_sequence"] = headers["base_offset"] % SEQUENCE_MODULUS
    _replace(parts, headers, new, sizes)


def restamped_at(batch: bytearray, offset: int, producer: SharedProducer) -> memoryview:
    """Rewrite the header of one whole batch that is to be appended at `offset`; return it."""
    BASE_OFFSET.pack_into(batch, 0, offset)
    view = memoryview(batch)
    restamp_at_offsets([StampedInPlace(view, index_batches(view), np.zeros(1, np.int64), producer)])
    return view


def _headers_and_sizes(parts: Sequence[ChosenBatches]) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int64]]:
    headers = np.concatenate([part.index.headers[part.chosen] for part in parts])
    return headers, np.concatenate([part.index.size_bytes[part.chosen] for part in parts])


def _reduced(headers: npt.NDArray[np.void], attributes: int) -> npt.NDArray[np.void]:
    """Return a big-endian copy: base offset 0, leader epoch -1, attributes reduced to the codec and `attributes`."""
    new = headers.astype(HEADER)
    new["base_offset"] = 0
    new["partition_leader_epoch"] = -1
    # Without log-append-time, control and delete-horizon bits: brokers set them, and refuse them of producers.
    new["attributes"] = (headers["attributes"] & CODEC_MASK) | attributes
    return new


def _replace(
    parts: Sequence[ChosenBatches], headers: npt.NDArray[np.void], new: npt.NDArray[np.void], sizes: npt.NDArray[np.int64]
) -> None:
    """Put `new` in the place of `headers`, those of all parts one after the other, with patched checksums."""
    old_crc = headers["crc"].astype(np.uint32)
    new["crc"] = patch_crcs(old_crc, covered_bytes(headers), covered_bytes(new), sizes - BATCH_HEADER_BYTES)
    ends = np.cumsum([len(part.chosen) for part in parts]).tolist()
    for part, rows in zip(parts, np.split(new, ends[:-1]), strict=True):
        header_slots = headers_anywhere(part.records)
        header_slots[part.index.pos[part.chosen]] = rows.view(header_slots.dtype)


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
