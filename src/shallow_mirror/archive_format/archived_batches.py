"""Pure: where the record batches of a partition lie in an object, and what a reader has to know about them."""

from __future__ import annotations

from dataclasses import dataclass

from shallow_mirror.types import Segment

INDEX_BYTES = 1 << 20
"""About so many bytes of batches have one entry of the index."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A run of adjacent whole batches of one partition, about INDEX_BYTES.

    `start_offset`: base offset of its first batch, at least the row's `source_start`. `position`: byte in the object.
    Entries are ordered by offset; those of a partition in one part of the object are adjacent.
    """

    start_offset: int
    position: int
    size_bytes: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class LeaderEpochStart:
    """The batches from `start_offset` on have this leader epoch, up to that of the next one."""

    leader_epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class AbortedTxn:
    """An aborted transaction with data in the row. `last_offset`: its abort marker; None if it lies behind the row."""

    producer_id: int
    first_offset: int
    last_offset: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatches:
    """The part of an object that belongs to one archived segment.

    `object_name` is relative to the archive's folder of objects, separated by `/`. `crc32c` is that of the row's bytes in the
    order of `index`, `run_crc32c` that of each run; None in rows of format 1.0, which had none. `min_timestamp_ms` is the
    least base timestamp, a bound: records of a batch may be older. `retention_class` is the topic pattern of the archive file,
    "" if none matches.
    """

    object_name: str
    index: tuple[IndexEntry, ...]
    leader_epochs: tuple[LeaderEpochStart, ...]
    aborted: tuple[AbortedTxn, ...]
    crc32c: int
    min_timestamp_ms: int | None
    retention_class: str = ""
    run_crc32c: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class ArchivedSegment:
    """A row of an archive without the columns of its decision. `stored` is None if no batches were stored (a gap)."""

    segment: Segment
    stored: StoredBatches | None
