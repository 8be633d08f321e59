"""Driver, for the cli: lift of the paused retention of a restore: the topics that it created get the archived settings."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.admin import set_topic_configs
from shallow_mirror.broker.cluster import reach
from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.ledger import ArchiveTable, PausedTopic, RestoredTopicsTable, RestoreRangesTable
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import RestoreConfig
from shallow_mirror.config.restore_changes import unfinished_partitions
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.plurals import listed
from shallow_mirror.sinks.kafka.targets.settings import RestoredAmount, deletions
from shallow_mirror.streaming.planning import described_topics, restored_amounts

_ANSWER_MS = 30_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LiftedTopic:
    """A target topic that the restore created with its retention paused."""

    topic: str
    target: str
    changes: Mapping[str, str | None]
    """Settings that still have the paused value, with the archived one; None: the default of the target's brokers."""
    kept: Mapping[str, str]
    """Settings that somebody has given another value since. They are left alone."""
    deletes: tuple[str, ...]
    """What the brokers delete of the restored records with the settings that follow."""
    problem: str | None

    def sentences(self, *, is_applied: bool) -> list[str]:
        name = f"target topic {self.target}"
        if self.problem is not None:
            return [f"{name}: {self.problem}"]
        lines = []
        if self.changes:
            values = ", ".join(f"{setting}={_value(value)}" for setting, value in sorted(self.changes.items()))
            lines.append(f"{name}: {'set' if is_applied else 'would set'} {values}")
        else:
            lines.append(f"{name}: its retention is not paused")
        if self.kept:
            values = ", ".join(f"{setting}={value}" for setting, value in sorted(self.kept.items()))
            lines.append(f"{name}: left alone, because it was set since the restore: {values}")
        return lines + [f"{name} then {sentence}" for sentence in self.deletes]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLift:
    restore: str
    is_applied: bool
    topics: tuple[LiftedTopic, ...]

    @property
    def is_fine(self) -> bool:
        return not any(topic.problem for topic in self.topics)

    def document(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {**asdict(self), "is_fine": self.is_fine}

    def sentences(self) -> list[str]:
        if not self.topics:
            return [f"restore {self.restore} has paused the retention of no topic"]
        return [line for topic in self.topics for line in topic.sentences(is_applied=self.is_applied)]


def lift_retention(config: RestoreConfig, spark: Any = None, *, is_applied: bool) -> RetentionLift:
    """Give the topics that the restore created their archived retention, and report the records that brokers delete then.

    Only settings that still have the paused value are changed. `spark`: for tables in a catalog. Raises ConfigError if the
    restore is not complete, RetriableError.
    """
    storage = TableStorage(config.table_location, spark)
    archive_storage = TableStorage(config.archive_table_location, spark)
    decided = RestoreRangesTable.of(storage).read()
    if decided is None:
        raise ConfigError("the restore has not begun: run `shallow-mirror restore` first")
    positions = OffsetMap.open(storage, mirror=config.mirror).positions()
    left = unfinished_partitions(decided, positions)
    if left:
        where = listed(f"{source.topic_partition} at {offsets.start:,} of {offsets.end:,}" for source, offsets in left.items())
        raise ConfigError(
            f"--lift-retention: the restore is not complete ({where}): brokers could delete what is still to be read. Run "
            "`shallow-mirror restore` first"
        )
    table = ArchiveTable.open(archive_storage)
    if table.archive_id != decided.archive_id:
        raise ConfigError(f"archive: the restore was made from archive {decided.archive_id}, here is {table.archive_id}")
    ids = {position.target.topic: position.target.topic_id for position in positions.values()}
    # A topic of another name was created by a start whose file was changed before anything was restored.
    recorded = {source: topic for source, topic in RestoredTopicsTable.of(storage).read().items() if topic.target_topic in ids}
    has_settings = decided.settings is None or decided.settings.configs != "off"
    archived = {
        topic: description.configs if has_settings else {}
        for topic, description in described_topics(archive_storage, decided).items()
    }
    amounts = restored_amounts(table, decided, [topic for topic in recorded if topic in archived])
    deadline = Deadline.after_ms(_ANSWER_MS, time.monotonic)
    with closing(Cluster(config.target.client)) as cluster:
        reach(cluster, config.target_cluster_name, deadline)
        names = sorted({topic.target_topic for topic in recorded.values()})
        there = cluster.metadata(names, deadline).topics if names else {}
        existing = [name for name, topic in there.items() if topic.error_code == 0 and ids[name] == topic.topic_id]
        settings = cluster.topic_configs(sorted(existing), deadline) if existing else {}
        topics = [
            _lifted(topic, archived[source], settings.get(topic.target_topic), amounts[source])
            for source, topic in sorted(recorded.items())
            if source in archived
        ]
        changes = {topic.target: topic.changes for topic in topics if topic.changes and topic.problem is None}
        refused: Mapping[str, str] = {}
        if is_applied and changes:
            refused = set_topic_configs(cluster, changes, deadline)
    topics = [
        replace(topic, problem=f"not set: {refused[topic.target]}") if topic.target in refused else topic for topic in topics
    ]
    return RetentionLift(restore=config.restore, is_applied=is_applied, topics=tuple(topics))


def _lifted(
    topic: PausedTopic, archived: Mapping[str, str], settings: Mapping[str, str] | None, amount: RestoredAmount
) -> LiftedTopic:
    if settings is None:
        problem = "it was deleted, or created again, since it was restored"
        return LiftedTopic(topic=topic.source_topic, target=topic.target_topic, changes={}, kept={}, deletes=(), problem=problem)
    paused = {name for name, value in topic.settings.items() if settings.get(name) == value}
    others = {name: settings.get(name, "") for name in topic.settings.keys() - paused}
    changes = {name: archived.get(name) for name in paused}
    after = {**settings, **{name: value for name, value in changes.items() if value is not None}}
    return LiftedTopic(
        topic=topic.source_topic,
        target=topic.target_topic,
        changes=changes,
        kept={name: value for name, value in others.items() if value != archived.get(name)} if archived else {},
        deletes=tuple(deletions(after, amount, int(time.time() * 1000))),
        problem=None,
    )


def _value(value: str | None) -> str:
    return "the default of the brokers" if value is None else value
