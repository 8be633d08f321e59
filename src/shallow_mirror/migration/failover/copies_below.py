"""Driver: up to which source offset the copies lie below an offset of the target."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.tables import Comparison
from shallow_mirror.types import SegmentKind, SourcePartition

_COLUMNS = ["source_partition", "source_start", "source_end", "target_start", "target_end"]


def ends_below(offset_map: OffsetMap, bounds: Mapping[SourcePartition, int]) -> dict[SourcePartition, int]:
    """Return the source offset behind the last record whose copy lies below the target offset `bounds`; 0: no copy does."""
    ends: dict[SourcePartition, int] = {}
    for topic, topic_id in sorted({(each.topic, each.topic_id) for each in bounds}):
        of_topic = {each.partition: bound for each, bound in bounds.items() if (each.topic, each.topic_id) == (topic, topic_id)}
        found = _ends_of_topic(offset_map, topic, topic_id, of_topic)
        ends |= {SourcePartition(topic, topic_id, partition): end for partition, end in found.items()}
    return ends


def _ends_of_topic(offset_map: OffsetMap, topic: str, topic_id: str, bounds: Mapping[int, int]) -> dict[int, int]:
    """Return the same of one topic, by number of the partition, which is that of the target as well."""
    by_partition = np.zeros(max(bounds) + 2, np.int64)  # the last one is that of all partitions behind them
    by_partition[list(bounds)] = list(bounds.values())
    ends = np.zeros_like(by_partition)
    condition = (
        Comparison("source_topic", "=", topic),
        Comparison("source_topic_id", "=", topic_id),
        # Records that were released from quarantine are behind their neighbours, and say nothing of these.
        Comparison("kind", "=", SegmentKind.DATA.value),
    )
    for rows in offset_map.settled_pieces(condition, _COLUMNS):
        partitions, first, end, copy, copy_end = (np.asarray(rows.column(name).to_numpy(), np.int64) for name in _COLUMNS)
        partitions = np.minimum(partitions, len(by_partition) - 1)
        bound = by_partition[partitions]
        up_to = np.where(copy_end <= bound, end, np.where(copy < bound, first + bound - copy, 0))
        np.maximum.at(ends, partitions, up_to)
    return {partition: int(ends[partition]) for partition in bounds}
