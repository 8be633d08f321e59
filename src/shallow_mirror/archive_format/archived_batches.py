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
    """The part of an object that belongs to one archived segment."""

    object_name: str
    """Relative to the archive's folder of objects, separated by `/`."""
    index: tuple[IndexEntry, ...]
    leader_epochs: tuple[LeaderEpochStart, ...]
    aborted: tuple[AbortedTxn, ...]
    crc32c: int
    """Of the row's bytes in the order of `index`."""
    min_timestamp_ms: int | None
    """The least base timestamp, a bound: records of a batch may be older."""
    retention_class: str = ""
    """The topic pattern of the archive file, "" if none matches."""
    run_crc32c: tuple[int, ...] | None = None
    """Of the bytes of each run. None in rows of format 1.0, which had none."""


@dataclass(frozen=True, slots=True)
class ArchivedSegment:
    """A row of an archive without the columns of its decision. `stored` is None if no batches were stored (a gap)."""

    segment: Segment
    stored: StoredBatches | None
