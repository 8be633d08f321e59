"""Commands: how far MirrorMaker 2 has copied each partition, by the offsets that Kafka Connect keeps, and by the records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.mirror_maker.running.internal_records import parse_copied_offset
from shallow_mirror.mirror_maker.running.log_reader import ByteBudget, LogReader
from shallow_mirror.mirror_maker.running.names import MirrorMakerNames
from shallow_mirror.mirror_maker.running.record_search import KEY_AND_VALUE, WITHOUT_HEADERS
from shallow_mirror.types import OffsetRange, TopicPartition

_OFFSETS_BYTES = 256 << 20
"""Of Connect's topic at most so much is read."""
_COUNTED_BYTES = 4 << 20
"""Of a source partition at most so much is read to count records; a larger lag is given in offsets."""
_LAST_BYTES = 256 << 20
"""The last record of a log is compared if it is within so many bytes of the end."""


class RecordedOffset(NamedTuple):
    """The source offset behind the last record that was copied, as Connect has recorded it."""

    offset: int
    recorded_at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedPartition:
    """How far a partition is copied. `recorded` None: Connect has no offset of it."""

    source: TopicPartition
    copy: TopicPartition
    recorded: RecordedOffset | None
    log_end: int
    lag_records: int
    is_counted: bool
    """Whether the lag counts records; else offsets, so that the lag is at most that."""
    has_same_end: bool
    """Whether the last record of both logs is the same."""

    @property
    def is_copied(self) -> bool:
        return self.lag_records == 0 and self.has_same_end

    def document(self) -> dict[str, Any]:
        return {
            "topic": self.source.topic,
            "partition": self.source.partition,
            "copy": self.copy.topic,
            "copied": None if self.recorded is None else self.recorded.offset,
            "recorded_at": None if self.recorded is None else time_text(self.recorded.recorded_at_ms),
            "log_end": self.log_end,
            "lag_records": self.lag_records,
            "is_counted": self.is_counted,
            "has_same_end": self.has_same_end,
        }


@dataclass(frozen=True, slots=True)
class Copies:
    """The partitions of the source that the mirror includes, by their copies of MirrorMaker 2, and those without one."""

    sources: Mapping[TopicPartition, TopicPartition]
    missing: tuple[TopicPartition, ...]


def copies_of(config: MirrorConfig, names: MirrorMakerNames, source: LogReader, target: LogReader) -> Copies:
    """Raise ConfigError if MirrorMaker 2 has copied nothing that the mirror includes."""
    at_target = target.partitions()
    included = [
        TopicPartition(topic, partition)
        for topic, partitions in sorted(source.partitions().items())
        if config.topics.is_included(topic)
        for partition in partitions
    ]
    copies = {partition: TopicPartition(names.target_topic(partition.topic), partition.partition) for partition in included}
    existing = {copy: partition for partition, copy in copies.items() if copy.partition in at_target.get(copy.topic, ())}
    if not existing:
        raise ConfigError(
            f"{target.where} has no topic {names.target_topic('TOPIC')} of a mirrored topic: MirrorMaker 2 has copied none, it "
            "names them in another way (--target-name), or the mirror's user may not Describe them"
        )
    return Copies(existing, tuple(partition for partition, copy in copies.items() if copy not in existing))


def recorded_offsets(names: MirrorMakerNames, topic: str, target: LogReader) -> dict[TopicPartition, RecordedOffset]:
    """Return what Connect has recorded in a topic. Raises ConfigError if it is not there."""
    partitions = target.partitions().get(topic)
    if not partitions:
        raise ConfigError(
            f"{target.where} has no topic {topic}, in which Kafka Connect keeps offsets: MirrorMaker 2 has not run here, its "
            "workers have another offset.storage.topic (--offsets-topic), or the mirror's user may not Describe it"
        )
    places = [TopicPartition(topic, partition) for partition in partitions]
    recorded: dict[TopicPartition, RecordedOffset] = {}
    budget = ByteBudget(_OFFSETS_BYTES)
    for place, held in target.ranges(places).items():
        for records in target.records(place, held, budget):
            for record in records:
                copied = parse_copied_offset(record.key, record.value)
                if copied is None or copied.cluster != names.source:
                    continue
                recorded.pop(copied.topic_partition, None)
                if copied.offset is not None:
                    recorded[copied.topic_partition] = RecordedOffset(copied.offset + 1, record.timestamp_ms)
    if budget.is_exceeded:
        raise ConfigError(
            f"{target.where}: {topic} has more than {_OFFSETS_BYTES >> 20} MiB: it is not compacted, or another topic"
        )
    return recorded


def copied_partitions(
    copies: Mapping[TopicPartition, TopicPartition],
    recorded: Mapping[TopicPartition, RecordedOffset],
    source: LogReader,
    target: LogReader,
) -> list[CopiedPartition]:
    """Return the state of each copy, in order. `source` is read with the isolation of MirrorMaker 2."""
    at_target, at_source = target.ranges(copies), source.ranges(list(copies.values()))
    append_times = {topic: target.is_append_time(topic) for topic in {copy.topic for copy in copies}}
    result = []
    for copy, partition in sorted(copies.items()):
        held, offset = at_source[partition], recorded.get(partition)
        rest = OffsetRange(min(held.end, max(held.start, offset.offset if offset is not None else 0)), held.end)
        budget = ByteBudget(_COUNTED_BYTES)
        count = sum(len(rows) for rows in source.rows(partition, rest, budget))
        is_counted = not budget.is_exceeded
        compared = KEY_AND_VALUE if append_times[copy.topic] else WITHOUT_HEADERS
        # Not more than one record: after a restart those before it may have been copied again.
        last, copied_last = _last(source, partition, held, compared), _last(target, copy, at_target[copy], compared)
        result.append(
            CopiedPartition(
                source=partition,
                copy=copy,
                recorded=offset,
                log_end=held.end,
                lag_records=count if is_counted else rest.end - rest.start,
                is_counted=is_counted,
                has_same_end=last is not None and last == copied_last,
            )
        )
    return result


def _last(reader: LogReader, place: TopicPartition, held: OffsetRange, compared: slice) -> bytes | None:
    """Return the content of the last record of a log; empty: it has none. None: that is too large to be read."""
    rows = reader.rows_around(place, held, held.end, 1, 0, ByteBudget(_LAST_BYTES))
    return None if rows is None else rows[-1].content[compared] if rows else b""


def time_text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
