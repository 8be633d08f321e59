"""Driver: the offset at which a partition is cut by a time, and the batch that a cut divides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from shallow_mirror.archive_reading.segment_reader import SegmentReader, StoredSegment
from shallow_mirror.object_store.object_store import ObjectStore
from shallow_mirror.wire.batches.header import CONTROL_BIT
from shallow_mirror.wire.records.unpacked_batch import open_batch

MAX_OPENED_BYTES = 1 << 30
"""Of one batch that is opened to find its first record that is too new."""


def first_newer_offset(store: ObjectStore, segments: Sequence[StoredSegment], time_ms: int) -> int | None:
    """Return the offset of the first record of a partition that is newer than `time_ms`; None where none is.

    `segments` are those of one partition. Headers decide which batches can hold such a record, so that one batch is opened at
    most. Raises as `SegmentReader`, and CorruptBatchError.
    """
    for batches in SegmentReader(store, segments, min_timestamp_ms=time_ms + 1):
        headers = batches.index.headers
        is_newer = (headers["max_timestamp"] > time_ms) & (headers["attributes"] & CONTROL_BIT == 0)
        for i in np.flatnonzero(is_newer).tolist():
            topic_partition = batches.source.topic_partition
            for record in open_batch(batches.batch(i), topic_partition, max_bytes=MAX_OPENED_BYTES):
                if record.timestamp_ms > time_ms and batches.start <= record.offset < batches.end:
                    return record.offset
    return None


def offsets_without_hole(segments: Sequence[StoredSegment]) -> Iterator[tuple[int, int]]:
    """Yield [start, end) of runs of adjacent segments of one partition, ordered by offset."""
    start = end = None
    archived = (archived_segment.segment for archived_segment in segments)
    for segment in sorted(archived, key=lambda segment: (segment.source_start, segment.source_end)):
        if start is None or end is None:
            start, end = segment.source_start, segment.source_end
        elif segment.source_start <= end:
            end = max(end, segment.source_end)
        else:
            yield start, end
            start, end = segment.source_start, segment.source_end
    if start is not None and end is not None:
        yield start, end


def cut_batch(store: ObjectStore, segments: Sequence[StoredSegment], bound: int) -> tuple[int, int] | None:
    """Return [base offset, end) of the batch of records that `bound` lies inside of; None where it lies between batches.

    A batch of an aborted transaction counts too. `segments` are those of one partition. Raises as `SegmentReader`.
    """
    for batches in SegmentReader(store, segments, bound, bound + 1):
        base, end = batches.index.headers["base_offset"], batches.index.last_offset + 1
        is_control = (batches.index.headers["attributes"] & CONTROL_BIT) != 0
        for i in np.flatnonzero((base < bound) & (end > bound) & ~is_control).tolist():
            return int(base[i]), int(end[i])
    return None
