"""Driver: the table `restored_topics`: target topics that a restore creates, with the settings that pause their retention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from shallow_mirror.checkpoints.schema import TIMESTAMP
from shallow_mirror.checkpoints.storage import DurableTable, MirrorStorage

RESTORED_TOPICS_TABLE = "restored_topics"

RESTORED_TOPICS = pa.schema(
    [
        ("source_topic", pa.string()),
        ("target_topic", pa.string()),
        ("paused_settings", pa.map_(pa.string(), pa.string())),
        ("run_epoch", pa.int32()),
        ("created_at", TIMESTAMP),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PausedTopic:
    """A target topic that did not exist, and that a restore created with these settings in the place of the archived ones."""

    source_topic: str
    target_topic: str
    settings: Mapping[str, str]


class RestoredTopicsTable:
    """Raises as `DurableTable`."""

    def __init__(self, table: DurableTable) -> None:
        self._table = table

    @classmethod
    def of(cls, storage: MirrorStorage) -> RestoredTopicsTable:
        return cls(storage.durable_table(RESTORED_TOPICS_TABLE))

    def record(self, topics: Iterable[PausedTopic], *, run_epoch: int, at_ms: int) -> None:
        """Append topics that are about to be created: a run that ends in between leaves one row too many, not one too few."""
        rows = [
            {
                "source_topic": topic.source_topic,
                "target_topic": topic.target_topic,
                "paused_settings": sorted(topic.settings.items()),
                "run_epoch": run_epoch,
                "created_at": datetime.fromtimestamp(at_ms / 1000, UTC),
            }
            for topic in topics
        ]
        if rows:
            self._table.append(pa.Table.from_pylist(rows, schema=RESTORED_TOPICS))

    def read(self) -> dict[str, PausedTopic]:
        """Return the topics by archived topic, as the last row has them."""
        rows = sorted(self._table.read((), None), key=lambda row: (row["run_epoch"], row["created_at"]))
        return {
            row["source_topic"]: PausedTopic(
                source_topic=row["source_topic"],
                target_topic=row["target_topic"],
                settings=dict(row["paused_settings"]),  # Arrow gives pairs, Spark a mapping
            )
            for row in rows
        }
