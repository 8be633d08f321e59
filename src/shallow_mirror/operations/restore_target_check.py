"""Driver: the target cluster of a restore before it begins: each target topic, and why it cannot be restored into."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.connectivity import reach
from shallow_mirror.broker.net.error_codes import is_forbidden, refusal
from shallow_mirror.checkpoints.archived_topics import TopicDescription
from shallow_mirror.checkpoints.positions import Position
from shallow_mirror.config import RestoreConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.sinks.kafka.preserved.shared_producers import first_offset_problems, read_guard_times, used_log_problems
from shallow_mirror.sinks.kafka.targets import target_topic_policy
from shallow_mirror.sinks.kafka.targets.filled_topics import existing_partitions, filled_partitions, filled_problems
from shallow_mirror.streaming.runner.preserved_restore import changed_offsets_problems
from shallow_mirror.types import SourcePartition

_ANSWER_MS = 30_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicToRestore:
    """`offsets`: translated or preserved. `created_with`: the settings of the topic that will be created; None where it exists,
    or is not created.
    """

    topic: str
    target: str
    partitions: int
    offsets: str
    exists: bool
    created_with: Mapping[str, str] | None
    problems: tuple[str, ...]


class TargetCheck:
    """Compares what is restored with the target cluster. `starts`: of the ranges. `positions`: of a restore that has begun."""

    def __init__(
        self, config: RestoreConfig, starts: Mapping[SourcePartition, int], positions: Mapping[SourcePartition, Position]
    ) -> None:
        self._config = config
        self._starts = starts
        self._positions = positions
        self._begun = {source.topic for source in positions}

    def topics(self, described: Mapping[str, TopicDescription]) -> tuple[list[TopicToRestore], list[str]]:
        """Return the topics, and problems of the cluster itself. Raises RetriableError, ConfigError."""
        config = self._config
        targets = {topic: config.target_topic(topic) for topic in sorted(described)}
        with closing(Cluster(config.target.client)) as cluster:
            deadline = Deadline.after_ms(_ANSWER_MS, time.monotonic)
            reach(cluster, config.target_cluster_name, deadline)
            listed = cluster.metadata(sorted(set(targets.values())), deadline).topics
            existing = {name: topic for name, topic in listed.items() if topic.error_code == 0}
            settings = cluster.topic_configs(sorted(existing), deadline) if existing else {}
            problems = {topic: self._problems_of_logs(cluster, topic, targets[topic], deadline) for topic in targets}
            cluster_problems = self._cluster_problems(cluster, deadline)
        topics = []
        for topic, target in targets.items():
            description = described[topic]
            target_topic = existing.get(target)
            is_there, is_preserved = target_topic is not None, config.topics.is_preserved(topic)
            if is_forbidden(listed[target].error_code):
                problem = refusal(listed[target].error_code, "Produce", topic=target)
                problems[topic].append(f"target topic {target}: {problem}")
            elif target_topic is not None:
                problems[topic] += self._problems_of_settings(topic, description, len(target_topic.partitions), settings[target])
            elif topic in self._begun:
                problems[topic].append(
                    f"target topic {target} (for {topic}) was deleted, with what was restored: restore it again"
                )
            elif not config.topics.create:
                missing = target_topic_policy.missing_problem(topic, description.partitions)
                problems[topic].append(f"target topic {target} {missing}")
            configs = {} if config.topics.configs == "off" else description.configs
            is_created = not is_there and config.topics.create and topic not in self._begun
            created_with = target_topic_policy.configs_of_new(configs, is_preserved=is_preserved) if is_created else None
            topics.append(
                TopicToRestore(
                    topic=topic,
                    target=target,
                    partitions=description.partitions,
                    offsets="preserved" if is_preserved else "translated",
                    exists=is_there,
                    created_with=created_with,
                    problems=tuple(problems[topic]),
                )
            )
        return topics, cluster_problems

    def _problems_of_logs(self, cluster: Cluster, topic: str, target: str, deadline: Deadline) -> list[str]:
        """Return why nothing can be written to the partitions of a target topic."""
        positions = {source: position for source, position in self._positions.items() if source.topic == topic}
        problems = changed_offsets_problems(positions, self._config.topics.is_preserved)
        if topic in self._begun:
            return problems
        if not self._config.topics.is_preserved(topic):
            filled = {partition.topic for partition in filled_partitions(cluster, {target}, deadline)}
            return problems + filled_problems({topic: target}, filled)
        starts = sorted((source.topic_partition, start) for source, start in self._starts.items() if source.topic == topic)
        used = used_log_problems(cluster, existing_partitions(cluster, {target}, deadline), deadline)
        return problems + first_offset_problems(starts) + used

    def _problems_of_settings(
        self, topic: str, description: TopicDescription, partitions: int, settings: Mapping[str, str]
    ) -> list[str]:
        problems = target_topic_policy.problems_of(topic, description.partitions, partitions, settings)
        if self._config.topics.is_preserved(topic):
            problems += target_topic_policy.preserving_problems(settings, description.configs)
        return [f"target topic {self._config.target_topic(topic)} {problem}" for problem in problems]

    def _cluster_problems(self, cluster: Cluster, deadline: Deadline) -> list[str]:
        if not self._config.topics.preserves_offsets:
            return []
        try:
            read_guard_times(cluster, self._config.write.transaction_timeout_ms, deadline)
        except ConfigError as error:
            return list(error.problems)
        return []
