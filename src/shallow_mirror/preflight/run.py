"""Driver: `preflight`: a look at both clusters, with the verdicts of a mirror. Changes nothing, starts no JVM."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

from shallow_mirror.broker import Cluster, ClusterMetadata
from shallow_mirror.broker.admin import request_permissions
from shallow_mirror.broker.cluster import reach
from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.logs.runs import MICRO_BATCHES_TABLE
from shallow_mirror.checkpoints.logs.topics import NO_CONTROLS, Controls, TopicControls
from shallow_mirror.checkpoints.tables import Comparison, TableStorage
from shallow_mirror.config import MirrorConfig, exclude_own_targets
from shallow_mirror.config.unmatched_topics import unmatched_sentences
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.groups.group_client import GROUP_LOG
from shallow_mirror.operations.recover import inspect
from shallow_mirror.operations.status import run_status
from shallow_mirror.preflight.clusters import (
    broker_problems,
    group_log_problems,
    read_broker_settings,
    setting_problems,
    slot_problems,
    source_right_problems,
    target_right_problems,
)
from shallow_mirror.preflight.estimate import Pace, mirror_pace, reading_pace
from shallow_mirror.preflight.findings import Finding, Level, sentences
from shallow_mirror.preflight.preserved_topics import PreservedTopics
from shallow_mirror.preflight.read_only import read_only_findings
from shallow_mirror.preflight.report import ClusterReport, PreflightReport, TopicReport
from shallow_mirror.preflight.sample_reader import PATIENCE_MS, SampleReader
from shallow_mirror.preflight.sampling import OnProgress, TopicSampler, ignore_progress, plan_backlogs
from shallow_mirror.preflight.schema_check import SchemaCheck, SchemaUse, registry_topic_findings
from shallow_mirror.preflight.schema_ids import SchemaIdSampler
from shallow_mirror.preflight.size import HOURS, Size
from shallow_mirror.preflight.sizing import size_for
from shallow_mirror.preflight.target_logs import target_log_findings
from shallow_mirror.preflight.targets import TargetCluster, TargetPlan, TargetPlans
from shallow_mirror.preflight.traffic import hourly_ends
from shallow_mirror.schemas import open_registries
from shallow_mirror.sinks.kafka import NewestControl, id_count, transactional_ids
from shallow_mirror.sinks.kafka.targets.other_writers import (
    IS_WRITTEN_BY_OTHERS,
    WRITTEN_BY_OTHERS,
    filled_by_mirror,
    written_offsets,
)
from shallow_mirror.streaming.planning import LogEnds, PlannerConfig, SourceOffsets
from shallow_mirror.streaming.runs import CycleDetector, nothing_matches, unauthorized_topics
from shallow_mirror.types import OffsetRange, SourcePartition, TargetPartition

DEFAULT_SAMPLE_BYTES = 64 << 20

PACE_MICRO_BATCHES = 100
"""The mirror's own pace is that of so many last micro-batches."""


def preflight_mirror(
    config: MirrorConfig,
    *,
    spark: Any = None,
    sample_bytes: int | None = DEFAULT_SAMPLE_BYTES,
    is_sized: bool = False,
    on_progress: OnProgress = ignore_progress,
    clock: Callable[[], float] = time.monotonic,
    now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
) -> PreflightReport:
    """Check everything between the mirror's positions and the current log ends, or `sample_bytes` of each partition.

    `spark`: the session that reaches tables in a catalog. `is_sized`: also look at the traffic of the last 24 hours, and say
    what a mirror needs for it. Problems that would stop the mirror are in the report. Raises
    ConfigError (the mirror file, another mirror's map, brokers without a supported version), OffsetMapConflictError,
    RetriableError (a cluster does not answer).
    """
    with _opened(config, spark, clock) as preflight:
        return preflight.run(sample_bytes, on_progress, now_ms() if is_sized else None)


def start_problems(
    config: MirrorConfig, handed_over: Collection[str], *, clock: Callable[[], float] = time.monotonic
) -> list[str]:
    """Return a sentence for everything that would keep a mirror from starting, without reading a batch.

    `handed_over`: topics that a migration will have handed over from another mirror, which copies them to here. Raises as
    `preflight_mirror`.
    """
    with _opened(config, None, clock) as preflight:
        return sentences(finding for finding in preflight.check(handed_over) if finding.level is Level.STOPS)


@contextmanager
def _opened(config: MirrorConfig, spark: Any, clock: Callable[[], float]) -> Iterator[_Preflight]:
    source, target = Cluster(config.source.client, clock=clock), Cluster(config.target.client, clock=clock)
    with closing(source), closing(target):
        yield _Preflight(config, spark, source, target, clock)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Topics:
    """Partitions to mirror, by source topic and by partition."""

    partition_counts: Mapping[str, int]
    plans: Mapping[str, TargetPlan]
    backlogs: Mapping[SourcePartition, OffsetRange]
    unmirrored: Mapping[str, int]
    """Partitions of target topics that exist and that this mirror has not copied to, by name."""
    mirrored: Mapping[str, int]
    """Of those that it has copied to."""


class _Preflight:
    def __init__(self, config: MirrorConfig, spark: Any, source: Cluster, target: Cluster, clock: Callable[[], float]) -> None:
        self._config, self._spark, self._storage = config, spark, TableStorage(config.table_location, spark)
        self._clock = clock
        self._source, self._target = source, target
        self._findings: list[Finding] = []
        self._schema_uses: tuple[SchemaUse, ...] = ()

    def check(self, handed_over: Collection[str]) -> Sequence[Finding]:
        self._read_clusters()
        offset_map = self._open_map()
        self._check_slots(offset_map)
        self._check_decision(offset_map)
        self._check_topics(offset_map, handed_over)
        return self._findings

    def run(self, sample_bytes: int | None, on_progress: OnProgress, sized_at_ms: int | None) -> PreflightReport:
        """Return the report. `sized_at_ms`: the time now, to look at the traffic before it; None: not wanted."""
        began = self._clock()
        self._read_clusters()
        offset_map = self._open_map()
        self._check_slots(offset_map)
        self._check_decision(offset_map)
        topics = self._check_topics(offset_map, ())
        watched = {**topics.unmirrored, **(topics.mirrored if self._is_mirror_over(offset_map) else {})}
        written = self._written_offsets(watched)
        reader = SampleReader(
            self._source,
            self._config.read.isolation_level,
            fetch_bytes=self._config.read.fetch_bytes,
            sample_bytes=sample_bytes,
            clock=self._clock,
        )
        reports = self._sample_topics(topics, reader, on_progress)
        self._findings += _of_other_writers(written, self._written_offsets(watched), self._of_others(topics, offset_map))
        reading = reading_pace(reader.read_bytes, reader.seconds)
        paces = (self._mirror_pace(offset_map), reading)
        size = None if sized_at_ms is None else self._size(topics, reports, reading, sized_at_ms)
        return PreflightReport(
            mirror=self._config.mirror,
            sample_bytes=sample_bytes,
            seconds=self._clock() - began,
            source=_cluster_report(self._config.source.alias, self._of_source),
            target=_cluster_report(self._config.target.alias, self._of_target),
            has_map=offset_map is not None,
            coalesce_bytes=self._config.write.coalesce_bytes,
            topics=reports,
            findings=tuple(self._findings),
            paces=tuple(pace for pace in paces if pace is not None),
            schema_uses=self._schema_uses,
            is_sized=sized_at_ms is not None,
            size=size,
        )

    def _check_topics(self, offset_map: OffsetMap | None, handed_over: Collection[str]) -> _Topics:
        controls = NO_CONTROLS if offset_map is None else Controls.open(self._storage).read()
        alias = self._config.target.alias
        if failed_over := controls.failed_over_problem(self._config.mirror, alias):
            self._findings.append(Finding(Level.STOPS, f"cluster {alias}", failed_over))
        positions = {} if offset_map is None else controls.forgotten.without(offset_map.positions())
        mirrored = {source.topic: position.target for source, position in positions.items()}
        guard = CycleDetector(
            self._config, source_cluster_id=self._of_source.cluster_id, target_cluster_id=self._of_target.cluster_id
        )
        guard.exempt(controls.without_cycle.union(handed_over))
        planner, listing = self._list_source(controls)
        config = guard.leave_out_new(self._config, listing.topic_ids.keys() - mirrored.keys() - set(handed_over))
        if config is not self._config:
            self._config = config
            self._findings += [Finding(Level.DOUBT, "topics", sentence) for sentence in guard.left_out.values()]
            planner, listing = self._list_source(controls)
        guard.read_registrations()
        guard.require_no_cycles(listing.topic_ids)
        counts = self._partition_counts(listing, mirrored, {topic.topic for topic in controls.forgotten.at_ms})
        # Target topics of topics that a migration has handed over are the business of the applications that write to them.
        partitions = {topic: count for topic, count in counts.items() if topic not in controls.moving}
        plans, targets = self._plan_targets(partitions, mirrored)
        offsets = {source: position.offset for source, position in positions.items()}
        backlogs, problems = plan_backlogs(
            planner,
            listing,
            offsets,
            controls.not_copied,
            self._deadline,
            continues_after_data_loss=self._config.read.continues_after_data_loss,
            isolates=self._config.on_error == "isolate",
        )
        backlogs = {source: backlog for source, backlog in backlogs.items() if source.topic not in targets.left_out}
        self._findings += problems
        preserved = PreservedTopics(self._config, self._source, self._target, self._deadline)
        self._findings += preserved.findings(plans, positions, backlogs, targets.left_out)
        known = {
            source: at
            for source, at in positions.items()
            if source.topic in plans and listing.topic_ids.get(source.topic) == source.topic_id
        }
        self._findings += target_log_findings(self._config, self._target, known, self._deadline)
        return _Topics(
            partition_counts=partitions,
            plans=plans,
            backlogs=backlogs,
            unmirrored=targets.existing_partitions(plans, is_mirrored=False),
            mirrored=targets.existing_partitions(plans, is_mirrored=True),
        )

    def _list_source(self, controls: TopicControls) -> tuple[SourceOffsets, LogEnds]:
        planner = SourceOffsets(PlannerConfig.of_mirror(self._config, forgotten=controls.forgotten.topic_ids), self._source)
        listing = planner.log_ends(self._deadline())
        listing.require_answers()
        return planner, listing

    def _sample_topics(self, topics: _Topics, reader: SampleReader, on_progress: OnProgress) -> tuple[TopicReport, ...]:
        schema_ids = SchemaIdSampler() if self._config.schemas.has_registries else None
        counts = topics.partition_counts
        sampler = TopicSampler(self._config, reader, topics.backlogs, on_progress, schema_ids)
        reports = tuple(sampler.sample(topic, counts[topic], plan) for topic, plan in topics.plans.items())
        self._findings += [*sampler.findings, *sampler.library_problems(), *registry_topic_findings(counts)]
        self._schema_uses = () if schema_ids is None else self._check_schemas(schema_ids)
        return reports

    def _size(self, topics: _Topics, reports: Sequence[TopicReport], reading: Pace | None, now_ms: int) -> Size | None:
        try:
            ends = hourly_ends(self._source, topics.backlogs, now_ms, self._deadline)
        except ConfigError as error:  # a log whose records the broker cannot read has no offsets by time
            what = f"the traffic of the last {HOURS} hours is not known: {error}"
            self._findings.append(Finding(Level.UNKNOWN, f"cluster {self._config.source.alias}", what))
            return None
        slots = self._config.write.slots
        return size_for(reports, ends, trigger_s=self._config.trigger_s, reading=reading, configured_slots=slots)

    def _is_mirror_over(self, offset_map: OffsetMap | None) -> bool:
        """Return whether nothing of this mirror writes now, as far as this host can tell."""
        recorded = None if offset_map is None else offset_map.recorded()
        return recorded is not None and run_status(self._storage.best_effort_tables(), recorded).is_alive is False

    def _written_offsets(self, partition_counts: Mapping[str, int]) -> dict[str, int]:
        return written_offsets(self._target, partition_counts, self._deadline())

    def _of_others(self, topics: _Topics, offset_map: OffsetMap | None) -> Collection[str]:
        """Return the target topics that the mirror has not copied to, without those that hold copies of a forgotten topic."""
        if offset_map is None or not topics.unmirrored:
            return topics.unmirrored
        positions = offset_map.positions().values()
        return topics.unmirrored.keys() - filled_by_mirror(self._target, topics.unmirrored, positions, self._deadline())

    def _check_schemas(self, schema_ids: SchemaIdSampler) -> tuple[SchemaUse, ...]:
        with open_registries(self._config) as (source, target):
            check = SchemaCheck(source, target)
            uses = check.check(schema_ids.topics)
            self._findings += check.findings
        return uses

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(PATIENCE_MS, self._clock)

    def _read_clusters(self) -> None:
        self._of_source = reach(self._source, self._config.source_cluster_name, self._deadline())
        self._of_target = reach(self._target, self._config.target_cluster_name, self._deadline())
        self._config = exclude_own_targets(self._config, is_same_cluster=self._of_source.cluster_id == self._of_target.cluster_id)
        source_alias, alias = self._config.source.alias, self._config.target.alias
        source_nodes, target_nodes = sorted(self._of_source.brokers), sorted(self._of_target.brokers)
        self._findings += broker_problems(self._source, source_alias, source_nodes, self._deadline, is_target=False)
        self._findings += broker_problems(self._target, alias, target_nodes, self._deadline, is_target=True)
        self._broker_settings, refused = read_broker_settings(self._target, target_nodes, self._deadline)
        self._findings += setting_problems(alias, self._broker_settings, refused, self._config.write.transaction_timeout_ms)

    def _open_map(self) -> OffsetMap | None:
        """Open the map; None before the first run. Raises ConfigError if it is another mirror's, or of other clusters."""
        if self._storage.offset_map.snapshot() is None:
            return None
        offset_map = OffsetMap.open(self._storage, mirror=self._config.mirror)
        offset_map.require_clusters(source=self._of_source.cluster_id, target=self._of_target.cluster_id)
        return offset_map

    def _check_slots(self, offset_map: OffsetMap | None) -> None:
        names = transactional_ids(self._config.mirror, id_count(self._config.write.slots))
        alias = self._config.target.alias

        def ask_controls() -> None:
            if offset_map is not None:
                newest = NewestControl(self._config.target.client, self._config.mirror, offset_map.map_id)
                newest.require_in(Controls.open(self._storage).read)

        self._findings += slot_problems(self._target, alias, names, offset_map, ask_controls, self._deadline)

    def _check_decision(self, offset_map: OffsetMap | None) -> None:
        """Report transactions that a start could not resolve, as their evidence is gone: of the last decision, or pending."""
        if offset_map is None or not (offset_map.unsettled_rows() or offset_map.pending_rows()):
            return
        subject = f"cluster {self._config.target.alias}"
        try:
            reports = inspect(self._config, self._spark)
        except ConfigError as error:  # a missing permission, which is reported with the slots
            what = f"whether the last decision can be resolved is not known: {error}"
            self._findings.append(Finding(Level.UNKNOWN, subject, what))
            return
        self._findings += [
            Finding(
                Level.STOPS,
                subject,
                f"the transaction {report.decided.txn.transactional_id} of the last decision needs the operator: "
                "`shallow-mirror recover CONF` shows what is known and takes the choice",
            )
            for report in reports
            if report.needs_choice
        ]

    def _partition_counts(self, listing: LogEnds, mirrored: Collection[str], closed: Collection[str]) -> dict[str, int]:
        """Return the number of partitions by source topic. `closed`: topics that the operator has forgotten."""
        names = sorted(listing.topic_ids)
        mirrored = {topic for topic in mirrored if self._config.topics.is_included(topic)}
        include, exclude = self._config.topics.include, self._config.topics.exclude
        hidden = unauthorized_topics(self._source, include, mirrored, names, self._deadline(), exclude=exclude)
        self._findings += [Finding(Level.STOPS, f"source topic {name}", what) for name, what in hidden.items()]
        if not names:
            what = nothing_matches(include)
            self._findings.append(Finding(Level.STOPS, f"cluster {self._config.source.alias}", what))
            return {}
        known = {*names, *mirrored, *hidden, *closed}
        for sentence in unmatched_sentences(self._source, self._config.topics, known, self._deadline()):
            what = f"{sentence}; `run --available-now` copies the others and ends with exit code 1, any other run waits for it"
            self._findings.append(Finding(Level.DOUBT, f"cluster {self._config.source.alias}", what))
        listed = self._source.metadata(names, self._deadline()).topics
        partitions = {name: len(listed[name].partitions) for name in names}
        self._findings += _leaderless(listing, partitions)
        return partitions

    def _plan_targets(
        self, partitions: Mapping[str, int], mirrored: Mapping[str, TargetPartition]
    ) -> tuple[dict[str, TargetPlan], TargetPlans]:
        target = TargetCluster(
            cluster=self._target,
            broker_count=len(self._of_target.brokers),
            defaults=next(iter(self._broker_settings.values()), {}),
        )
        targets = TargetPlans(self._config, self._source, target, mirrored, self._deadline)
        plans = targets.plan(partitions)
        self._findings += targets.findings
        of_source = request_permissions(self._source, sorted(partitions), self._deadline())
        of_target = request_permissions(self._target, sorted({plan.topic for plan in plans.values()}), self._deadline())
        self._findings += source_right_problems(of_source, plans)
        if self._config.groups.is_followed:
            of_log = request_permissions(self._source, [GROUP_LOG], self._deadline())
            self._findings += group_log_problems(of_log, self._config.groups)
        self._findings += target_right_problems(of_target, plans)
        if self._config.acls.read_only:
            self._findings += read_only_findings(self._config, sorted({plan.topic for plan in plans.values()}), of_target)
        return plans, targets

    def _mirror_pace(self, offset_map: OffsetMap | None) -> Pace | None:
        recorded = None if offset_map is None else offset_map.recorded()
        if recorded is None:
            return None
        recent = Comparison("micro_batch", ">", recorded.micro_batch - PACE_MICRO_BATCHES)
        return mirror_pace(self._storage.best_effort_tables().read(MICRO_BATCHES_TABLE, (recent,)))


def _cluster_report(alias: str, metadata: ClusterMetadata) -> ClusterReport:
    return ClusterReport(alias=alias, cluster_id=metadata.cluster_id, broker_count=len(metadata.brokers))


def _of_other_writers(before: Mapping[str, int], now: Mapping[str, int], unmirrored: Collection[str]) -> Iterator[Finding]:
    for topic, offsets in sorted(now.items()):
        if offsets > before[topic]:
            yield Finding(Level.DOUBT, f"target topic {topic}", IS_WRITTEN_BY_OTHERS)
        elif offsets and topic in unmirrored:
            yield Finding(Level.DOUBT, f"target topic {topic}", WRITTEN_BY_OTHERS)


def _leaderless(listing: LogEnds, partitions: Mapping[str, int]) -> Iterator[Finding]:
    led = Counter(topic_partition.topic for topic_partition in listing.ends)
    for name, count in partitions.items():
        missing = count - led[name]
        if missing > 0:
            what = f"{missing} of {count} partitions have no leader now: nothing could be checked"
            yield Finding(Level.UNKNOWN, f"source topic {name}", what)
