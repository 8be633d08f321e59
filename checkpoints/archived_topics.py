"""Driver: the table `archive_topics`: partitions and settings of the topics of an archive, whenever they were seen to change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa

from shallow_mirror.checkpoints.schema import TIMESTAMP, ms_of
from shallow_mirror.checkpoints.storage import DurableTable, MirrorStorage
from shallow_mirror.checkpoints.table_location import Tables, location_of
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


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTopic:
    """A row of the table."""

    description: TopicDescription
    micro_batch: int
    """The newest decision so far: the topic was like this between it and the next one."""
    seen_at_ms: int


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

    def seen(self) -> list[SeenTopic]:
        """Return all descriptions in the order in which they were seen."""
        rows = [
            SeenTopic(
                description=TopicDescription(
                    topic=row["source_topic"],
                    topic_id=row["source_topic_id"],
                    partitions=row["partitions"],
                    configs=_pairs(row["configs"]),
                ),
                micro_batch=row["micro_batch"],
                seen_at_ms=ms_of(row["seen_at"]),
            )
            for row in self._table.read((), None)
        ]
        return sorted(rows, key=lambda seen: (seen.micro_batch, seen.seen_at_ms))

    def latest(self, micro_batch: int | None = None, *, time_ms: int | None = None) -> dict[str, TopicDescription]:
        """Return the last description of each topic, by topic id: as it was seen up to a decision and a time, else first."""
        known: dict[str, TopicDescription] = {}
        for seen in self.seen():
            is_in_time = micro_batch is None or seen.micro_batch <= micro_batch
            is_in_time = is_in_time and (time_ms is None or seen.seen_at_ms <= time_ms)
            if is_in_time or seen.description.topic_id not in known:
                known[seen.description.topic_id] = seen.description
        return known

    def described(
        self, topic_ids: Mapping[str, str], micro_batch: int, time_ms: int | None = None
    ) -> dict[str, TopicDescription]:
        """Return the description of each topic at a decision and a time, as `latest`. `topic_ids`: by name.

        Raises ConfigError where a topic has none.
        """
        known = self.latest(micro_batch, time_ms=time_ms)
        missing = sorted(topic for topic, topic_id in topic_ids.items() if topic_id not in known)
        if missing:
            raise ConfigError(
                f"the table archive_topics does not describe {', '.join(missing)}: run `shallow-mirror archive run` once, or "
                "restore the table from a copy"
            )
        return {topic: known[topic_id] for topic, topic_id in topic_ids.items()}


def seen_topics(tables: Tables) -> list[SeenTopic]:
    """Return the descriptions beside the table of an archive; none where only its own place is known, or Spark reads it."""
    location = location_of(tables)
    if location.single_table is not None or location.is_read_by_spark:
        return []
    return ArchivedTopics.of(MirrorStorage(location)).seen()


def _pairs(configs: Sequence[tuple[str, str]] | Mapping[str, str]) -> dict[str, str]:
    """Return a map column's value: Arrow gives pairs, Spark a mapping."""
    return dict(configs)
