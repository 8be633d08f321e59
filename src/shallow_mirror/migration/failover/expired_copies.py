"""Driver: what the target has deleted of its copies by retention although the old source keeps it for longer."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints import OffsetMap, Position
from shallow_mirror.checkpoints.tables import Comparison
from shallow_mirror.deadline import request_deadline
from shallow_mirror.types import EARLIEST_TIMESTAMP, IsolationLevel, SegmentKind, SourcePartition

_RETENTION = ("cleanup.policy", "retention.ms", "retention.bytes")
_COLUMNS = ["source_partition", "source_start", "source_end", "target_start", "target_end"]


def expired_ends(
    source: Cluster, target: Cluster, positions: Mapping[SourcePartition, Position], offset_map: OffsetMap
) -> dict[SourcePartition, int]:
    """Return the source offset below which the target has deleted its copies, of topics whose retention differs there.

    With the same retention the source deletes these records as well, only by other segments. Raises RetriableError, ConfigError.
    """
    names = {source_partition: position.target.topic_partition for source_partition, position in positions.items()}
    timestamps = dict.fromkeys(names.values(), EARLIEST_TIMESTAMP)
    starts = target.list_offsets(timestamps, IsolationLevel.READ_UNCOMMITTED, request_deadline()) if names else {}
    cut = {each: starts[name].offset for each, name in names.items() if starts[name].offset > 0}
    differing = _differing(source, target, {each.topic: positions[each].target.topic for each in cut})
    cut = {each: start for each, start in cut.items() if each.topic in differing}
    ends: dict[SourcePartition, int] = {}
    for topic, topic_id in sorted({(each.topic, each.topic_id) for each in cut}):
        of_topic = {each.partition: start for each, start in cut.items() if (each.topic, each.topic_id) == (topic, topic_id)}
        found = _source_ends(offset_map, topic, topic_id, of_topic)
        ends |= {SourcePartition(topic, topic_id, partition): end for partition, end in found.items()}
    # The newest copies of a preserved log may be in no row.
    preserved = {each: start for each, start in cut.items() if positions[each].shared_producer_id is not None}
    return ends | {each: max(start, ends.get(each, 0)) for each, start in preserved.items()}


def _differing(source: Cluster, target: Cluster, topics: Mapping[str, str]) -> Collection[str]:
    """Return the topics of which the two clusters do not delete the same. `topics`: target topics by source topic."""
    if not topics:
        return ()
    here = source.topic_configs(sorted(topics), request_deadline(), keys=_RETENTION)
    there = target.topic_configs(sorted({*topics.values()}), request_deadline(), keys=_RETENTION)
    return {topic for topic, copy in topics.items() if here[topic] != there[copy]}


def _source_ends(offset_map: OffsetMap, topic: str, topic_id: str, starts: Mapping[int, int]) -> dict[int, int]:
    """Return the source offsets of a topic up to which the copies lie below log starts of the target, by partition."""
    log_starts = np.zeros(max(starts) + 2, np.int64)  # the last one is that of all partitions behind them
    log_starts[list(starts)] = list(starts.values())
    ends = np.zeros_like(log_starts)
    condition = (
        Comparison("source_topic", "=", topic),
        Comparison("source_topic_id", "=", topic_id),
        # Records that were released from quarantine are behind their neighbours, and say nothing of these.
        Comparison("kind", "=", SegmentKind.DATA.value),
    )
    for rows in offset_map.settled_pieces(condition, _COLUMNS):
        partitions, first, end, copy, copy_end = (np.asarray(rows.column(name).to_numpy(), np.int64) for name in _COLUMNS)
        partitions = np.minimum(partitions, len(log_starts) - 1)
        log_start = log_starts[partitions]
        up_to = np.where(copy_end <= log_start, end, np.where(copy < log_start, first + log_start - copy, 0))
        np.maximum.at(ends, partitions, up_to)
    return {partition: int(ends[partition]) for partition in starts}
