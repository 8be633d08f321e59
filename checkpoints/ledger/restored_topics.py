"""Driver: the table `restored_topics`: target topics that a restore creates, with the settings that pause their retention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

from shallow_mirror.checkpoints.rows.codec import Column, Inline, Int32, TimeMs, row_codec
from shallow_mirror.checkpoints.tables.storage import DurableTable, TableStorage

RESTORED_TOPICS_TABLE = "restored_topics"


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedTopic:
    """A target topic that did not exist, and that a restore created with these settings in the place of the archived ones."""

    source_topic: str
    target_topic: str
    settings: Annotated[Mapping[str, str], Column("paused_settings")]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoredTopicRow:
    """A row of the table."""

    topic: Annotated[PausedTopic, Inline()]
    run_epoch: Int32
    created_at_ms: TimeMs


RESTORED_TOPICS = row_codec(RestoredTopicRow)


class RestoredTopicsTable:
    """Raises as `DurableTable`."""

    def __init__(self, table: DurableTable[RestoredTopicRow]) -> None:
        self._table = table

    @classmethod
    def of(cls, storage: TableStorage) -> RestoredTopicsTable:
        return cls(storage.durable_table(RESTORED_TOPICS_TABLE, RESTORED_TOPICS))

    def record(self, topics: Iterable[PausedTopic], *, run_epoch: int, at_ms: int) -> None:
        """Append topics that are about to be created: a run that ends in between leaves one row too many, not one too few."""
        rows = [RestoredTopicRow(topic=topic, run_epoch=run_epoch, created_at_ms=at_ms) for topic in topics]
        if rows:
            self._table.append(rows)

    def read(self) -> dict[str, PausedTopic]:
        """Return the topics by archived topic, as the last row has them."""
        rows = sorted(self._table.read(), key=lambda row: (row.run_epoch, row.created_at_ms))
        return {row.topic.source_topic: row.topic for row in rows}
