"""Driver: rows of the map for offsets that retention deleted before they were copied (`read.on_data_loss: continue`)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import DataLossError, RetriableError
from shallow_mirror.types import (
    EARLIEST_TIMESTAMP,
    IsolationLevel,
    Segment,
    SegmentKind,
    SourcePartition,
    TargetPartition,
    TopicPartition,
)

_log = logging.getLogger(__name__)

_OTHERS_PATIENCE_MS = 2_000
"""How long the leaders of other partitions of the topic are waited for: what those have lost, their slots find out as well."""


def expired_rows(
    loss: DataLossError,
    positions: Mapping[SourcePartition, int],
    targets: Mapping[SourcePartition, TargetPartition],
    lineages: Mapping[SourcePartition, int],
    source: Cluster,
    deadline: Deadline,
) -> tuple[DecidedSegment, ...]:
    """Return one row for each partition of the topic that lost something. They have no transaction.

    Other partitions than that of `loss` have none if their leaders do not answer. Raises `loss` if it was not retention: a log
    that was truncated continues with other records. Raises RetriableError.
    """
    if loss.log_start_offset is None or loss.log_start_offset <= loss.expected_offset:
        raise loss
    topic = loss.topic_partition.topic
    listed = source.metadata([topic], deadline).topics[topic]
    topic_id = listed.topic_id
    sources = {source.topic_partition: source for source in positions if (source.topic, source.topic_id) == (topic, topic_id)}
    if loss.topic_partition not in sources:
        raise loss
    led = {number for number, partition in listed.partitions.items() if partition.leader >= 0}
    starts = _log_starts(loss.topic_partition, [name for name in sources if name.partition in led], source, deadline)
    rows = []
    for topic_partition, start in sorted(starts.items()):
        source_partition = sources[topic_partition]
        position = positions[source_partition]
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


def _log_starts(
    lost: TopicPartition, led: Collection[TopicPartition], source: Cluster, deadline: Deadline
) -> dict[TopicPartition, int]:
    """Return the log start of a partition, and those of others if all their leaders answer soon. Raises RetriableError."""
    wanted, isolation = dict.fromkeys((lost, *led), EARLIEST_TIMESTAMP), IsolationLevel.READ_UNCOMMITTED
    try:
        starts = source.list_offsets(wanted, isolation, deadline.sooner(_OTHERS_PATIENCE_MS))
    except RetriableError as error:
        _log.info("what other partitions of %s have lost is found out later: %s", lost.topic, error)
        starts = source.list_offsets({lost: EARLIEST_TIMESTAMP}, isolation, deadline)
    return {topic_partition: start.offset for topic_partition, start in starts.items()}


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
