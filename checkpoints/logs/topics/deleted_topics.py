"""Driver: the tables of topics that are missing at the source, and since when: of an archive, and of a mirror."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from shallow_mirror.checkpoints.rows.codec import Int32, TimeMs, row_codec
from shallow_mirror.checkpoints.tables.storage import DurableTable, TableStorage

ARCHIVE_DELETED_TOPICS_TABLE = "archive_deleted_topics"
DELETED_TOPICS_TABLE = "deleted_topics"


class TopicIncarnation(NamedTuple):
    """A topic that is deleted and created again has another id."""

    topic: str
    topic_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTopicRow:
    """A row of the table: a topic that is missing at the source since then, or is there again."""

    source: TopicIncarnation
    is_deleted: bool
    run_epoch: Int32
    seen_at_ms: TimeMs


# Two tables of one schema: the reference of tables has a section for each of these names.
ARCHIVE_DELETED_TOPICS = DELETED_TOPICS = row_codec(DeletedTopicRow)


class DeletedTopicsTable:
    """Reads and appends. Raises as `DurableTable`."""

    def __init__(self, table: DurableTable[DeletedTopicRow]) -> None:
        self._table = table

    @classmethod
    def of_archive(cls, storage: TableStorage) -> DeletedTopicsTable:
        return cls(storage.durable_table(ARCHIVE_DELETED_TOPICS_TABLE, DELETED_TOPICS))

    @classmethod
    def of_mirror(cls, storage: TableStorage) -> DeletedTopicsTable:
        return cls(storage.durable_table(DELETED_TOPICS_TABLE, DELETED_TOPICS))

    def since_ms(self) -> dict[TopicIncarnation, int]:
        """Return when each topic that is missing was first seen to be."""
        newest = {row.source: row for row in sorted(self._table.read(), key=lambda row: row.seen_at_ms)}
        return {topic: row.seen_at_ms for topic, row in newest.items() if row.is_deleted}

    def record(
        self, known: Mapping[TopicIncarnation, int], missing: Collection[TopicIncarnation], *, run_epoch: int, at_ms: int
    ) -> dict[TopicIncarnation, int]:
        """Append the changes since `known`, which `since_ms` returned. Return its present result."""
        changed = {topic: True for topic in missing if topic not in known} | {
            topic: False for topic in known if topic not in missing
        }
        if changed:
            self._table.append(
                [
                    DeletedTopicRow(source=topic, is_deleted=is_deleted, run_epoch=run_epoch, seen_at_ms=at_ms)
                    for topic, is_deleted in sorted(changed.items())
                ]
            )
        return {topic: known.get(topic, at_ms) for topic in missing}
