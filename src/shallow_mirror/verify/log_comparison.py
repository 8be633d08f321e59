"""Driver: whether two logs hold the same records at the same offsets. No map says so: both are read, as `verify` reads them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from shallow_mirror.types import UNKNOWN_BYTES_PER_OFFSET, OffsetRange, TopicPartition
from shallow_mirror.verify.clusters import ClusterReader
from shallow_mirror.verify.differences import Difference
from shallow_mirror.verify.map_index import DATA, MapRows, RangePair
from shallow_mirror.verify.range_verifier import OnPosition, PartitionReaders, verify_range


@dataclass(frozen=True, slots=True, kw_only=True)
class LogComparison:
    """The records of [start, end) in both logs."""

    start: int
    end: int
    record_count: int
    """Equal records, in batches of `size_bytes`."""
    size_bytes: int
    holes: tuple[OffsetRange, ...]
    """Offsets at which neither side shows a record."""
    differences: tuple[Difference, ...]
    """In the other offsets."""


def compare_logs(
    source: ClusterReader,
    target: ClusterReader,
    source_partition: TopicPartition,
    target_partition: TopicPartition,
    end: int,
    on_position: OnPosition,
    *,
    start: int = 0,
) -> LogComparison:
    """Compare all that both logs still have from `start` up to `end`, as readers of each cluster's isolation level see it.

    Compaction is no excuse: a record that only one side shows is a difference. Metadata of both was loaded. Raises as
    `verify_range`.
    """
    start = min(end, max(start, source.log_view(source_partition).log_start, target.log_view(target_partition).log_start))
    rows = _one_row(start, end)
    readers = source.readers(source_partition, rows.start), target.readers(target_partition, rows.target_starts)
    for reader in (*readers[0], *readers[1]):
        reader.log.is_preserved = True
        reader.log.is_compacted = False
    for reader in readers[0]:
        reader.records_until = end
    (source_reader, source_reopened), (target_reader, target_reopened) = readers
    both = OffsetRange(start, end)
    result = verify_range(
        PartitionReaders(
            source=source_reader,
            target=target_reader,
            source_reopened=source_reopened,
            target_reopened=target_reopened,
            rows=rows,
            # Of the target's offsets below the start the source has nothing any more.
            elsewhere=(np.array([0], np.int64), np.array([start], np.int64)),
            is_deep=False,
            is_by_offset=True,
        ),
        RangePair(range(len(rows)), both, both),
        is_first=True,
        on_position=on_position,
    )
    return LogComparison(
        start=start,
        end=end,
        record_count=result.record_count,
        size_bytes=result.source_bytes,
        holes=_joined(result.holes),
        differences=result.differences,
    )


def _one_row(start: int, end: int) -> MapRows:
    """Return a map in which every offset leads to itself."""
    size_bytes = int((end - start) * UNKNOWN_BYTES_PER_OFFSET)
    starts, ends, kinds, sizes = (np.array([value], np.int64) for value in (start, end, DATA, size_bytes))
    return MapRows(starts, ends, kinds, starts, np.zeros(1, np.bool_), sizes)


def _joined(holes: tuple[OffsetRange, ...]) -> tuple[OffsetRange, ...]:
    """Return them in order, adjacent ones as one."""
    joined: list[OffsetRange] = []
    for hole in sorted(holes, key=lambda hole: hole.start):
        if joined and joined[-1].end == hole.start:
            joined[-1] = OffsetRange(joined[-1].start, hole.end)
        else:
            joined.append(hole)
    return tuple(joined)
