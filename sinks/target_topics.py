"""Driver: the target topic of each source topic: found or created, checked, and kept for the life of the run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from shallow_mirror.broker.client_config import ClientConfig
from shallow_mirror.broker.cluster import Cluster, TopicMetadata
from shallow_mirror.broker.topics import TopicSpec, copied_configs, ensure_topics
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.sinks.slot_task import RoutedTopic
from shallow_mirror.types import BatchLimits, IsolationLevel, LogAppendTimePolicy

_log = logging.getLogger(__name__)


class TargetTopics:
    """Routes, by source topic name. Settings are read again with `refresh_settings`, topics when they are first needed."""

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        target_client: ClientConfig,
        *,
        route: Callable[[str], str],
        create: bool,
        replication_factor: int | None,
        isolation: IsolationLevel,
        log_append_time: LogAppendTimePolicy,
    ) -> None:
        self._source, self._target, self._target_client = source, target, target_client
        self._route, self._create, self._replication_factor = route, create, replication_factor
        self._isolation, self._log_append_time = isolation, log_append_time
        self._routes: dict[str, RoutedTopic] = {}
        self._partitions: dict[str, int] = {}

    @property
    def known(self) -> Mapping[str, RoutedTopic]:
        """Every route found so far, by source topic."""
        return self._routes

    def prepare(self, topics: Mapping[str, int], deadline: Deadline) -> None:
        """Make sure of `topics` (source name -> number of source partitions). Raises ConfigError with every problem."""
        unknown = {name: count for name, count in topics.items() if self._partitions.get(name, 0) < count}
        if unknown:
            self._look_up(unknown, deadline)

    def _look_up(self, topics: Mapping[str, int], deadline: Deadline) -> None:
        names = {source: self._route(source) for source in topics}
        found = self._existing(list(names.values()), deadline)
        missing = {source: target for source, target in names.items() if target not in found}
        if missing:
            self._create_missing(missing, topics, deadline)
            found = self._existing(list(names.values()), deadline)
        settings = self._target.topic_configs(sorted(found), deadline)
        problems: list[str] = []
        for source, target in names.items():
            if target not in found:
                problems.append(f"target topic {target} (for {source}) was created but the target's brokers do not list it yet")
                continue
            problems.extend(_problems_of(source, topics[source], found[target], settings[target]))
            self._routes[source] = RoutedTopic(
                target_topic=target,
                target_topic_id=found[target].topic_id,
                limits=BatchLimits(
                    max_message_bytes=int(settings[target]["max.message.bytes"]),
                    isolation_level=self._isolation,
                    log_append_time=self._log_append_time,
                ),
            )
            self._partitions[source] = len(found[target].partitions)
        if problems:
            for source in names:
                self._partitions.pop(source, None)
            raise ConfigError(problems)

    def _existing(self, names: Sequence[str], deadline: Deadline) -> dict[str, TopicMetadata]:
        self._target.forget_metadata()
        listed = self._target.metadata(names, deadline).topics
        return {name: topic for name, topic in listed.items() if topic.error_code == 0}

    def _create_missing(self, missing: Mapping[str, str], partitions: Mapping[str, int], deadline: Deadline) -> None:
        if not self._create:
            raise ConfigError(
                [
                    f"target topic {target} (for source topic {source}) does not exist and topics.create is false: "
                    f"create it with at least {partitions[source]} partitions, or set topics.create: true"
                    for source, target in sorted(missing.items())
                ]
            )
        settings = self._source.topic_configs(sorted(missing), deadline)
        specs = [
            TopicSpec(target, partitions[source], self._replication_factor, copied_configs(settings[source]))
            for source, target in sorted(missing.items())
        ]
        _log.info("creating target topics: %s", ", ".join(f"{spec.name} ({spec.partitions} partitions)" for spec in specs))
        ensure_topics(self._target_client, specs, timeout_s=deadline.remaining_ms() / 1000)


def _problems_of(source: str, partitions: int, target: TopicMetadata, settings: Mapping[str, str]) -> list[str]:
    problems = []
    if len(target.partitions) < partitions:
        problems.append(
            f"target topic {target.name} has {len(target.partitions)} partitions, source topic {source} has {partitions}: "
            "add partitions to the target topic (they are matched by number)"
        )
    compression = settings.get("compression.type", "producer")
    if compression != "producer":
        problems.append(
            f"target topic {target.name} has compression.type={compression}: the broker would open and recompress every batch. "
            "Set compression.type=producer on it"
        )
    if settings.get("message.timestamp.type") == "LogAppendTime":
        _log.warning("target topic %s has message.timestamp.type=LogAppendTime: records get the target's time", target.name)
    return problems
