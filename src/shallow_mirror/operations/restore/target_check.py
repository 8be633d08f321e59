"""Driver: the target cluster of a restore before it begins: each target topic, and why it cannot be restored into."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import reach
from shallow_mirror.broker.net import is_forbidden, refusal
from shallow_mirror.checkpoints import Position
from shallow_mirror.checkpoints.ledger import PausedTopic, RestoreRanges, TopicDescription
from shallow_mirror.config import RestoreConfig
from shallow_mirror.config.restore_changes import unfinished_partitions
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.sinks.kafka.preserved import first_offset_problems, read_guard_times, used_log_problems
from shallow_mirror.sinks.kafka.targets import (
    existing_partitions,
    filled_partitions,
    filled_problems,
    taken_problems,
    taken_topics,
    target_topic_policy,
    unwritten_topics,
)
from shallow_mirror.sinks.kafka.targets.settings import RestoredAmount, deletions, existing_topic_findings, pause_of
from shallow_mirror.streaming.runs import LIFT, changed_offsets_problems, paused_topics
from shallow_mirror.types import SourcePartition

_ANSWER_MS = 30_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicToRestore:
    """`offsets`: translated or preserved. `created_with`: the settings of the topic that will be created; None if it exists,
    or is not created.
    """

    topic: str
    target: str
    partitions: int
    offsets: str
    exists: bool
    created_with: Mapping[str, str] | None
    problems: tuple[str, ...]
    paused: Mapping[str, str]
    """Archived values that the new topic gets only when its retention is lifted, by setting."""
    notes: tuple[str, ...] = ()
    """What the settings of the target topic do to the records, which is no reason to refuse the restore."""


class TargetCheck:
    """Compares the restored topics with the target cluster. `positions`: of a restore that has begun. `amounts`: by topic."""

    def __init__(
        self,
        config: RestoreConfig,
        decided: RestoreRanges,
        positions: Mapping[SourcePartition, Position],
        amounts: Mapping[str, RestoredAmount],
        paused: Collection[PausedTopic],
    ) -> None:
        self._config = config
        self._starts = {source: offsets.start for source, offsets in decided.ranges.items()}
        self._unfinished = {source.topic for source in unfinished_partitions(decided, positions)}
        self._positions = positions
        self._amounts = amounts
        self._paused = paused
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
            paused_now = set(paused_topics(cluster, self._paused, deadline))
        topics = []
        now_ms = int(time.time() * 1000)
        for topic, target in targets.items():
            description = described[topic]
            target_topic = existing.get(target)
            is_there, is_preserved = target_topic is not None, config.topics.is_preserved(topic)
            notes: list[str] = []
            if is_forbidden(listed[target].error_code):
                problem = refusal(listed[target].error_code, "Produce", topic=target)
                problems[topic].append(f"target topic {target}: {problem}")
            elif target_topic is not None:
                problems[topic] += self._problems_of_settings(topic, description, len(target_topic.partitions), settings[target])
                if topic in self._unfinished:
                    more_problems, notes = existing_topic_findings(
                        settings[target],
                        self._amounts[topic],
                        now_ms,
                        is_paused=config.topics.pauses_retention,
                        stops_at_refused=config.write.on_refused == "stop",
                    )
                    problems[topic] += [f"target topic {target} {problem}" for problem in more_problems]
                    notes += target_topic_policy.record_doubts(settings[target], description.configs)
                if target in paused_now:
                    notes.append(f"has its retention paused: {LIFT} sets the archived values")
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
            paused: dict[str, str] = {}
            if created_with is not None and config.topics.pauses_retention:
                pause = pause_of(created_with)
                paused = {name: configs.get(name, "the target's default") for name in pause}
                created_with |= pause
            elif created_with is not None:
                notes += [f"will delete: it {sentence}" for sentence in deletions(created_with, self._amounts[topic], now_ms)]
            topics.append(
                TopicToRestore(
                    topic=topic,
                    target=target,
                    partitions=description.partitions,
                    offsets="preserved" if is_preserved else "translated",
                    exists=is_there,
                    created_with=created_with,
                    problems=tuple(problems[topic]),
                    paused=paused,
                    notes=tuple(f"target topic {target} {note}" for note in notes),
                )
            )
        return topics, cluster_problems

    def _problems_of_logs(self, cluster: Cluster, topic: str, target: str, deadline: Deadline) -> list[str]:
        """Return why nothing can be written to the partitions of a target topic."""
        positions = {source: position for source, position in self._positions.items() if source.topic == topic}
        problems = changed_offsets_problems(positions, self._config.topics.is_preserved)
        if topic in self._begun:
            is_unwritten = topic in unwritten_topics(positions)
            taken = taken_topics(cluster, {target}, deadline, is_fenced=False) if is_unwritten else set()
            return problems + taken_problems({topic: target}, taken)
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
            problems += target_topic_policy.preserving_problems(settings, description.configs, is_begun=topic in self._begun)
        return [f"target topic {self._config.target_topic(topic)} {problem}" for problem in problems]

    def _cluster_problems(self, cluster: Cluster, deadline: Deadline) -> list[str]:
        if not self._config.topics.preserves_offsets:
            return []
        try:
            read_guard_times(cluster, self._config.write.transaction_timeout_ms, deadline)
        except ConfigError as error:
            return list(error.problems)
        return []
