"""Driver: the streaming query of a run: recovery, registration, the sink, the monitor, and the query itself."""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints import DecidedSegment, OffsetMap, Position
from shallow_mirror.checkpoints.ledger import OffsetMapOwner, RunIdentity
from shallow_mirror.checkpoints.logs import QuarantineTable
from shallow_mirror.checkpoints.logs.topics import Controls, DeletedTopicsTable, ForgottenTopics
from shallow_mirror.checkpoints.tables import MirrorStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError, TopicRecreatedError
from shallow_mirror.plurals import counted
from shallow_mirror.sinks import Observer
from shallow_mirror.sinks.kafka import KafkaSink, RunGuard, StallDetector
from shallow_mirror.sinks.kafka.preserved import (
    GuardTimes,
    HeldRecords,
    read_guard_times,
    require_agreed,
    require_preserved_offsets,
    with_shared_producers,
)
from shallow_mirror.sinks.kafka.protocol import TxnPerformer, recover
from shallow_mirror.sinks.kafka.targets import TargetTopics, first_rows, warn_of_others
from shallow_mirror.sinks.kafka.targets.settings import LogAppendTimeTopics, PreservedSettings
from shallow_mirror.sinks.kafka.writers import KafkaSlotJob
from shallow_mirror.sinks.micro_batches import MicroBatchReport, MicroBatchSink
from shallow_mirror.sinks.slots import UNLIMITED_QUARANTINE, SlotTime
from shallow_mirror.streaming.planning import planner_state
from shallow_mirror.streaming.planning.offset_planning import recreated_topics
from shallow_mirror.streaming.planning.planner_config import PlannerConfig
from shallow_mirror.streaming.planning.rate_limiter import CopiedBytes
from shallow_mirror.streaming.planning.source_offsets import SourceOffsets
from shallow_mirror.streaming.runs.continued_logs import ContinuedLogs
from shallow_mirror.streaming.runs.cycle_detection import CycleDetector
from shallow_mirror.streaming.runs.ended_preservation import EndedPreservation
from shallow_mirror.streaming.runs.followed_deletions import FollowedDeletions
from shallow_mirror.streaming.runs.gone_topics import problems_of_gone, without_gone_topics
from shallow_mirror.streaming.runs.held_settings import HeldSettings
from shallow_mirror.streaming.runs.micro_batch_choice import choose_micro_batches
from shallow_mirror.streaming.runs.partition_registration import PartitionRegistrar, decide_first_rows
from shallow_mirror.streaming.runs.permissions import require_authorized_topics
from shallow_mirror.streaming.runs.preserved_log_filling import LogFilling
from shallow_mirror.streaming.runs.query import Query, run_query
from shallow_mirror.streaming.runs.recorded_ends import require_recorded_ends
from shallow_mirror.streaming.runs.supervisor import Supervisor
from shallow_mirror.streaming.runs.topic_monitor import TopicMonitor
from shallow_mirror.streaming.sources.planner_options import PlannerOptions
from shallow_mirror.streaming.spark import spark_session, temp_dirs
from shallow_mirror.streaming.watch.micro_batch_summary import measurements_of
from shallow_mirror.streaming.watch.run_reporter import RunReporter
from shallow_mirror.types import SegmentKind, SourcePartition

FOLLOW_MS = 10_000.0
"""How long the tasks of a micro-batch read beyond what was planned, where all offsets are preserved: so long, a record is
visible a moment after it was written. Rows of the offset map follow when the tasks end."""


@dataclass(kw_only=True, slots=True)
class MirrorQuery:
    """The query of the owner of the offset map. It is begun again, with new objects, after every retriable error.

    What outlives an attempt is measured (`slot_time`, `copied`) or known of topics (`cycles`, `stamping`).
    """

    config: MirrorConfig
    identity: RunIdentity
    source: Cluster
    target: Cluster
    storage: MirrorStorage
    owner: OffsetMapOwner
    cycles: CycleDetector
    reporter: RunReporter
    supervisor: Supervisor
    observer: Observer
    available_now: bool
    source_cluster_id: str
    slot_time: SlotTime = field(init=False)
    copied: CopiedBytes = field(init=False)
    stamping: LogAppendTimeTopics = field(init=False)
    guard_times: GuardTimes | None = field(default=None, init=False)
    has_begun: bool = field(default=False, init=False)
    held: HeldSettings = field(init=False)
    forgotten: ForgottenTopics = field(default_factory=ForgottenTopics, init=False)

    def __post_init__(self) -> None:
        self.slot_time = SlotTime(self.config.write.slots)
        self.copied = CopiedBytes(self.config.topics.bytes_per_second)
        self.stamping = LogAppendTimeTopics(self.reporter.record_problem)
        self.held = HeldSettings(self.config, self.source, self.storage, self.owner.run_epoch)

    def recover_and_run(self, spark: Any) -> None:
        """Do one attempt: resolve what the last one left open, then mirror until the query ends."""
        guard = RunGuard(self.target, self.config.mirror, self.config.write.transaction_timeout_ms)
        performer = self._recover(guard)
        if self.config.topics.preserves_offsets and self.guard_times is None:
            self._prepare_preserved_offsets()
        self.forgotten = Controls.open(self.storage.to_read()).read().forgotten
        targets = self._target_topics()
        topic_ids = self._register_partitions(targets)
        registration = planner_state.RegistrationFiles.of_query(temp_dirs.temp_dir(), uuid.uuid4().hex)
        planned_path = temp_dirs.temp_dir() / f"planned-{self.identity.run_id}.json"
        kafka = self._kafka_sink(performer, guard, targets, planned_path)
        filling = self._log_filling(targets)
        sink = self._micro_batch_sink(kafka, self._registrar(registration, targets), filling)
        positions = self._positions()
        self.reporter.set_positions(positions)
        paused_path = temp_dirs.temp_dir() / f"paused-{registration.query_id}.json"
        parallelism = spark_session.parallelism_of(spark, self.config.write.slots)
        options = self._planner_options(positions, topic_ids, paused_path, planned_path, registration, parallelism)
        monitor = self._topic_monitor(targets, positions, paused_path)
        self.reporter.start_step("starting the query", f" over {counted(len(positions), 'partition')}")
        try:
            with monitor:
                self._run_query(spark, sink, kafka.watch, options)
        except TopicRecreatedError as recreated:
            if not self.config.read.continues_after_data_loss:
                raise
            # The next attempt registers the new incarnation's partitions.
            raise RetriableError("TOPIC_RECREATED", f"{recreated}; what it holds now is mirrored from its start") from recreated
        finally:
            registration.discard()
            planner_state.discard_paused_topics(paused_path)
        if filling is not None:
            filling.fill()
        self.owner.settle()

    def _positions(self) -> dict[SourcePartition, Position]:
        """Return the positions of the offset map without those of topics that the operator has forgotten."""
        return self.forgotten.without(self.owner.positions())

    def _prepare_preserved_offsets(self) -> None:
        """Learn what the target's brokers say of their times, and try what preserved offsets need of them: once a run."""
        self.reporter.start_step("trying preserved offsets", " with a topic of the target")
        deadline = self.supervisor.deadline()
        require_preserved_offsets(self.target, self.config.mirror, deadline)
        self.guard_times = read_guard_times(self.target, self.config.write.transaction_timeout_ms, deadline)

    def _recover(self, guard: RunGuard) -> TxnPerformer:
        """Resolve the last decision. Return the performer of this attempt's transactions, with every slot fenced."""
        performer = TxnPerformer(
            self.owner,
            self.target,
            transaction_timeout_ms=self.config.write.transaction_timeout_ms,
            observer=self.observer,
            source=self.source,
        )
        self.owner.check_ownership()
        count = counted(self.owner.highest_slot + 1, "transactional id")
        self.reporter.start_step("resolving the transactions of the last run", f", fencing {count}")
        recover(self.owner, performer, mirror=self.config.mirror, deadline=self.supervisor.deadline(), guard=guard)
        return performer

    def _target_topics(self) -> TargetTopics:
        return TargetTopics(
            self.config,
            self.source,
            self.target,
            positions=self._positions(),
            route=self.cycles.target_topic_name,
            announce=self.cycles.register,
            stamping=self.stamping,
            adjust_new=self.held.hold,
            isolates=self.config.on_error == "isolate",
        )

    def _registrar(self, registration: planner_state.RegistrationFiles, targets: TargetTopics) -> PartitionRegistrar:
        return PartitionRegistrar(
            registration,
            self.owner,
            self.source,
            functools.partial(self._first_rows, targets),
            deadline=self.supervisor.deadline,
            report=lambda positions: self.reporter.set_positions(self.forgotten.without(positions)),
            observer=self.observer,
        )

    def _first_rows(
        self, targets: TargetTopics, starts: Mapping[SourcePartition, int], deadline: Deadline
    ) -> tuple[DecidedSegment, ...]:
        """Return the first rows of partitions, those of preserved topics with the producer id that their writers share."""
        existing = ContinuedLogs(self.config, self.reporter.start_step, self.supervisor.deadline)
        new = first_rows(targets, self.source, starts, deadline)
        gone = [row for row in new if row.segment.source.topic in targets.gone]
        rows = (*existing.with_existing([row for row in new if row not in gone]), *gone)
        return with_shared_producers(self.target, rows, self.config.topics.is_preserved, deadline, targets.gone)

    def _kafka_sink(self, performer: TxnPerformer, guard: RunGuard, targets: TargetTopics, planned_path: Path) -> KafkaSink:
        return KafkaSink(
            job=replace(
                self._job_template(),
                leaves_out=True,
                isolates=self.config.on_error == "isolate",
                follow_ms=0.0 if self.available_now or self.config.read.transfer != "direct" else FOLLOW_MS,
            ),
            slots=self.config.write.slots,
            owner=self.owner,
            performer=performer,
            targets=targets,
            observer=self.observer,
            planned_ranges=functools.partial(planner_state.read_planned_ranges, planned_path),
            guard=guard,
            settings=PreservedSettings(self.target) if self.config.topics.preserves_offsets else None,
            held=HeldRecords(self.target) if self.config.topics.preserves_offsets else None,
        )

    def _job_template(self) -> KafkaSlotJob:
        job = KafkaSlotJob.template(self.config, map_id=self.owner.map_id, run_id=self.identity.run_id, observer=self.observer)
        return replace(job, guard_times=self.guard_times)

    def _log_filling(self, targets: TargetTopics) -> LogFilling | None:
        """Fill the logs of preserved topics up to the positions. Return what does so later; None where no topic is preserved."""
        if self.guard_times is None:
            return None
        filling = LogFilling(
            self.owner,
            self.target,
            self._job_template(),
            lambda: targets.routes,
            self.supervisor.deadline,
        )
        self.reporter.start_step("filling the logs of preserved topics", " up to their positions")
        filling.fill()
        return filling

    def _micro_batch_sink(self, kafka: KafkaSink, registrar: PartitionRegistrar, filling: LogFilling | None) -> MicroBatchSink:
        def register() -> None:
            registrar.register()
            if filling is not None:
                filling.fill()

        def report(report: MicroBatchReport) -> None:
            self._report(report)
            if filling is not None:
                filling.note(report.rows)

        return MicroBatchSink(
            kafka,
            source=self.source,
            slot_time=self.slot_time,
            report=report,
            observer=self.observer,
            continues_after_data_loss=self.config.read.continues_after_data_loss,
            quarantine=QuarantineTable.open(self.storage),
            quarantine_limits=self.config.write.quarantine_limits or UNLIMITED_QUARANTINE,
            left_out=self.reporter.left_out.on_micro_batch,
            register=register,
        )

    def _planner_options(
        self,
        positions: Mapping[SourcePartition, Position],
        topic_ids: Mapping[str, str],
        paused_path: Path,
        planned_path: Path,
        registration: planner_state.RegistrationFiles,
        parallelism: int,
    ) -> PlannerOptions:
        # A recreated topic keeps its old positions in the map: the query begins with those of the topics that exist.
        of_query = without_gone_topics(positions, topic_ids, keeps_recreated=self.config.isolates_recreated)
        initial = {source: positions[source].offset for source in of_query}
        self.reporter.left_out.on_query_start(initial)
        return PlannerOptions(
            config=self.config,
            map_id=self.owner.map_id,
            initial=initial,
            parallelism=parallelism,
            paused_path=paused_path,
            left_out_path=self.reporter.left_out.path,
            planned_path=planned_path,
            registration=registration,
            forgotten=self.forgotten.topic_ids,
        )

    def _topic_monitor(
        self, targets: TargetTopics, positions: Mapping[SourcePartition, Position], paused_path: Path
    ) -> TopicMonitor:
        return TopicMonitor(
            self.config,
            targets,
            {source.topic for source in positions},
            Controls.open(self.storage),
            paused_path,
            cycles=self.cycles,
            held=self.held,
            positions=self._settled_positions,
            report=self.reporter.record_problem,
            deletions=self._followed_deletions(positions),
        )

    def _settled_positions(self) -> dict[SourcePartition, Position]:
        """Read the positions of the offset map; for any thread."""
        return OffsetMap.open(self.storage.to_read(), mirror=self.config.mirror).positions()

    def _followed_deletions(self, mirrored: Iterable[SourcePartition]) -> FollowedDeletions | None:
        """Return what deletes target topics of deleted source topics; None where they are kept."""
        if self.config.topics.deleted == "keep":
            return None
        return FollowedDeletions(
            DeletedTopicsTable.of_mirror(self.storage),
            mirrored,
            self._settled_positions,
            Controls.open(self.storage.to_read()).read,
            source_cluster_id=self.source_cluster_id,
            is_included=self.config.topics.is_included,
            after_s=self.config.topics.deleted_after_s,
            run_epoch=self.owner.run_epoch,
            now_ms=lambda: int(time.time() * 1000),
        )

    def _register_partitions(self, targets: TargetTopics) -> dict[str, str]:
        """Register every partition of the source before anything is planned, and prepare the target of every topic.

        Return the id of every topic that the source has: the map may have older ones of the same name.
        """
        deadline = self.supervisor.deadline()
        positions = self._positions()
        count = counted(len(positions), "partition")
        self.reporter.start_step("looking for new topics and partitions", f", {count} registered so far")
        offsets = SourceOffsets(PlannerConfig.of_mirror(self.config, forgotten=self.forgotten.topic_ids), self.source)
        starts = offsets.start_offsets(positions, deadline, is_start=not self.has_begun)
        controls = Controls.open(self.storage.to_read()).read()
        self.cycles.exempt(controls.without_cycle, controls.returned)
        self.cycles.read_registrations()
        is_included = self.config.topics.is_included
        topics = sorted({source.topic for source in (*starts, *positions) if is_included(source.topic)})
        metadata = self.source.metadata(topics, deadline).topics
        listed = {name: topic for name, topic in metadata.items() if topic.error_code == 0}
        mirrored = {source.topic for source in positions}.intersection(topics)
        require_authorized_topics(self.source, self.config.topics.include, mirrored, listed, deadline)
        self.cycles.require_no_cycles(listed)
        self.reporter.start_step("preparing target topics", f" of {counted(len(listed), 'source topic')}")
        require_agreed({key: at for key, at in positions.items() if key.topic in listed}, self.config.topics.is_preserved)
        topic_ids = {name: topic.topic_id for name, topic in listed.items()}
        recreated = recreated_topics(positions, topic_ids) if self.config.isolates_recreated else {}
        targets.leave_former({name: topic_id for name, topic_id in topic_ids.items() if name not in recreated})
        known = {key: at for key, at in positions.items() if topic_ids.get(key.topic) == key.topic_id}
        require_recorded_ends(self.target, known.values(), deadline)
        targets.prepare({name: len(topic.partitions) for name, topic in listed.items()}, deadline)
        self.reporter.on_gone_topics(problems_of_gone(targets.gone, recreated))
        new = {source.topic for source in starts} - mirrored
        warn_of_others(self.target, targets.partition_counts(new), deadline)
        known = {key: at for key, at in known.items() if key.topic not in targets.gone}
        if undecided := EndedPreservation(self.config, self.target).rows(known, targets.routes, deadline):
            self.reporter.start_step("accounting for what preserved topics hold", "")
            decide_first_rows(self.owner, undecided)
        rows = self._first_rows(targets, starts, deadline)
        if rows:
            self.reporter.start_step("registering new partitions", f": {len({row.segment.source for row in rows}):,}")
            decide_first_rows(self.owner, rows)
        self.has_begun = True
        return topic_ids

    def _run_query(self, spark: Any, sink: MicroBatchSink, steps: StallDetector, options: PlannerOptions) -> None:
        if self.config.read.transfer == "through-spark":
            spark_session.bound_arrow_batches(spark, self.config.read.fetch_bytes)
        self.reporter.start_step("waiting for the first plan")
        run_query(
            Query(
                spark=spark,
                sink=sink,
                options=options,
                trigger_s=None if self.available_now else self.config.trigger_s,
                health=self.reporter.health,
            ),
            choose_micro_batches(self.config.micro_batches, spark, transfer=self.config.read.transfer),
            settle_after_s=self.config.trigger_s,
            supervisor=self.supervisor,
            check=lambda: self._check(steps),
        )

    def _check(self, steps: StallDetector) -> None:
        """Report stalls. Raises ConfigError where a replication ring was closed meanwhile."""
        self.cycles.require_no_ring()
        self.reporter.check_stalls(steps.stalled_step())

    def _report(self, report: MicroBatchReport) -> None:
        """Record a finished micro-batch, and pass measurements to the planner."""
        self.reporter.on_micro_batch(report, self.owner)
        self.owner.compact_if_due()
        segments = [row.segment for row in report.rows]
        self.stamping.produced(
            {segment.target.topic for segment in segments if segment.kind is SegmentKind.DATA}, report.stamped_topics
        )
        self.copied.add(segments)
        self.reporter.write_measurements(measurements_of(report, self.copied.totals))
