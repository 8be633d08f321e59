"""Pure: where the batches of one source topic go."""

from __future__ import annotations

from dataclasses import dataclass

from shallow_mirror.types import BatchLimits, SourcePartition, TargetPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedTopic:
    """Where the batches of one source topic go, and what its target topic accepts.

    `is_preserved`: every record keeps its offset (`topics.offsets`). `is_compacted`: log compaction removes records there.
    """

    target_topic: str
    target_topic_id: str
    limits: BatchLimits
    is_preserved: bool = False
    is_compacted: bool = False

    def target_of(self, source: SourcePartition) -> TargetPartition:
        return TargetPartition(self.target_topic, self.target_topic_id, source.partition)
