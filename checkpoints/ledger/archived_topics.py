"""Driver: the table `archive_topics`: partitions and settings of the topics of an archive, whenever they were seen to change."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

from shallow_mirror.checkpoints.rows.codec import Column, Inline, Int32, TimeMs, row_codec
from shallow_mirror.checkpoints.tables.storage import DurableTable, TableStorage
from shallow_mirror.checkpoints.tables.table_location import Tables, location_of
from shallow_mirror.errors import ConfigError

ARCHIVE_TOPICS_TABLE = "archive_topics"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDescription:
    """A topic of the source. `configs`: its settings as brokers return them, defaults included."""

    topic: Annotated[str, Column("source_topic")]
    topic_id: Annotated[str, Column("source_topic_id")]
    partitions: Int32
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTopic:
    """A row of the table."""

    description: Annotated[TopicDescription, Inline()]
    run_epoch: Int32
    micro_batch: int
    """The newest decision so far: the topic was like this between it and the next one."""
    seen_at_ms: TimeMs


ARCHIVE_TOPICS = row_codec(SeenTopic)


class ArchivedTopics:
    """Reads and appends. Raises as `DurableTable`."""

    def __init__(self, table: DurableTable[SeenTopic]) -> None:
        self._table = table

    @classmethod
    def of(cls, storage: TableStorage) -> ArchivedTopics:
        return cls(storage.durable_table(ARCHIVE_TOPICS_TABLE, ARCHIVE_TOPICS))

    def record(self, topics: Iterable[TopicDescription], *, run_epoch: int, micro_batch: int, at_ms: int) -> None:
        """Append the topics that are not as they were recorded last. `micro_batch`: the newest decision so far."""
        known = self.latest()
        changed = [topic for topic in topics if known.get(topic.topic_id) != topic]
        if not changed:
            return
        self._table.append(
            [SeenTopic(description=topic, run_epoch=run_epoch, micro_batch=micro_batch, seen_at_ms=at_ms) for topic in changed]
        )

    def seen(self) -> list[SeenTopic]:
        """Return all descriptions in the order in which they were seen."""
        return sorted(self._table.read(), key=lambda seen: (seen.micro_batch, seen.seen_at_ms))

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

        Raises ConfigError if a topic has none.
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
    """Return the descriptions beside the table of an archive; none if only its own place is known, or Spark reads it."""
    location = location_of(tables)
    if location.single_table is not None or location.is_read_by_spark:
        return []
    return ArchivedTopics.of(TableStorage(location)).seen()
