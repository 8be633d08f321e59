"""Driver: the table `created_topics`: target topics that a mirror has created without settings that could refuse records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from shallow_mirror.checkpoints.schema import TIMESTAMP
from shallow_mirror.checkpoints.storage import DurableTable, MirrorStorage

CREATED_TOPICS_TABLE = "created_topics"

CREATED_TOPICS = pa.schema(
    [
        ("source_topic", pa.string()),
        ("source_topic_id", pa.string()),
        ("target_topic", pa.string()),
        ("held_settings", pa.list_(pa.string())),
        ("source_ends", pa.list_(pa.int64())),
        ("run_epoch", pa.int32()),
        ("at", TIMESTAMP),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CreatedTopic:
    """A target topic whose `held_settings` get the values of its source topic once what the source held is copied.

    Without `held_settings` they have got them. `source_ends`: of the log of each partition, when the source's settings were read.
    """

    source_topic: str
    source_topic_id: str
    target_topic: str
    held_settings: tuple[str, ...]
    source_ends: Mapping[int, int]


class CreatedTopicsTable:
    """Raises as `DurableTable`."""

    def __init__(self, table: DurableTable) -> None:
        self._table = table

    @classmethod
    def of(cls, storage: MirrorStorage) -> CreatedTopicsTable:
        return cls(storage.durable_table(CREATED_TOPICS_TABLE))

    def record(self, topics: Iterable[CreatedTopic], *, run_epoch: int, at_ms: int) -> None:
        rows = [
            {
                "source_topic": topic.source_topic,
                "source_topic_id": topic.source_topic_id,
                "target_topic": topic.target_topic,
                "held_settings": list(topic.held_settings),
                "source_ends": [topic.source_ends[partition] for partition in range(len(topic.source_ends))],
                "run_epoch": run_epoch,
                "at": datetime.fromtimestamp(at_ms / 1000, UTC),
            }
            for topic in topics
        ]
        if rows:
            self._table.append(pa.Table.from_pylist(rows, schema=CREATED_TOPICS))

    def read(self) -> dict[str, CreatedTopic]:
        """Return the topics by source topic, as the last row has them."""
        rows = sorted(self._table.read((), None), key=lambda row: (row["run_epoch"], row["at"]))
        return {
            row["source_topic"]: CreatedTopic(
                source_topic=row["source_topic"],
                source_topic_id=row["source_topic_id"],
                target_topic=row["target_topic"],
                held_settings=tuple(row["held_settings"]),
                source_ends=dict(enumerate(row["source_ends"])),
            )
            for row in rows
        }
