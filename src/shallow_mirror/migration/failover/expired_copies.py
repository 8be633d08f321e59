"""Driver: what the target has deleted of its copies by retention although the old source keeps it for longer."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints import OffsetMap, Position
from shallow_mirror.deadline import request_deadline
from shallow_mirror.migration.failover.copies_below import ends_below
from shallow_mirror.types import EARLIEST_TIMESTAMP, IsolationLevel, SourcePartition

_RETENTION = ("cleanup.policy", "retention.ms", "retention.bytes")


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
    ends = ends_below(offset_map, cut)
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
