"""Driver: the target topic of each source topic: as it is, or as the mirror would make it; and what speaks against it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from shallow_mirror.broker.cluster import Cluster
from shallow_mirror.broker.cluster_metadata import TopicMetadata
from shallow_mirror.broker.error_codes import is_forbidden, refusal
from shallow_mirror.broker.fetch_exchange import MAX_BATCH_BYTES
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.preflight.findings import Finding, Level
from shallow_mirror.sinks import routing, target_rules
from shallow_mirror.types import TargetPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetPlan:
    """`partition_count` and `replication_factor` as they will be; the latter None where nobody says.

    `created_with`: the settings that a new topic would get; None where it exists or is not created. `settings`: what will
    be in force, as far as it is known.
    """

    topic: str
    exists: bool
    partition_count: int
    added_partitions: int
    replication_factor: int | None
    created_with: Mapping[str, str] | None
    settings: Mapping[str, str] = field(repr=False)

    @property
    def max_message_bytes(self) -> int:
        return int(self.settings.get("max.message.bytes", MAX_BATCH_BYTES))

    def document(self) -> dict[str, Any]:
        found = asdict(self)
        del found["settings"]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCluster:
    """`defaults`: settings of a broker of it; empty where they may not be read."""

    cluster: Cluster
    broker_count: int
    defaults: Mapping[str, str]


class TargetPlans:
    """Asks both clusters once for all topics. `findings` are complete when `plan` has returned."""

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
        self.findings: list[Finding] = []

    def plan(self, topics: Mapping[str, int]) -> dict[str, TargetPlan]:
        """`topics`: number of partitions by source topic. Raises Retriable."""
        names = {source: self._name_of(source) for source in topics}
        found = self._existing(sorted(set(names.values())))
        settings = self._settings_of(self._target.cluster, sorted(found), Level.STOPS, "target topic")
        is_needed = self._config.topics.create and len(found) < len(names)
        of_source = self._settings_of(self._source, sorted(topics), Level.STOPS if is_needed else Level.UNKNOWN, "source topic")
        return {
            source: self._plan_of(source, count, names[source], found.get(names[source]), settings, of_source.get(source))
            for source, count in sorted(topics.items())
        }

    def _name_of(self, source: str) -> str:
        return routing.target_topic_name(self._config.topics.target_name, self._config.source.alias, source)

    def _existing(self, names: Sequence[str]) -> dict[str, TopicMetadata]:
        listed = self._target.cluster.metadata(names, self._deadline()).topics if names else {}
        for name, one in listed.items():
            if is_forbidden(one.error_code):
                self.findings.append(Finding(Level.STOPS, f"target topic {name}", refusal(one.error_code)))
        return {name: one for name, one in listed.items() if one.error_code == 0}

    def _settings_of(self, cluster: Cluster, names: Sequence[str], level: Level, kind: str) -> dict[str, dict[str, str]]:
        """Of one topic after the other where the whole is refused."""
        if not names:
            return {}
        try:
            return cluster.topic_configs(names, self._deadline())
        except ConfigError as error:
            if len(names) == 1:
                self.findings.append(Finding(level, f"{kind} {names[0]}", str(error)))
                return {}
        found: dict[str, dict[str, str]] = {}
        for name in names:
            found |= self._settings_of(cluster, [name], level, kind)
        return found

    def _plan_of(
        self,
        source: str,
        partitions: int,
        target: str,
        found: TopicMetadata | None,
        settings: Mapping[str, Mapping[str, str]],
        of_source: Mapping[str, str] | None,
    ) -> TargetPlan:
        before = self._mirrored.get(source)
        other = None if before is None else target_rules.other_target_problem(source, before, target, found)
        if other is not None:
            self.findings.append(Finding(Level.STOPS, f"target topic {target}", other))
        if found is None:
            return self._plan_missing(source, partitions, target, of_source or {})
        is_growing = self._config.topics.create and before is not None and len(found.partitions) < partitions
        plan = TargetPlan(
            topic=target,
            exists=True,
            partition_count=partitions if is_growing else len(found.partitions),
            added_partitions=partitions - len(found.partitions) if is_growing else 0,
            replication_factor=min((one.replica_count for one in found.partitions.values()), default=None),
            created_with=None,
            settings=settings.get(target, {}),
        )
        for problem in target_rules.problems_of(source, partitions, plan.partition_count, plan.settings):
            self.findings.append(Finding(Level.STOPS, f"target topic {target}", problem))
        if of_source is not None and plan.settings:
            for doubt in target_rules.doubts_of(plan.settings, of_source):
                self.findings.append(Finding(Level.DOUBT, f"target topic {target}", doubt))
        self.findings += self._replica_problems(plan)
        return plan

    def _plan_missing(self, source: str, partitions: int, target: str, of_source: Mapping[str, str]) -> TargetPlan:
        is_created = self._config.topics.create
        if not is_created:
            problem = target_rules.missing_problem(source, partitions)
            self.findings.append(Finding(Level.STOPS, f"target topic {target}", problem))
        created_with = target_rules.copied_configs(of_source) if is_created else {}
        default = self._target.defaults.get("default.replication.factor")
        plan = TargetPlan(
            topic=target,
            exists=False,
            partition_count=partitions if is_created else 0,
            added_partitions=0,
            replication_factor=self._config.topics.replication_factor or (None if default is None else int(default)),
            created_with=created_with if is_created else None,
            settings={**_inherited(self._target.defaults), **created_with},
        )
        if is_created:
            self.findings += self._replica_problems(plan)
        return plan

    def _replica_problems(self, plan: TargetPlan) -> Iterator[Finding]:
        replicas, least = plan.replication_factor, int(plan.settings.get("min.insync.replicas", 1))
        if replicas is None:
            return
        if not plan.exists and replicas > self._target.broker_count:
            what = f"would be created with {replicas} replicas; the target has {self._target.broker_count} brokers. "
            yield Finding(Level.STOPS, f"target topic {plan.topic}", f"{what}Set topics.replication_factor")
        if least > replicas:
            what = f"has min.insync.replicas={least}, more than its {replicas} replicas: nothing can be written to it"
            yield Finding(Level.STOPS, f"target topic {plan.topic}", what)


def _inherited(defaults: Mapping[str, str]) -> dict[str, str]:
    """What a new topic has of its broker's settings and no mirror sets."""
    return {name: defaults[name] for name in ("min.insync.replicas",) if name in defaults}
