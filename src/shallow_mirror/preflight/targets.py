"""Driver: target topic of each source topic: as it is, or as the mirror would make it; and problems of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from shallow_mirror import routing
from shallow_mirror.broker import Cluster, TopicMetadata
from shallow_mirror.broker.fetch import MAX_BATCH_BYTES
from shallow_mirror.broker.net import UNKNOWN_TOPIC_OR_PARTITION, is_forbidden, refusal
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.plurals import counted
from shallow_mirror.preflight.findings import Finding, Level, left_out_or_stops
from shallow_mirror.sinks.kafka import before_compaction
from shallow_mirror.sinks.kafka.targets import collision_problems, replica_problem, target_topic_policy
from shallow_mirror.types import TargetPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPlan:
    """A target topic as the mirror will have it."""

    topic: str
    exists: bool
    partition_count: int
    added_partitions: int = 0
    replication_factor: int | None
    """None if it is the target's default."""
    created_with: Mapping[str, str] | None = None
    """The settings that a new topic would get. None if it exists or is not created."""
    settings: Mapping[str, str] = field(repr=False)
    """Those that will be in force, as far as they are known."""

    @property
    def max_message_bytes(self) -> int:
        return int(self.settings.get("max.message.bytes", MAX_BATCH_BYTES))

    def document(self) -> dict[str, Any]:
        fields = asdict(self)
        del fields["settings"]
        return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCluster:
    """`defaults`: settings of a broker of it; empty if they may not be read."""

    cluster: Cluster
    broker_count: int
    defaults: Mapping[str, str]


class TargetPlans:
    """Asks both clusters once for all topics. `findings` and `left_out` are complete when `plan` has returned.

    `left_out`: source topics that a run leaves out, because of the target topics that they were copied to.
    """

    def __init__(
        self,
        config: MirrorConfig,
        source: Cluster,
        target: TargetCluster,
        mirrored: Mapping[str, TargetPartition],
        deadline: Callable[[], Deadline],
    ) -> None:
        self._config, self._source, self._target, self._mirrored = config, source, target, mirrored
        self._deadline = deadline
        self._isolates = config.on_error == "isolate"
        self.findings: list[Finding] = []
        self.left_out: set[str] = set()

    def existing_partitions(self, plans: Mapping[str, TargetPlan], *, is_mirrored: bool) -> dict[str, int]:
        """Return the number of partitions of target topics that exist: those that this mirror has copied to, or the others.

        Preserved topics have rules of their own (`preserved_topics.py`).
        """
        return {
            plan.topic: plan.partition_count - plan.added_partitions
            for source, plan in plans.items()
            if plan.exists and (source in self._mirrored) is is_mirrored and not self._config.topics.is_preserved(source)
        }

    def plan(self, topics: Mapping[str, int]) -> dict[str, TargetPlan]:
        """`topics`: number of partitions by source topic. Raises RetriableError."""
        pattern, alias = self._config.topics.target_name, self._config.source.alias
        names = {source: routing.target_topic_name(pattern, alias, source) for source in topics}
        listed = self._target.cluster.metadata(sorted(names.values()), self._deadline()).topics if names else {}
        existing = {name: metadata for name, metadata in listed.items() if metadata.error_code == 0}
        self._settings = _settings_of(self._target.cluster, sorted(existing), self._deadline)
        self._source_settings = _settings_of(self._source, sorted(topics), self._deadline)
        missing = [target for target in names.values() if listed[target].error_code == UNKNOWN_TOPIC_OR_PARTITION]
        self._collisions = collision_problems(self._target.cluster, missing, self._deadline())
        plans = {}
        for source, target in sorted(names.items()):
            code = listed[target].error_code
            if is_forbidden(code):
                self._add_finding(Level.STOPS, target, refusal(code, "Produce", topic=target))
                plans[source] = _unknown_plan(target)
            elif target in existing:
                plans[source] = self._plan_existing(source, topics[source], existing[target])
            else:
                plans[source] = self._plan_missing(source, topics[source], target)
            self._check_replicas(plans[source])
        return plans

    def _add_finding(self, level: Level, target: str, *whats: str) -> None:
        self.findings += [Finding(level, f"target topic {target}", what) for what in whats]

    def _is_same_target(self, source: str, target: str, metadata: TopicMetadata | None) -> bool:
        """Add a finding if the mirror wrote to another topic before. True also for a topic that was never mirrored."""
        before = self._mirrored.get(source)
        problem = None if before is None else target_topic_policy.other_target_problem(source, before, target, metadata)
        if before is None or problem is None:
            return True
        self._add_problem(source, target, problem, is_left_out=self._isolates and before.topic == target)
        return False

    def _add_problem(self, source: str, target: str, problem: str, *, is_left_out: bool) -> None:
        self.findings.append(left_out_or_stops(f"target topic {target}", problem, is_left_out=is_left_out))
        if is_left_out:
            self.left_out.add(source)

    def _is_unfit(self, source: str, plan: TargetPlan, of_source: Mapping[str, str]) -> bool:
        """Add a finding if the settings of a topic with preserved offsets were changed, and a run leaves it out."""
        if not (plan.settings and self._isolates and source in self._mirrored and self._config.topics.is_preserved(source)):
            return False
        is_compacted = target_topic_policy.is_compacted(of_source)
        problem = target_topic_policy.changed_problem(plan.settings, is_compacted=is_compacted)
        if problem is not None:
            self._add_problem(source, plan.topic, problem, is_left_out=True)
        return problem is not None

    def _plan_existing(self, source: str, partitions: int, metadata: TopicMetadata) -> TargetPlan:
        if not self._is_same_target(source, metadata.name, metadata) and source in self.left_out:
            return _unknown_plan(metadata.name)
        is_growing = self._config.topics.create and source in self._mirrored and len(metadata.partitions) < partitions
        settings, of_source = self._settings[metadata.name], self._source_settings[source]
        plan = TargetPlan(
            topic=metadata.name,
            exists=True,
            partition_count=partitions if is_growing else len(metadata.partitions),
            added_partitions=partitions - len(metadata.partitions) if is_growing else 0,
            replication_factor=min((partition.replica_count for partition in metadata.partitions.values()), default=None),
            settings={} if isinstance(settings, ConfigError) else settings,
        )
        is_unfit = not isinstance(of_source, ConfigError) and self._is_unfit(source, plan, of_source)
        compared = {} if is_unfit else plan.settings
        problems = target_topic_policy.problems_of(source, partitions, plan.partition_count, compared)
        self._add_finding(Level.STOPS, plan.topic, *problems)
        if isinstance(settings, ConfigError):
            self._add_finding(Level.STOPS, plan.topic, str(settings))
        elif isinstance(of_source, ConfigError):
            self._add_finding(Level.UNKNOWN, plan.topic, f"its settings cannot be compared with those of {source}: {of_source}")
        else:
            self._add_finding(Level.DOUBT, plan.topic, *target_topic_policy.config_warnings(settings, of_source))
        return plan

    def _plan_missing(self, source: str, partitions: int, target: str) -> TargetPlan:
        if not self._is_same_target(source, target, None):
            return _unknown_plan(target, exists=False)
        if not self._config.topics.create:
            self._add_finding(Level.STOPS, target, target_topic_policy.missing_problem(source, partitions))
            return _unknown_plan(target, exists=False)
        if target in self._collisions:
            self._add_finding(Level.STOPS, target, self._collisions[target])
            return _unknown_plan(target, exists=False)
        of_source = {} if self._config.topics.configs == "off" else self._source_settings[source]
        if isinstance(of_source, ConfigError):
            self._add_finding(Level.STOPS, target, f"cannot be created like {source}: {of_source}")
            return _unknown_plan(target, exists=False)
        is_preserved = self._config.topics.is_preserved(source)
        created_with = target_topic_policy.configs_of_new(of_source, is_preserved=is_preserved)
        if not is_preserved:
            created_with |= self._before_compaction(source, created_with)
        # What a new topic has from its broker, and no mirror sets.
        inherited = {name: self._target.defaults[name] for name in ("min.insync.replicas",) if name in self._target.defaults}
        default = self._target.defaults.get("default.replication.factor")
        bounded = target_topic_policy.bounded_replicas(self._config.topics.replication_factor, self._target.broker_count)
        return TargetPlan(
            topic=target,
            exists=False,
            partition_count=partitions,
            replication_factor=bounded or (None if default is None else int(default)),
            created_with=created_with,
            settings={**inherited, **created_with},
        )

    def _before_compaction(self, source: str, created_with: Mapping[str, str]) -> dict[str, str]:
        try:
            return before_compaction(self._source, source, created_with, self._deadline())[0]
        except RetriableError:
            return {}  # a partition without a leader is reported with its topic

    def _check_replicas(self, plan: TargetPlan) -> None:
        replicas = plan.replication_factor
        if not plan.exists and replicas is not None and replicas > self._target.broker_count:
            brokers = counted(self._target.broker_count, "broker")
            what = f"would be created with {counted(replicas, 'replica')}; the target has {brokers}. "
            self._add_finding(Level.STOPS, plan.topic, f"{what}Set topics.replication_factor")
        problem = replica_problem(self._target.cluster, plan.settings, replicas, self._deadline())
        self._add_finding(Level.STOPS, plan.topic, *([] if problem is None else [problem]))


def _settings_of(
    cluster: Cluster, names: Sequence[str], deadline: Callable[[], Deadline]
) -> dict[str, dict[str, str] | ConfigError]:
    """By topic, or why not: one after the other if not all may be read. Raises RetriableError."""
    if not names:
        return {}
    try:
        return {**cluster.topic_configs(names, deadline())}
    except ConfigError as error:
        if len(names) == 1:
            return {names[0]: error}
    settings: dict[str, dict[str, str] | ConfigError] = {}
    for name in names:
        settings |= _settings_of(cluster, [name], deadline)
    return settings


def _unknown_plan(target: str, *, exists: bool = True) -> TargetPlan:
    return TargetPlan(topic=target, exists=exists, partition_count=0, replication_factor=None, settings={})
