"""Driver: what retention deleted in front of the positions, as rows of the map, where the mirror file lets it go on."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.checkpoints.schema import DecidedSegment
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import DataLossError
from shallow_mirror.types import IsolationLevel, Segment, SegmentKind, SourcePartition, TargetPartition

_log = logging.getLogger(__name__)

_EARLIEST = -2


def expired_rows(
    loss: DataLossError,
    positions: Mapping[SourcePartition, int],
    targets: Mapping[SourcePartition, TargetPartition],
    source: Cluster,
    deadline: Deadline,
) -> tuple[DecidedSegment, ...]:
    """Of all partitions of the topic that lost something. They stand by themselves, without a transaction.

    Raises `loss` where it was not retention: a log that was truncated goes on with other records. Raises RetriableError.
    """
    if loss.log_start_offset is None or loss.log_start_offset <= loss.expected_offset:
        raise loss
    topic = loss.topic_partition.topic
    topic_id = source.metadata([topic], deadline).topics[topic].topic_id
    ours = {one.topic_partition: one for one in positions if (one.topic, one.topic_id) == (topic, topic_id)}
    starts = source.list_offsets(dict.fromkeys(ours, _EARLIEST), IsolationLevel.READ_UNCOMMITTED, deadline)
    rows = []
    for place, one in sorted(ours.items()):
        position, start = positions[one], starts[place].offset
        if start <= position:
            continue
        _log.warning(
            "%s: retention deleted offsets %d to %d before they were copied; going on from there", place, position, start
        )
        expired = Segment(source=one, source_start=position, source_end=start, kind=SegmentKind.EXPIRED, target=targets[one])
        rows.append(DecidedSegment(expired, None))
    if not rows:
        raise loss
    return tuple(rows)
