"""Pure: filler batches, which take offsets of a log without a record that consumers return.

A filler batch is uncompressed, and each of its records has the offset delta -2^30. Brokers check the count and the last offset
delta of an uncompressed batch and assign offsets by them; they do not read the deltas of its records. Consumers compute the
offset of each record from its delta, find it below the offset that they fetch from, and pass over it
(docs/design/preserved-offsets.md lists which clients do).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np
import numpy.typing as npt

from shallow_mirror.wire.batches.batch_builder import build_batch
from shallow_mirror.wire.batches.batch_index import BatchIndex
from shallow_mirror.wire.batches.header import BATCH_HEADER_BYTES, CODEC_MASK
from shallow_mirror.wire.records.record_builder import build_record

FILLER_OFFSET_DELTA = -(1 << 30)

FILLER_KEY = b"\x00shallow-mirror filler\x00"
"""The key of fillers in a compacted topic, which takes no record without a key. Log compaction removes them."""

MOST_FILLERS = 90_000
"""The limit of records in a filler batch: about 1 MB without a key."""


def filler_record(key: bytes | None) -> bytes:
    """Return one filler record: no value, no headers, timestamp delta 0."""
    return build_record(key, None, offset_delta=FILLER_OFFSET_DELTA)


@dataclass(frozen=True)
class Fillers:
    """Filler batches for one target topic. `key`: None unless the topic is compacted. `max_message_bytes`: of the topic."""

    key: bytes | None
    max_message_bytes: int

    @cached_property
    def most_records(self) -> int:
        """Return how many offsets one batch takes at the most; one batch holds one record at least."""
        return max(1, min(MOST_FILLERS, (self.max_message_bytes - BATCH_HEADER_BYTES) // len(filler_record(self.key))))

    @cached_property
    def _longest_payload(self) -> bytes:
        return filler_record(self.key) * self.most_records

    def batch(self, count: int, timestamp_ms: int) -> bytearray:
        """Return a batch that takes `count` offsets, without a producer yet. Raises ValueError above `most_records`."""
        if not 0 < count <= self.most_records:
            raise ValueError(f"{count} fillers do not fit into one batch, {self.most_records} do")
        payload = memoryview(self._longest_payload)[: count * (len(self._longest_payload) // self.most_records)]
        return bytearray(
            build_batch(
                payload,
                attributes=0,
                base_timestamp=timestamp_ms,
                max_timestamp=timestamp_ms,
                records_count=count,
                last_offset_delta=count - 1,
            )
        )


def find_fillers(index: BatchIndex, records: memoryview) -> npt.NDArray[np.bool_]:
    """Return which batches hold nothing but fillers, bool[n]."""
    headers = index.headers
    is_filler = np.zeros(len(index), np.bool_)
    payload_bytes = index.size_bytes - BATCH_HEADER_BYTES
    for record in (filler_record(None), filler_record(FILLER_KEY)):
        may_be = (headers["attributes"] & CODEC_MASK == 0) & (payload_bytes == headers["records_count"] * len(record))
        for i in np.flatnonzero(may_be & (headers["records_count"] > 0)).tolist():
            start, count = int(index.pos[i]) + BATCH_HEADER_BYTES, int(headers["records_count"][i])
            is_filler[i] |= records[start : start + len(record) * count] == record * count
    return is_filler


@dataclass(frozen=True, slots=True)
class OffsetSpans(Sequence[tuple[int, int]]):
    """[start, end) in spans of at most `most` offsets, as (first offset, count), without a list of them."""

    start: int
    end: int
    most: int

    def __len__(self) -> int:
        return -(-(self.end - self.start) // self.most)

    @overload
    def __getitem__(self, i: int) -> tuple[int, int]: ...

    @overload
    def __getitem__(self, i: slice) -> Sequence[tuple[int, int]]: ...

    def __getitem__(self, i: int | slice) -> tuple[int, int] | Sequence[tuple[int, int]]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        if not 0 <= i < len(self):
            raise IndexError(i)
        first = self.start + i * self.most
        return first, min(self.most, self.end - first)
