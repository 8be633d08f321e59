"""Driver: rows of the map for offsets that retention deleted before they were copied (`read.on_data_loss: continue`)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import DataLossError
from shallow_mirror.types import EARLIEST_TIMESTAMP, IsolationLevel, Segment, SegmentKind, SourcePartition, TargetPartition

_log = logging.getLogger(__name__)


def expired_rows(
    loss: DataLossError,
    positions: Mapping[SourcePartition, int],
    targets: Mapping[SourcePartition, TargetPartition],
    lineages: Mapping[SourcePartition, int],
    source: Cluster,
    deadline: Deadline,
) -> tuple[DecidedSegment, ...]:
    """Return one row for each partition of the topic that lost something. They have no transaction.

    Raises `loss` if it was not retention: a log that was truncated continues with other records. Raises RetriableError.
    """
    if loss.log_start_offset is None or loss.log_start_offset <= loss.expected_offset:
        raise loss
    topic = loss.topic_partition.topic
    topic_id = source.metadata([topic], deadline).topics[topic].topic_id
    sources = {source.topic_partition: source for source in positions if (source.topic, source.topic_id) == (topic, topic_id)}
    starts = source.list_offsets(dict.fromkeys(sources, EARLIEST_TIMESTAMP), IsolationLevel.READ_UNCOMMITTED, deadline)
    rows = []
    for topic_partition, source_partition in sorted(sources.items()):
        position, start = positions[source_partition], starts[topic_partition].offset
        if start <= position:
            continue
        expired = Segment(
            source=source_partition,
            source_start=position,
            source_end=start,
            kind=SegmentKind.EXPIRED,
            target=targets[source_partition],
            lineage=lineages.get(source_partition, 0),
        )
        rows.append(DecidedSegment(expired, None))
    if not rows:
        raise loss
    return tuple(rows)


def log_expired(rows: Iterable[DecidedSegment]) -> None:
    """Log offsets that no cluster has any more. The sink has taken out those that the target holds since an earlier run."""
    for row in rows:
        expired = row.segment
        if expired.kind is SegmentKind.EXPIRED:
            _log.warning(
                "%s: retention deleted offsets %d to %d before they were copied; continuing behind them",
                expired.source.topic_partition,
                expired.source_start,
                expired.source_end - 1,
            )
