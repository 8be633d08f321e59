"""Driver: records that a target log with preserved offsets holds and that no decision names.

A task makes records visible before a decision names them. If the run ends in between, and the source deletes them before the next
one or is gone, only the target log says that they were copied.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.fetch import IndexedPartition, RangeReader, ReadRange
from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError
from shallow_mirror.sinks.kafka.preserved.log_guard import own_in_place
from shallow_mirror.sinks.kafka.preserved.target_log import responses_of_target
from shallow_mirror.types import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    UNKNOWN_BYTES_PER_OFFSET,
    IsolationLevel,
    OffsetRange,
    Segment,
    SegmentKind,
    SourcePartition,
    TargetPartition,
    TopicPartition,
)
from shallow_mirror.wire.records import find_fillers

_log = logging.getLogger(__name__)

_FETCH_BYTES = 4 << 20
_PATIENCE_MS = 2_000
"""Of a look at which logs can be read."""


class HeldRecords:
    """The logs of one target cluster."""

    def __init__(self, target: Cluster) -> None:
        self._target = target

    def replace_expired(
        self, rows: Sequence[DecidedSegment], producer_ids: Mapping[SourcePartition, int], deadline: Deadline
    ) -> tuple[DecidedSegment, ...]:
        """Return the rows of expired offsets; records of them in a target log count as copied, and its fillers as a gap.

        Those of logs that cannot be read now are left out: what the target holds is not known, and nothing is copied to it.

        `producer_ids`: the shared producer of each partition with preserved offsets. Raises RetriableError, also if no row is
        left.
        """
        unreadable = self._unreadable([row.segment.target for row in rows if row.segment.source in producer_ids], deadline)
        left = [row for row in rows if row.segment.target.topic_partition not in unreadable]
        if rows and not left:
            raise next(iter(unreadable.values()))
        return tuple(
            replaced
            for row in left
            for replaced in (
                self._rows_of(row, producer_ids[row.segment.source], deadline) if row.segment.source in producer_ids else (row,)
            )
        )

    def _unreadable(self, targets: Sequence[TargetPartition], deadline: Deadline) -> Mapping[TopicPartition, MirrorError]:
        """Return why logs cannot be read. Leaders are not waited for."""
        if not targets:
            return {}
        wanted = [target.topic_partition for target in targets]
        patience = deadline.sooner(_PATIENCE_MS)
        return self._target.latest_offsets(wanted, IsolationLevel.READ_UNCOMMITTED, patience, is_patient=False)[1]

    def _rows_of(self, row: DecidedSegment, producer_id: int, deadline: Deadline) -> Iterator[DecidedSegment]:
        expired, at = row.segment, row.segment.source_start
        copied: OffsetRange | None = None  # of batches without a gap between them: one line
        for held in self.segments(expired, producer_id, deadline):
            if at < held.source_start:
                yield DecidedSegment(replace(expired, source_start=at, source_end=held.source_start), None)
            if held.kind is SegmentKind.DATA:
                if copied is not None and copied.end != held.source_start:
                    _log_copied(expired.source, copied)
                    copied = None
                copied = OffsetRange(held.source_start if copied is None else copied.start, held.source_end)
            yield DecidedSegment(held, None, shared_producer_id=producer_id)
            at = held.source_end
        if copied is not None:
            _log_copied(expired.source, copied)
        if at < expired.source_end:
            yield DecidedSegment(replace(expired, source_start=at), None)

    def segments(self, span: Segment, producer_id: int, deadline: Deadline) -> Iterator[Segment]:
        """Yield a segment for each batch of the mirror in the source offsets of `span`, in order: data, or a gap of fillers.

        `producer_id`: the shared producer of the partition. Raises as `responses_of_target`.
        """
        key = span.target.topic_partition
        start, end = (
            self._target.list_offsets({key: timestamp}, IsolationLevel.READ_UNCOMMITTED, deadline)[key].offset
            for timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
        )
        start, end = max(start, span.source_start), min(end, span.source_end)
        if start >= end:
            return
        reader = RangeReader(
            self._target,
            [ReadRange(key, start, end, UNKNOWN_BYTES_PER_OFFSET, span.target.topic_id)],
            isolation=IsolationLevel.READ_UNCOMMITTED,
            fetch_bytes=_FETCH_BYTES,
            deadline=deadline,
        )
        for response in responses_of_target(reader):
            for fetched in response:
                yield from _segments_of(fetched, span, producer_id)


def _log_copied(source: SourcePartition, copied: OffsetRange) -> None:
    _log.warning(
        "%s: the source has deleted offsets %d to %d, but the target holds them since an earlier run: they count as copied",
        source.topic_partition,
        copied.start,
        copied.end - 1,
    )


def _segments_of(fetched: IndexedPartition, span: Segment, producer_id: int) -> Iterator[Segment]:
    headers, last_offsets = fetched.index.headers, fetched.index.last_offset
    is_filler = find_fillers(fetched.index, fetched.records)
    is_own = own_in_place(headers, producer_id)
    for i in range(len(fetched.index)):
        # The first and the last batch may reach beyond the range: their other records are decided, or read at the source.
        start = max(int(headers["base_offset"][i]), span.source_start)
        end = min(int(last_offsets[i]) + 1, span.source_end)
        if not is_own[i] or start >= end:
            continue
        if is_filler[i]:
            yield replace(span, source_start=start, source_end=end, kind=SegmentKind.GAP)
        else:
            yield replace(
                span,
                source_start=start,
                source_end=end,
                kind=SegmentKind.DATA,
                target_start=start,
                target_end=end,
                record_count=min(int(headers["records_count"][i]), end - start),
                batch_count=1,
                size_bytes=int(fetched.index.size_bytes[i]),
                max_timestamp_ms=int(headers["max_timestamp"][i]),
            )
