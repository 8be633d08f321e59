"""Driver and executors: job of one slot of an archive, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shallow_mirror import routing
from shallow_mirror.sinks.base import Observer
from shallow_mirror.sinks.slot_values import RoutedTopic
from shallow_mirror.sinks.slots.slot_job import SlotJob
from shallow_mirror.types import BatchLimits, IsolationLevel, LogAppendTimePolicy, SourcePartition, TargetPartition

if TYPE_CHECKING:
    from shallow_mirror.config import ArchiveConfig

MAX_ROWS = 200_000
"""Rows that one slot returns; the rest is read in another round."""

_ANY_BATCH = BatchLimits(
    max_message_bytes=(1 << 31) - 1,
    isolation_level=IsolationLevel.READ_COMMITTED,
    log_append_time=LogAppendTimePolicy.KEEP,
)


def archived_partition(source: SourcePartition) -> TargetPartition:
    """Return the target of a partition in an archive, which keeps offsets: the partition itself."""
    return TargetPartition(*source)


class ArchivedTopic(RoutedTopic):
    """A topic whose offsets an archive keeps."""

    def target_of(self, source: SourcePartition) -> TargetPartition:
        return archived_partition(source)


def archived_topic(topic: str) -> ArchivedTopic:
    return ArchivedTopic(target_topic=topic, target_topic_id="", limits=_ANY_BATCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveSlotJob(SlotJob):
    """A slot whose sink is an archive. `decision` is a version: `(run_epoch << 32) | n`.

    A slot is planned for `object_bytes`, and ends where its objects
    have half as much again. `retention_classes` are patterns on topic names: the first that matches counts. `storage_options`
    hold references, not secrets.
    """

    archive_id: str
    source_cluster_id: str
    objects: str
    storage_options: Mapping[str, str]
    object_bytes: int
    retention_classes: tuple[str, ...] = ()

    @classmethod
    def of_archive(cls, config: ArchiveConfig, *, archive_id: str, source_cluster_id: str, observer: Observer) -> ArchiveSlotJob:
        """Return a job without the values of one micro-batch: decision, routes, positions, ends, time."""
        return cls(
            archive_id=archive_id,
            source_cluster_id=source_cluster_id,
            objects=config.objects,
            storage_options=config.storage_options,
            object_bytes=config.object_bytes,
            retention_classes=config.retention_classes,
            decision=0,
            source=config.source.client,
            routes={},
            positions={},
            epoch_ends={},
            isolation=IsolationLevel.READ_COMMITTED,
            fetch_bytes=config.read.fetch_bytes,
            max_segments=MAX_ROWS,
            commit_interval_ms=config.most_writing_ms,
            time_left_ms=0.0,
            leaves_out=True,
            isolates=config.on_error == "isolate",
            continues_after_data_loss=config.read.continues_after_data_loss,
            observer=observer,
        )

    def retention_class_of(self, topic: str) -> int:
        """Return the number of the first pattern that matches, from 1; 0 if none does."""
        numbers = ((pattern, number) for number, pattern in enumerate(self.retention_classes, 1))
        return routing.first_match(topic, numbers) or 0

    def pattern_of(self, retention_class: int) -> str:
        return self.retention_classes[retention_class - 1] if retention_class else ""
