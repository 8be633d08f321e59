"""Driver: the query of a mirror: recovery, registration, the sink, the monitor, and the query itself."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints import DecidedSegment, OffsetMap, Position
from shallow_mirror.checkpoints.logs import QuarantineTable
from shallow_mirror.checkpoints.logs.topics import Controls, DeletedTopicsTable, ForgottenTopics
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.plurals import counted, listed
from shallow_mirror.sinks.kafka import KafkaSink, NewestControl, StallDetector
from shallow_mirror.sinks.kafka.preserved import (
    GuardTimes,
    HeldRecords,
    read_guard_times,
    require_agreed,
    require_preserved_offsets,
    with_shared_producers,
)
from shallow_mirror.sinks.kafka.targets import TargetTopics, first_rows
from shallow_mirror.sinks.kafka.targets.other_writers import warn_of_others
from shallow_mirror.sinks.kafka.targets.settings import IdleSettings, LogAppendTimeTopics, PreservedSettings
from shallow_mirror.sinks.kafka.writers import KafkaSlotJob
from shallow_mirror.sinks.micro_batches import MicroBatchReport, MicroBatchSink
from shallow_mirror.sinks.slots import FOLLOW_MS, UNLIMITED_QUARANTINE
from shallow_mirror.streaming.planning import planner_state
from shallow_mirror.streaming.planning.planner_config import PlannerConfig
from shallow_mirror.streaming.runs.cycle_detection import CycleDetector
from shallow_mirror.streaming.runs.followed_deletions import FollowedDeletions
from shallow_mirror.streaming.runs.gone_topics import problems_of_gone, problems_of_new
from shallow_mirror.streaming.runs.held_settings import HeldSettings
from shallow_mirror.streaming.runs.idle_map import IdleMap
from shallow_mirror.streaming.runs.partition_registration import PartitionRegistrar, decide_first_rows
from shallow_mirror.streaming.runs.run import Run
from shallow_mirror.streaming.runs.run_controls import RunControls
from shallow_mirror.streaming.runs.source_query import SourceQuery
from shallow_mirror.streaming.runs.take_over import KafkaAttempt
from shallow_mirror.streaming.runs.target_logs.continued_logs import ContinuedLogs
from shallow_mirror.streaming.runs.target_logs.ended_preservation import EndedPreservation
from shallow_mirror.streaming.runs.target_logs.preserved_log_filling import LogFilling
from shallow_mirror.streaming.runs.target_logs.recorded_ends import require_recorded_ends
from shallow_mirror.streaming.runs.topic_monitor import TopicMonitor
from shallow_mirror.streaming.spark import spark_session, temp_dirs
from shallow_mirror.types import SegmentKind, SourcePartition, TargetPartition

_PENDING_MS, _PENDING_EVERY_S = 60_000.0, 2.0
"""How long a run up to the log ends waits for markers at its end, and how often it looks."""


class MirrorQuery(SourceQuery[MirrorConfig]):
    """The query of the owner of the offset map. It is begun again, with new objects, after every retriable error.

    State that outlives an attempt is measured, or known of topics (`cycles`, `stamping`) and of the target's brokers
    (`guard_times`).
    """

    copied = "mirrored"

    def __init__(
        self,
        run: Run[MirrorConfig],
        source: Cluster,
        source_cluster_id: str,
        target: Cluster,
        cycles: CycleDetector,
    ) -> None:
        slots, topic_rates = run.config.write.slots, run.config.topics.bytes_per_second
        super().__init__(run, source, source_cluster_id, slots=slots, topic_rates=topic_rates)
        self.target = target
        self.cycles = cycles
        self.stamping = LogAppendTimeTopics(self.reporter.record_problem)
        self.guard_times: GuardTimes | None = None
        self.held = HeldSettings(self.config, source, self.storage, self.owner.run_epoch)
        self.newest_control = NewestControl(self.config.target.client, self.config.mirror, self.owner.map_id)
        self.controls = RunControls(Controls.open(self.storage))
        self.forgotten = ForgottenTopics()
        self.filling: LogFilling | None = None
        """Of the logs of preserved topics, in this attempt; None where no topic is preserved."""

    def recover_and_run(self, spark: Any, registration: planner_state.RegistrationFiles) -> None:
        attempt = self._recover()
        if self.config.topics.preserves_offsets and self.guard_times is None:
            self._prepare_preserved_offsets()
        # Raises OlderTablesError if the target knows of a command that the tables do not have.
        self.forgotten = self.newest_control.require_in(self.controls.read).forgotten
        targets = self._target_topics()
        planned_ids = self._register_partitions(targets)
        paused_path = temp_dirs.temp_dir() / f"paused-{registration.query_id}.json"
        planned_path = temp_dirs.temp_dir() / f"planned-{self.identity.run_id}.json"
        job = replace(attempt.job_template(), guard_times=self.guard_times)
        settings = PreservedSettings(self.target, at_start=targets.unfit) if self.config.topics.preserves_offsets else None
        kafka = self._kafka_sink(attempt, job, targets, settings, planned_path)
        self.filling = self._log_filling(job, targets, settings)
        sink = self._micro_batch_sink(kafka, self.registrar(registration, partial(self._first_rows, targets)))
        options = replace(
            self.planner_options(spark, planned_ids, registration),
            paused_path=paused_path,
            planned_path=planned_path,
            forgotten=self.forgotten.topic_ids,
        )
        positions, idle_settings = self.positions(), self._idle_settings(targets)
        self.reporter.start_step("starting the query", f" over {counted(len(positions), 'partition')}")

        def check() -> None:
            self._check(kafka.watch, idle_settings, targets)

        try:
            with self._topic_monitor(targets, positions, paused_path, idle_settings):
                if self.config.read.transfer == "through-spark":
                    spark_session.bound_arrow_batches(spark, self.config.read.fetch_bytes)
                self.reporter.start_step("waiting for the first plan")
                self.run_query(spark, sink, options, check=check, transfer=self.config.read.transfer)
                if self.available_now:
                    self._await_pending(kafka)
        finally:
            planner_state.discard_paused_topics(paused_path)
        if self.filling is not None:
            self._end_filling(self.filling)

    def _end_filling(self, filling: LogFilling) -> None:
        """Fill logs a last time; a run with `available_now` reports those that it leaves out, and does not end well with them."""
        if self.available_now:
            filling.finish(self.supervisor.wait)
        else:
            filling.fill()

    def _await_pending(self, kafka: KafkaSink) -> None:
        """Wait until committed transactions are visible in all their target partitions. Raises as `recheck_unavailable`."""
        patience = Deadline.after_ms(_PENDING_MS, time.monotonic)
        while self.owner.recorded().pending_txns and not patience.is_over():
            kafka.recheck_unavailable()
            if self.supervisor.wait(_PENDING_EVERY_S):
                return

    def positions(self) -> dict[SourcePartition, Position]:
        """Return the positions of the offset map without those of topics that the operator has forgotten."""
        return self.forgotten.without(self.owner.positions())

    def _prepare_preserved_offsets(self) -> None:
        """Read the brokers' settings of times, and try the requirements of preserved offsets: once a run."""
        self.reporter.start_step("trying preserved offsets", " with a topic of the target")
        deadline = self.supervisor.deadline()
        require_preserved_offsets(self.target, self.config.mirror, deadline)
        self.guard_times = read_guard_times(self.target, self.config.write.transaction_timeout_ms, deadline)

    def _recover(self) -> KafkaAttempt:
        """Resolve the last decision. Return the attempt, with every slot fenced."""
        attempt = KafkaAttempt(
            config=self.config,
            identity=self.identity,
            owner=self.owner,
            source=self.source,
            target=self.target,
            observer=self.observer,
        )
        count = counted(self.owner.highest_slot + 1, "transactional id")
        self.reporter.start_step("resolving the transactions of the last run", f", fencing {count}")
        attempt.recover(self.supervisor.deadline())
        return attempt

    def _target_topics(self) -> TargetTopics:
        return TargetTopics(
            self.config,
            self.source,
            self.target,
            positions=self.positions(),
            route=self.cycles.target_topic_name,
            announce=self.cycles.register,
            stamping=self.stamping,
            adjust_new=self.held.hold,
            isolates=self.config.on_error == "isolate",
        )

    def _leave_out_new(self, topics: Collection[str]) -> None:
        """Leave out new topics that would make a cycle with the other mirror of a migration.

        Raises RetriableError if there are any: the next attempt plans without them.
        """
        config = self.cycles.leave_out_new(self.config, topics)
        if config is not self.config:
            self.config = config
            raise RetriableError("TOPICS_LEFT_OUT", "; ".join(self.cycles.left_out.values()))

    def _first_rows(
        self, targets: TargetTopics, starts: Mapping[SourcePartition, int], deadline: Deadline
    ) -> tuple[DecidedSegment, ...]:
        """Return the first rows of partitions, those of preserved topics with the producer id that their writers share."""
        self._leave_out_new({source.topic for source in starts} - targets.routes.keys())
        existing = ContinuedLogs(self.config, self.reporter.start_step, self.supervisor.deadline)
        new = first_rows(targets, self.source, starts, deadline)
        gone = [row for row in new if row.segment.source.topic in targets.gone]
        rows = (*existing.with_existing([row for row in new if row not in gone]), *gone)
        return with_shared_producers(self.target, rows, self.config.topics.is_preserved, deadline, targets.gone)

    def _kafka_sink(
        self,
        attempt: KafkaAttempt,
        job: KafkaSlotJob,
        targets: TargetTopics,
        settings: PreservedSettings | None,
        planned_path: Path,
    ) -> KafkaSink:
        return KafkaSink(
            job=replace(
                job,
                leaves_out=True,
                isolates=self.config.on_error == "isolate",
                follow_ms=0.0 if self.available_now or self.config.read.transfer != "direct" else FOLLOW_MS,
            ),
            slots=self.config.write.slots,
            owner=self.owner,
            performer=attempt.performer,
            targets=targets,
            observer=self.observer,
            planned_ranges=partial(planner_state.read_planned_ranges, planned_path),
            guard=attempt.guard,
            settings=settings,
            held=HeldRecords(self.target) if self.config.topics.preserves_offsets else None,
        )

    def _log_filling(self, job: KafkaSlotJob, targets: TargetTopics, settings: PreservedSettings | None) -> LogFilling | None:
        """Fill the logs of preserved topics up to the positions. Return it for later calls; None if no topic is preserved."""
        if self.guard_times is None:
            return None
        filling = LogFilling(
            self.owner,
            self.target,
            job,
            lambda: targets.routes,
            self.supervisor.deadline,
            forgotten=self.forgotten,
            moved=lambda: self.controls.moving,
            isolates=self.config.on_error == "isolate",
            settings=settings,
            on_unfilled=self.reporter.left_out.on_unfilled_logs,
        )
        self.reporter.start_step("filling the logs of preserved topics", " up to their positions")
        filling.fill()
        return filling

    def _micro_batch_sink(self, kafka: KafkaSink, registrar: PartitionRegistrar) -> MicroBatchSink:
        def register() -> None:
            registrar.register()
            if self.filling is not None:
                self.filling.fill()

        return MicroBatchSink(
            kafka,
            source=self.source,
            slot_time=self.slot_time,
            report=self.report,
            observer=self.observer,
            continues_after_data_loss=self.config.read.continues_after_data_loss,
            quarantine=QuarantineTable.open(self.storage),
            quarantine_limits=self.config.write.quarantine_limits or UNLIMITED_QUARANTINE,
            left_out=self.reporter.left_out.on_micro_batch,
            register=register,
        )

    def _idle_settings(self, targets: TargetTopics) -> IdleSettings | None:
        """Return the object that compares settings beside the micro-batches; None if no topic is preserved."""
        if not self.config.topics.preserves_offsets:
            return None
        isolate = self.reporter.left_out.on_changed_settings if self.config.on_error == "isolate" else None
        idle_settings = IdleSettings(targets, self._settled_positions, isolate)
        idle_settings.begin(targets.unfit)
        return idle_settings

    def _topic_monitor(
        self,
        targets: TargetTopics,
        positions: Mapping[SourcePartition, Position],
        paused_path: Path,
        idle_settings: IdleSettings | None,
    ) -> TopicMonitor:
        return TopicMonitor(
            self.config,
            targets,
            {source.topic for source in positions},
            self.controls,
            paused_path,
            idle_map=IdleMap(self.storage.to_read(), self.config.mirror, self.owner.recorded),
            cycles=self.cycles,
            newest=self.newest_control,
            held=self.held,
            positions=self._settled_positions,
            report=self.reporter.record_problem,
            deletions=self._followed_deletions(positions),
            idle_settings=idle_settings,
            source_cluster_id=self.source_cluster_id,
            target_cluster_id=self.cycles.target_cluster_id,
        )

    def _settled_positions(self) -> dict[SourcePartition, Position]:
        """Read the positions of the offset map; for any thread."""
        return OffsetMap.open(self.storage.to_read(), mirror=self.config.mirror).positions()

    def _first_copies(self, topic: str) -> dict[TargetPartition, int]:
        """Read from the offset map where the first copied record of a source topic is in each target partition."""
        offset_map = OffsetMap.open(self.storage.to_read(), mirror=self.config.mirror)
        return offset_map.first_copies(topic)

    def _followed_deletions(self, mirrored: Iterable[SourcePartition]) -> FollowedDeletions | None:
        """Return the object that deletes target topics of deleted source topics; None if they are kept."""
        if self.config.topics.deleted == "keep":
            return None
        return FollowedDeletions(
            DeletedTopicsTable.of_mirror(self.storage),
            mirrored,
            self._settled_positions,
            self._first_copies,
            self.controls.read,
            source_cluster_id=self.source_cluster_id,
            is_included=self.config.topics.is_included,
            after_s=self.config.topics.deleted_after_s,
            run_epoch=self.owner.run_epoch,
            now_ms=lambda: int(time.time() * 1000),
        )

    def _register_partitions(self, targets: TargetTopics) -> Mapping[str, str]:
        """Register every partition of the source before anything is planned, and prepare the target of every topic.

        Return the topic ids that the query begins with: the map may have older ones of the same name.
        """
        deadline = self.supervisor.deadline()
        controls = self.controls.read()
        planner_config = PlannerConfig.of_mirror(self.config, forgotten=self.forgotten.topic_ids, not_copied=controls.not_copied)
        listing = self.list_source(planner_config, deadline, closed={topic.topic for topic in self.forgotten.at_ms})
        positions, topics, topic_ids = self.positions(), listing.topics, listing.topic_ids
        # Others write to the targets of moved topics: a new partition is theirs, and need not be empty.
        starts = {key: start for key, start in listing.starts.items() if key.topic not in controls.moving}
        self.cycles.exempt(controls.without_cycle, controls.returned)
        self._leave_out_new(topics.keys() - listing.with_position)
        self.cycles.read_registrations()
        self.cycles.require_no_cycles(topics)
        self.reporter.start_step("preparing target topics", f" of {counted(len(topics), 'source topic')}")
        require_agreed({key: at for key, at in positions.items() if key.topic in topics}, self.config.topics.is_preserved)
        targets.leave_former({name: topic_id for name, topic_id in topic_ids.items() if name not in listing.recreated})
        known = {key: at for key, at in positions.items() if topic_ids.get(key.topic) == key.topic_id}
        require_recorded_ends(self.target, [at for key, at in known.items() if key.topic not in controls.moving], deadline)
        counts = {name: len(topic.partitions) for name, topic in topics.items()}
        targets.prepare(counts, deadline, handed_over=controls.moving)
        gone = {topic: problem for topic, problem in targets.gone.items() if topic not in controls.moving}
        recreated = {topic: topic_id for topic, topic_id in listing.recreated.items() if topic not in controls.moving}
        self.reporter.on_gone_topics([*problems_of_gone(gone, recreated), *problems_of_new(self.cycles.left_out)])
        new = {source.topic for source in starts} - listing.with_position
        warn_of_others(self.target, targets.partition_counts(new), self.owner.positions().values(), deadline)
        known = {key: at for key, at in known.items() if key.topic not in targets.gone}
        ended = EndedPreservation(self.config, self.target)
        if undecided := ended.rows(known, targets.routes, self.supervisor.deadline, handed_over=controls.moving):
            self.reporter.start_step("accounting for what preserved topics hold", "")
            decide_first_rows(self.owner, undecided)
        rows = self._first_rows(targets, starts, deadline)
        if rows:
            self.reporter.start_step("registering new partitions", f": {len({row.segment.source for row in rows}):,}")
            decide_first_rows(self.owner, rows)
        self.has_begun = True
        return listing.planned_ids

    def _check(self, steps: StallDetector, idle_settings: IdleSettings | None, targets: TargetTopics) -> None:
        """Report stalls. Raises ConfigError if a replication ring was closed meanwhile, and as `RunControls.require_running`.

        Raises TopicSettingsError as `IdleSettings.require_unchanged`, and RetriableError if a topic was taken back whose target
        was not prepared, because it was hidden.
        """
        self.controls.require_running()
        if returned := sorted(targets.hidden - self.controls.moving):
            raise RetriableError("TOPIC_TAKEN_BACK", f"{listed(returned)}: taken back, and its target topic is prepared again")
        self.cycles.require_no_ring()
        if idle_settings is not None:
            idle_settings.require_unchanged()
        self.reporter.check_stalls(steps.stalled_step())

    def report(self, report: MicroBatchReport) -> None:
        super().report(report)
        segments = [row.segment for row in report.rows]
        written = {segment.target.topic for segment in segments if segment.kind is SegmentKind.DATA}
        self.stamping.produced(written, report.stamped_topics)
        if self.filling is not None:
            self.filling.note(report.rows)
