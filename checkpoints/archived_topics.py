"""Driver: the table `archive_topics`: partitions and settings of the topics of an archive, whenever they were seen to change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from shallow_mirror.checkpoints.schema import TIMESTAMP, ms_of
from shallow_mirror.checkpoints.storage import DurableTable, MirrorStorage
from shallow_mirror.errors import ConfigError

ARCHIVE_TOPICS_TABLE = "archive_topics"

ARCHIVE_TOPICS = pa.schema(
    [
        ("source_topic", pa.string()),
        ("source_topic_id", pa.string()),
        ("partitions", pa.int32()),
        ("configs", pa.map_(pa.string(), pa.string())),
        ("run_epoch", pa.int32()),
        ("micro_batch", pa.int64()),
        ("seen_at", TIMESTAMP),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic of the source. `configs`: its settings as brokers return them, defaults included."""

    topic: str
    topic_id: str
    partitions: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SeenTopic:
    """A row of the table: what was seen, and when."""

    at_ms: int
    description: TopicDescription


class ArchivedTopics:
    """Reads and appends. Raises as `DurableTable`."""

    def __init__(self, table: DurableTable) -> None:
        self._table = table

    @classmethod
    def of(cls, storage: MirrorStorage) -> ArchivedTopics:
        return cls(storage.durable_table(ARCHIVE_TOPICS_TABLE))

    def record(self, topics: Iterable[TopicDescription], *, run_epoch: int, micro_batch: int, at_ms: int) -> None:
        """Append the topics that are not as they were recorded last. `micro_batch`: the newest decision so far."""
        known = self.latest()
        changed = [topic for topic in topics if known.get(topic.topic_id) != topic]
        if not changed:
            return
        at = datetime.fromtimestamp(at_ms / 1000, UTC)
        rows = [
            {
                "source_topic": topic.topic,
                "source_topic_id": topic.topic_id,
                "partitions": topic.partitions,
                "configs": sorted(topic.configs.items()),
                "run_epoch": run_epoch,
                "micro_batch": micro_batch,
                "seen_at": at,
            }
            for topic in changed
        ]
        self._table.append(pa.Table.from_pylist(rows, schema=ARCHIVE_TOPICS))

    def latest(self, micro_batch: int | None = None) -> dict[str, TopicDescription]:
        """Return the last description of each topic, by topic id: as it was seen up to a decision, or at first behind it."""
        newest: dict[str, tuple[tuple[bool, int, datetime], TopicDescription]] = {}
        for row in self._table.read((), None):
            description = _description(row)
            is_in_time = micro_batch is None or row["micro_batch"] <= micro_batch
            order = (is_in_time, row["micro_batch"] if is_in_time else -row["micro_batch"], row["seen_at"])
            before = newest.get(description.topic_id)
            if before is None or before[0] <= order:
                newest[description.topic_id] = (order, description)
        return {topic_id: description for topic_id, (_, description) in newest.items()}

    def history(self) -> list[SeenTopic]:
        """Return every description, in no order."""
        return [SeenTopic(ms_of(row["seen_at"]), _description(row)) for row in self._table.read((), None)]

    def described(self, topic_ids: Mapping[str, str], micro_batch: int) -> dict[str, TopicDescription]:
        """Return the description of each topic as it was at a decision. `topic_ids`: by name. Raises ConfigError without one."""
        known = self.latest(micro_batch)
        missing = sorted(topic for topic, topic_id in topic_ids.items() if topic_id not in known)
        if missing:
            raise ConfigError(
                f"the table archive_topics does not describe {', '.join(missing)}: run `shallow-mirror archive run` once, or "
                "restore the table from a copy"
            )
        return {topic: known[topic_id] for topic, topic_id in topic_ids.items()}


def _description(row: Mapping[str, Any]) -> TopicDescription:
    return TopicDescription(
        topic=row["source_topic"],
        topic_id=row["source_topic_id"],
        partitions=row["partitions"],
        configs=_pairs(row["configs"]),
    )


def _pairs(configs: Sequence[tuple[str, str]] | Mapping[str, str]) -> dict[str, str]:
    """Return a map column's value: Arrow gives pairs, Spark a mapping."""
    return dict(configs)
