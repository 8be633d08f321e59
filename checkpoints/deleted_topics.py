"""Driver: the tables of topics that are missing at the source, and since when: of an archive, and of a mirror."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import pyarrow as pa

from shallow_mirror.checkpoints.schema import TIMESTAMP, ms_of
from shallow_mirror.checkpoints.storage import DurableTable, MirrorStorage

ARCHIVE_DELETED_TOPICS_TABLE = "archive_deleted_topics"
DELETED_TOPICS_TABLE = "deleted_topics"

DELETED_TOPICS = pa.schema(
    [
        ("source_topic", pa.string()),
        ("source_topic_id", pa.string()),
        ("is_deleted", pa.bool_()),
        ("run_epoch", pa.int32()),
        ("seen_at", TIMESTAMP),
    ]
)
ARCHIVE_DELETED_TOPICS = DELETED_TOPICS


class TopicIncarnation(NamedTuple):
    """A topic that is deleted and created again has another id."""

    topic: str
    topic_id: str


class DeletedTopicsTable:
    """Reads and appends. Raises as `DurableTable`."""

    def __init__(self, table: DurableTable) -> None:
        self._table = table

    @classmethod
    def of_archive(cls, storage: MirrorStorage) -> DeletedTopicsTable:
        return cls(storage.durable_table(ARCHIVE_DELETED_TOPICS_TABLE))

    @classmethod
    def of_mirror(cls, storage: MirrorStorage) -> DeletedTopicsTable:
        return cls(storage.durable_table(DELETED_TOPICS_TABLE))

    def since_ms(self) -> dict[TopicIncarnation, int]:
        """Return when each topic that is missing was first seen to be."""
        newest: dict[TopicIncarnation, tuple[datetime, bool]] = {}
        for row in self._table.read((), None):
            topic = TopicIncarnation(row["source_topic"], row["source_topic_id"])
            if topic not in newest or newest[topic][0] <= row["seen_at"]:
                newest[topic] = row["seen_at"], row["is_deleted"]
        return {topic: ms_of(at) for topic, (at, is_deleted) in newest.items() if is_deleted}

    def record(
        self, known: Mapping[TopicIncarnation, int], missing: Collection[TopicIncarnation], *, run_epoch: int, at_ms: int
    ) -> dict[TopicIncarnation, int]:
        """Append what has changed since `known`, which `since_ms` returned. Return what it would return now."""
        changed = {topic: True for topic in missing if topic not in known} | {
            topic: False for topic in known if topic not in missing
        }
        if changed:
            at = datetime.fromtimestamp(at_ms / 1000, UTC)
            rows = [
                {
                    "source_topic": topic.topic,
                    "source_topic_id": topic.topic_id,
                    "is_deleted": is_deleted,
                    "run_epoch": run_epoch,
                    "seen_at": at,
                }
                for topic, is_deleted in sorted(changed.items())
            ]
            self._table.append(pa.Table.from_pylist(rows, schema=DELETED_TOPICS))
        return {topic: known.get(topic, at_ms) for topic in missing}
