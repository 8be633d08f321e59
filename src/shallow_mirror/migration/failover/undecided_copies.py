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

_log = logging.getLogger(__name__)


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
