"""Driver: the table `created_topics`: target topics that a mirror has created without settings that could refuse records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from shallow_mirror.checkpoints.rows.codec import Inline, Int32, TimeMs, row_codec
from shallow_mirror.checkpoints.tables.storage import DurableTable, TableStorage

CREATED_TOPICS_TABLE = "created_topics"


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTopic:
    """A target topic whose settings get the values of its source topic once the records of that time are copied."""

    source_topic: str
    source_topic_id: str
    target_topic: str
    held_settings: tuple[str, ...]
    """Empty: they have got them."""
    source_ends: tuple[int, ...]
    """Of the log of each partition, in their order, when the source's settings were read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTopicRow:
    """A row of the table."""

    created: Annotated[CreatedTopic, Inline()]
    run_epoch: Int32
    at_ms: TimeMs


CREATED_TOPICS = row_codec(CreatedTopicRow)


class CreatedTopicsTable:
    """Raises as `DurableTable`."""

    def __init__(self, table: DurableTable[CreatedTopicRow]) -> None:
        self._table = table

    @classmethod
    def of(cls, storage: TableStorage) -> CreatedTopicsTable:
        return cls(storage.durable_table(CREATED_TOPICS_TABLE, CREATED_TOPICS))

    def record(self, topics: Iterable[CreatedTopic], *, run_epoch: int, at_ms: int) -> None:
        rows = [CreatedTopicRow(created=topic, run_epoch=run_epoch, at_ms=at_ms) for topic in topics]
        if rows:
            self._table.append(rows)

    def read(self) -> dict[str, CreatedTopic]:
        """Return the topics by source topic, as the last row has them."""
        rows = sorted(self._table.read(), key=lambda row: (row.run_epoch, row.at_ms))
        return {row.created.source_topic: row.created for row in rows}
