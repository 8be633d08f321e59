"""Driver: how much a restore writes to each topic, and how old it is, from the rows of the archive alone."""

from __future__ import annotations

from collections.abc import Collection

from shallow_mirror.checkpoints.ledger import ArchiveTable, RestoreRanges
from shallow_mirror.checkpoints.rows import SegmentState
from shallow_mirror.checkpoints.tables import Comparison
from shallow_mirror.sinks.kafka.targets.settings import RestoredAmount
from shallow_mirror.types import SourcePartition

_COLUMNS = [
    "source_topic",
    "source_topic_id",
    "source_partition",
    "lineage",
    "source_start",
    "source_end",
    "min_timestamp_ms",
    "max_timestamp_ms",
    "record_count",
    "size_bytes",
]


def restored_amounts(table: ArchiveTable, decided: RestoreRanges, topics: Collection[str]) -> dict[str, RestoredAmount]:
    """Return the amount of each of these topics. Of rows that are restored in part all is counted."""
    amounts = {topic: RestoredAmount() for topic in topics}
    if not amounts:
        return amounts
    condition = (
        Comparison("micro_batch", "<=", decided.last_decision),
        Comparison("state", "=", SegmentState.COPY_SEGMENT_FINISHED.value),
        Comparison("record_count", ">", 0),
    )
    for piece in table.pieces(condition, _COLUMNS):
        for topic, topic_id, partition, lineage, start, end, oldest_ms, newest_ms, records, size_bytes in zip(
            *(piece[name].to_pylist() for name in _COLUMNS), strict=True
        ):
            if topic not in amounts:
                continue
            source = SourcePartition(topic, topic_id, partition)
            offsets = decided.ranges.get(source)
            if offsets is None or start >= offsets.end or end <= offsets.start or (lineage or 0) > decided.lineages[source]:
                continue
            newest_ms = -1 if newest_ms is None else newest_ms
            amounts[topic].add(partition, newest_ms if oldest_ms is None else oldest_ms, newest_ms, records, size_bytes)
    return amounts
