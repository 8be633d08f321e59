"""Driver: copies that logs with preserved offsets hold behind the end of the map.

They are visible as soon as they are written. A mirror that was killed has not decided them, and no start does without its source:
a fail-over cannot compare them, so the map stays where it is, and only the target's log says how many there are.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints import Position
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError
from shallow_mirror.sinks.kafka.preserved import HeldRecords
from shallow_mirror.types import OffsetRange, Segment, SegmentKind, SourcePartition

COUNT_S = 20.0
"""So long logs are read; of what is left then, each offset counts as a record."""

LOOK_OFFSETS = 100_000
"""So many offsets are looked at before it counts that none of them is a copy."""

_log = logging.getLogger(__name__)


def undecided_ends(
    target: Cluster, positions: Mapping[SourcePartition, Position], ends: Mapping[SourcePartition, int], deadline: Deadline
) -> dict[SourcePartition, int]:
    """Return where the copies of each partition end: where the map does, or in a log with preserved offsets behind it.

    `ends`: of these logs when the mirror was fenced. What others had written there has the offsets of records that only the
    source has, and is no copy of them. Raises RetriableError.
    """
    copied = {source: position.offset for source, position in positions.items()}
    longer = {
        source: position
        for source, position in sorted(positions.items())
        if position.shared_producer_id is not None and ends.get(source, 0) > position.offset
    }
    topics = sorted({position.target.topic for position in longer.values()})
    listed = target.metadata(topics, deadline).topics if topics else {}
    held = HeldRecords(target)
    for source, position in longer.items():
        if listed[position.target.topic].topic_id != position.target.topic_id or position.shared_producer_id is None:
            continue  # it was created again: nothing there is a copy
        at = position.offset
        while at < ends[source]:
            until = min(at + LOOK_OFFSETS, ends[source])
            span = Segment(source=source, source_start=at, source_end=until, kind=SegmentKind.DATA, target=position.target)
            found = max((each.source_end for each in held.segments(span, position.shared_producer_id, deadline)), default=at)
            if found == at:
                break
            copied[source] = at = found
    return copied


def undecided_copies(
    target: Cluster, positions: Mapping[SourcePartition, Position], ranges: Mapping[SourcePartition, OffsetRange]
) -> Iterator[Segment]:
    """Yield the copies in `ranges` of logs with preserved offsets; others hold nothing that is visible and not in the map.

    Records are counted without fillers. What cannot be read is one segment with as many records as offsets, which is the most
    that there can be: figures that are too high are better than none, and this is done when the groups have been moved.
    """
    deadline = Deadline.after_ms(COUNT_S * 1000, time.monotonic)
    held = HeldRecords(target)
    for source, offsets in sorted(ranges.items()):
        position = positions.get(source)
        if position is None or position.shared_producer_id is None:
            continue
        at = max(offsets.start, position.offset)
        if at >= offsets.end:
            continue
        span = Segment(source=source, source_start=at, source_end=offsets.end, kind=SegmentKind.DATA, target=position.target)
        try:
            for segment in held.segments(span, position.shared_producer_id, deadline):
                yield segment
                at = segment.source_end
        except MirrorError as error:
            _log.warning(
                "%s: offsets %d to %d of the target cannot be counted, each is taken for a record: %s",
                source.topic_partition,
                at,
                offsets.end - 1,
                error,
            )
            yield replace(span, source_start=at, record_count=offsets.end - at)
