"""Driver and reading commands: the offset at which a partition is cut by a time, and the batch that a cut divides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from shallow_mirror.archive_reading.record_reader import ANY_BATCH
from shallow_mirror.archive_reading.segment_reader import SegmentBatches, SegmentReader, StoredSegment
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.types import IsolationLevel
from shallow_mirror.wire import CONTROL_BIT, LOG_APPEND_TIME_BIT
from shallow_mirror.wire.batches import Verdict, admit
from shallow_mirror.wire.records import open_batch

MAX_OPENED_BYTES = 1 << 30
"""Of one batch that is opened to find its first record that is too new."""
_NOT_SEEN = (Verdict.DROP_BELOW, Verdict.DROP_CONTROL, Verdict.DROP_ABORTED, Verdict.DROP_EMPTY, Verdict.BEYOND)
_READ_AHEAD_BYTES = 1
"""The first batches are wanted mostly: nothing is read ahead."""


def first_newer_offset(
    store: ObjectStore,
    segments: Sequence[StoredSegment],
    time_ms: int,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> int | None:
    """Return the offset at which a partition ends, in front of its first record newer than `time_ms`; None if none is.

    A batch of which no record is in front of it is not divided: the offset is the begin of the batch.

    Records that a consumer of this isolation level does not see do not count: producers may give aborted records any time.
    `segments` are those of one partition. Headers decide which batches can hold such a record, so that one batch is opened
    mostly. Raises as `SegmentReader`, and CorruptBatchError.
    """
    for batches in SegmentReader(store, segments, min_timestamp_ms=time_ms + 1):
        is_newer = batches.index.headers["max_timestamp"] > time_ms
        if not is_newer.any():
            continue
        for i in np.flatnonzero(is_newer & _visible(batches, isolation)).tolist():
            begin, is_first = max(batches.start, int(batches.index.headers["base_offset"][i])), True
            for record in open_batch(batches.batch(i), batches.source.topic_partition, max_bytes=MAX_OPENED_BYTES):
                if not batches.start <= record.offset < batches.end:
                    continue
                if record.timestamp_ms > time_ms:
                    # Compaction may have removed what was in front of the first record.
                    return begin if is_first else record.offset
                is_first = False
    return None


def first_visible_record(
    store: ObjectStore,
    segments: Sequence[StoredSegment],
    isolation: IsolationLevel,
    *,
    after_ms: int | None = None,
    is_left_out: Callable[[SegmentBatches, int], bool] = lambda _batches, _i: False,
) -> tuple[int, int | None] | None:
    """Return offset and time of the first record of a partition that a consumer of this isolation level sees; None without one.

    By headers alone: no batch is opened. The time is None if the record has none. With `after_ms` it is the first batch with a
    newer record, and a time that one of its records has. `is_left_out`: whether batch i does not count. Raises as
    `SegmentReader`.
    """
    bound = None if after_ms is None else after_ms + 1
    reader = SegmentReader(store, segments, read_ahead_bytes=_READ_AHEAD_BYTES, min_timestamp_ms=bound)
    for batches in reader:
        headers = batches.index.headers
        for i in np.flatnonzero(_visible(batches, isolation)).tolist():
            newest_ms, timestamp_ms = int(headers["max_timestamp"][i]), int(headers["base_timestamp"][i])
            is_append_time = bool(headers["attributes"][i] & LOG_APPEND_TIME_BIT)
            if is_append_time or (after_ms is not None and timestamp_ms <= after_ms):
                timestamp_ms = newest_ms
            if (after_ms is None or timestamp_ms > after_ms) and not is_left_out(batches, i):
                return max(batches.start, int(headers["base_offset"][i])), timestamp_ms if timestamp_ms >= 0 else None
    return None


def _visible(batches: SegmentBatches, isolation: IsolationLevel) -> npt.NDArray[np.bool_]:
    """Return which batches hold records that a consumer of this isolation level sees."""
    admission = admit(
        batches.index,
        batches.records,
        topic_partition=batches.source.topic_partition,
        position=batches.start,
        range_end=batches.end,
        aborted=batches.aborted,
        limits=replace(ANY_BATCH, isolation_level=isolation),
    )
    return ~np.isin(admission.verdicts, _NOT_SEEN)


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
    """Return [base offset, end) of the batch of records that `bound` lies inside of; None if it lies between batches.

    A batch of an aborted transaction counts too. `segments` are those of one partition. Raises as `SegmentReader`.
    """
    for batches in SegmentReader(store, segments, bound, bound + 1):
        base, end = batches.index.headers["base_offset"], batches.index.last_offset + 1
        is_control = (batches.index.headers["attributes"] & CONTROL_BIT) != 0
        for i in np.flatnonzero((base < bound) & (end > bound) & ~is_control).tolist():
            return int(base[i]), int(end[i])
    return None
