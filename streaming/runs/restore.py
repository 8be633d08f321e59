"""Driver: a restore: a mirror that reads an archive instead of a cluster, and ends by itself."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from shallow_mirror.checkpoints import DecidedSegment, OffsetMap, Position
from shallow_mirror.checkpoints.ledger import ArchiveTable, LedgerOwner, RestoreRanges, RestoreRangesTable, TopicDescription
from shallow_mirror.checkpoints.logs import QuarantineTable, undescribed_entries
from shallow_mirror.checkpoints.logs.runs import Problem, ProblemKind
from shallow_mirror.checkpoints.tables import Comparison, TableStorage
from shallow_mirror.config import RestoreConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, MirrorError, ObjectMissingError
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.groups.restored_groups import REQUEST_S, noted_positions, report_groups, restore_groups
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.plurals import counted
from shallow_mirror.sinks import Observer, UnfinishedRange
from shallow_mirror.sinks.archive import require_objects
from shallow_mirror.sinks.kafka import KafkaSink
from shallow_mirror.sinks.kafka.targets import TargetTopics, refuse_filled_topics, refuse_overtaken_topics, rows_at
from shallow_mirror.sinks.kafka.targets.settings import PreservedSettings
from shallow_mirror.sinks.kafka.writers import KafkaSlotJob
from shallow_mirror.sinks.micro_batches import MicroBatchReport, MicroBatchSink
from shallow_mirror.sinks.slots import UNLIMITED_QUARANTINE, ArchiveInput, LogEndInput, SlotTime, ranges_by_slot
from shallow_mirror.streaming.planning.restore_planner import (
    RestorePlanner,
    described_topics,
    group_times,
    unmatched_sentence,
)
from shallow_mirror.streaming.planning.restore_steps import RestoreStep, plan_step, require_adjacent_rows, require_named_objects
from shallow_mirror.streaming.runs.broker_limits import require_room_for_receipts
from shallow_mirror.streaming.runs.partition_registration import decide_first_rows
from shallow_mirror.streaming.runs.preserved_restore import PreservedRestore, changed_offsets_problems, plan_log_ends
from shallow_mirror.streaming.runs.restore_decision import RestoreDecision, decide_restore
from shallow_mirror.streaming.runs.restored_retention import RestoredRetention
from shallow_mirror.streaming.runs.run import Run, Runnable
from shallow_mirror.streaming.runs.take_over import ClusterIds, KafkaAttempt, refuse_ids_of_another, take_over_offset_map
from shallow_mirror.streaming.runs.target_logs.preserved_log_filling import LogFilling
from shallow_mirror.streaming.runs.target_logs.recorded_ends import require_recorded_ends
from shallow_mirror.streaming.spark import spark_session
from shallow_mirror.streaming.spark.spark_session import RunSession
from shallow_mirror.streaming.watch.reported_run import ReportedRun
from shallow_mirror.types import PlannedRange, SourcePartition

_log = logging.getLogger(__name__)

_LEFT_OUT_PAUSE_S = 5.0
"""Before a log is tried again that could not be written."""


class Restore(Runnable[RestoreConfig]):
    """One restore in one process. `run` returns when all is restored, or at a stop; else it raises the error that ended it."""

    _config_class = RestoreConfig

    def run(self, spark: Any = None) -> tuple[str, ...]:
        """Restore up to the cut. A later call continues after the end of this one.

        Return a sentence for everything that the file includes and that was left out; nothing after a stop. Use `spark`, or
        build a local session and stop it at the end. An unreachable cluster or store is waited for. Raise FencedError,
        ConfigError, BatchRefusedError, CorruptBatchError, ArchiveFormatError, ObjectMissingError, SparkLostError.
        """
        run = _RestoreRun(self.config, self._observer, self._stop)
        run.run(spark)
        return run.omissions


@dataclass(frozen=True, slots=True)
class _Copying:
    """The objects of one attempt."""

    spark: Any
    decided: RestoreRanges
    targets: TargetTopics
    sink: MicroBatchSink
    kafka: KafkaSink
    parallelism: int


class _RestoreRun(Run[RestoreConfig]):
    omissions: tuple[str, ...] = ()
    """What the file includes and the restore has left out, once it is complete."""

    def __init__(self, config: RestoreConfig, observer: Observer, stop: threading.Event) -> None:
        self.store = ObjectStore.open(config.archive.objects, config.storage_options)
        self.archive = TableStorage(config.archive_table_location)
        secrets_of = (config.target.client, self.store)
        super().__init__(
            config,
            ReportedRun.of_restore(config),
            observer,
            stop,
            may_stream=False,
            secrets_of=secrets_of,
            reads=self.archive,
        )
        self.target = self.connected(config.target.client)
        self._slot_time = SlotTime(config.write.slots)
        self._preserved = PreservedRestore(config, self.target)
        self._left_out: tuple[UnfinishedRange, ...] = ()
        self._has_written = False

    def connect(self) -> None:
        if not self.archive.location.is_read_by_spark:
            self._open_archive()
        self._target_cluster_id = self.cluster_id(self.target, self.config.target_cluster_name)

    def check(self) -> None:
        self.supervisor.retry_forever(
            "settings of brokers",
            lambda: require_room_for_receipts(self.target, self.config.target_cluster_name, self.supervisor.deadline()),
        )

    def on_session(self, session: RunSession) -> None:
        self.archive = self.archive.with_session(session.spark)
        if self.archive.location.is_read_by_spark:
            self._open_archive()

    def _open_archive(self) -> None:
        self.table = self.supervisor.retry_forever("archive", lambda: ArchiveTable.open(self.archive))
        self.supervisor.retry_forever("objects", lambda: require_objects(self.table, self.store))

    def take_over(self) -> LedgerOwner:
        return take_over_offset_map(
            self.config,
            self.storage,
            ClusterIds(source=self.table.source_cluster_id, target=self._target_cluster_id),
            self.identity,
            before_creation=lambda: refuse_ids_of_another(self.config, self.target, self.supervisor.deadline()),
        )

    def copy(self, spark: Any) -> bool:
        return self.repeat("restore", lambda: self._attempt(spark))

    def on_done(self) -> str:
        for omission in self.omissions:
            remedy = "then start the restore again: it is complete otherwise"
            self.reporter.record_problem(Problem(kind=ProblemKind.CONFIG, text=f"left out: {omission}", remedy=remedy))
        return f"done, with {counted(len(self.omissions), 'omission')}" if self.omissions else "done"

    def _attempt(self, spark: Any) -> bool:
        """Resolve the open decision of the last attempt, then copy the rest. Return False at a stop."""
        config, owner = self.config, self.owner
        attempt = KafkaAttempt(
            config=config,
            identity=self.identity,
            owner=owner,
            source=None,
            target=self.target,
            observer=self.observer,
        )
        attempt.recover(self.supervisor.deadline())
        self.table.refresh()
        planner = RestorePlanner(config, self.table, self.store, self.archive)
        self.reporter.start_step("deciding what to restore")
        recorded = RestoreRangesTable.of(self.storage).read()
        decision = decide_restore(config, recorded, owner.positions(), planner, self.table.archive_id, owner.run_epoch)
        decision.log()
        decided = decision.ranges
        if config.topics.preserves_offsets:
            self.reporter.start_step("trying preserved offsets", " with a topic of the target")
            self._preserved.prepare(self.supervisor.deadline())
        self.reporter.ends = {source: offsets.end for source, offsets in decided.ranges.items()}
        topics = described_topics(self.archive, decided)
        retention = RestoredRetention(config, self.target, self.storage, owner)
        targets = TargetTopics(
            config,
            _ConfigsOfArchive(topics),
            self.target,
            positions=owner.positions(),
            route=config.target_topic,
            adjust_new=retention.pause_new,
        )
        job = replace(attempt.job_template(), guard_times=self._preserved.guard_times)
        self._register(targets, topics, decision, retention, job)
        kafka = self._kafka_sink(attempt, job, targets)
        parallelism = spark_session.parallelism_of(spark, config.write.slots)
        copying = _Copying(spark, decided, targets, self._micro_batch_sink(kafka), kafka, parallelism)
        positions = {source: position.offset for source, position in owner.positions().items()}
        is_done = self._copy_steps(copying, planner.steps(decided, positions))
        if is_done:
            self._require_complete(decided)
            is_done = self._fill_logs(copying)
        owner.settle()
        if is_done:
            attempt.performer.require_visible()  # no later micro-batch looks at it again
            omissions = (*self._left_out_records(decision), *self._commit_groups(decided))
            retention.log_paused(self.supervisor.deadline())
            self.omissions = omissions  # not before: nothing is returned where this attempt ends at a stop
        return is_done

    def _kafka_sink(self, attempt: KafkaAttempt, job: KafkaSlotJob, targets: TargetTopics) -> KafkaSink:
        preserves_offsets = self.config.topics.preserves_offsets
        return KafkaSink(
            # A log that has to wait for requests of an earlier run is left out meanwhile: an error would stop the other slots.
            job=replace(job, leaves_out=preserves_offsets),
            slots=self.config.write.slots,
            owner=self.owner,
            performer=attempt.performer,
            targets=targets,
            observer=self.observer,
            guard=attempt.guard,
            settings=PreservedSettings(self.target) if preserves_offsets else None,
            refuse_rows=self._refuse_overtaken,
        )

    def _refuse_overtaken(self, rows: Sequence[DecidedSegment], deadline: Deadline) -> None:
        refuse_overtaken_topics(self.target, self.owner.positions(), rows, deadline)

    def _micro_batch_sink(self, kafka: KafkaSink) -> MicroBatchSink:
        return MicroBatchSink(
            kafka,
            source=None,
            slot_time=self._slot_time,
            report=self._report,
            observer=self.observer,
            quarantine=QuarantineTable.open(self.storage),
            quarantine_limits=self.config.write.quarantine_limits or UNLIMITED_QUARANTINE,
            left_out=self._note_left_out,
        )

    def _note_left_out(self, unfinished: Sequence[UnfinishedRange], positions: Mapping[SourcePartition, Position]) -> None:
        self._left_out = tuple(unfinished)
        self.reporter.left_out.on_micro_batch(unfinished, positions)

    def _copy_steps(self, copying: _Copying, steps: Iterable[RestoreStep]) -> bool:
        """Copy one step after the other. Return False at a stop."""
        for number, step in enumerate(steps):
            while slots := self._slots_of(copying, step):
                archive_input = ArchiveInput(
                    objects=self.config.archive.objects,
                    storage_options=self.config.storage_options,
                    segments=step.rows,
                    slots=slots,
                )
                if self.supervisor.is_over():
                    return False
                try:
                    if not self._run_slots(copying, archive_input, number):
                        return False
                except ObjectMissingError:
                    self._require_named_objects(step)
                    raise
            self.table.refresh()  # a running archive compacts its table, and deletes the replaced files after a day
        return True

    def _require_named_objects(self, step: RestoreStep) -> None:
        """Raise MirrorError if retention has deleted rows of a step since they were read, and their objects with them."""
        decisions = [row.micro_batch for rows in step.rows.values() for row in rows]
        self.table.refresh()
        rows = self.table.rows(
            (Comparison("micro_batch", ">", min(decisions) - 1), Comparison("micro_batch", "<=", max(decisions)))
        )
        require_named_objects(step, {row.stored.object_name for row in rows if row.stored is not None})

    def _slots_of(self, copying: _Copying, step: RestoreStep) -> Sequence[Sequence[PlannedRange]]:
        """Return the ranges of a step that are not copied yet, by slot."""
        positions, decided = self.owner.positions(), copying.decided.ranges
        starts = {source: positions[source].offset for source in step.rows}
        ends = {source: min(rows[-1].segment.source_end, decided[source].end) for source, rows in step.rows.items()}
        require_adjacent_rows(step, starts)
        return ranges_by_slot(plan_step(step, starts, ends, self.config, copying.parallelism))

    def _run_slots(self, copying: _Copying, slots_input: ArchiveInput | LogEndInput, number: int) -> bool:
        """Run one micro-batch, and wait if it left something out. Return False at a stop."""
        self._has_written = True
        copying.kafka.open_input = slots_input
        count = len(slots_input.slots)
        # Not a Python data source: Spark would start processes of its own to plan each micro-batch, and one more for each slot.
        with self.reporter.health.micro_batch():
            copying.sink(copying.spark.range(0, count, 1, count), number)
        return not self._left_out or not self.supervisor.wait(_LEFT_OUT_PAUSE_S)

    def _fill_logs(self, copying: _Copying) -> bool:
        """Let the logs of preserved topics begin and end with the archived ranges. Return False at a stop."""
        preserved, owner = self._preserved, self.owner
        while short := preserved.short_logs(owner.positions(), self.supervisor.deadline()):
            log_ends = LogEndInput(slots=plan_log_ends(short, self.config.write.slots))
            if self.supervisor.is_over() or not self._run_slots(copying, log_ends, 0):
                return False
        if self._has_written:  # a complete restore may be in use
            preserved.require_own_ends(owner.positions(), self.supervisor.deadline())
        preserved.delete_leading_fillers(
            copying.decided.ranges,
            owner.positions(),
            lambda topic: copying.targets.routes[topic].is_compacted,
            self.supervisor.deadline(),
        )
        return True

    def _register(
        self,
        targets: TargetTopics,
        topics: Mapping[str, TopicDescription],
        decision: RestoreDecision,
        retention: RestoredRetention,
        job: KafkaSlotJob,
    ) -> None:
        """Create the target topics, and write the decision and the first row of every partition. Raise ConfigError.

        A topic without such rows was never written by this restore: it has to be empty. One that was registered only may have
        been taken by another restore since.
        """
        owner, deadline, decided = self.owner, self.supervisor.deadline(), decision.ranges
        if problems := changed_offsets_problems(owner.positions(), self.config.topics.is_preserved):
            raise ConfigError(problems)
        begun = {source.topic for source in owner.positions()}
        self._preserved.require_possible(decided.ranges, begun, deadline)
        names = {topic: self.config.target_topic(topic) for topic in topics}
        refuse_filled_topics(self.target, names, owner.positions(), deadline)
        retention.require_kept(self.table, decided, deadline)
        self.reporter.start_step("preparing target topics", f" of {counted(len(topics), 'archived topic')}")
        require_recorded_ends(self.target, owner.positions().values(), deadline)
        targets.prepare({name: description.partitions for name, description in topics.items()}, deadline)
        retention.require_kept(self.table, decided, deadline)  # a cluster may give new topics other settings than requested
        # Only now: a remedy of a problem above may be another file, which could not be used once this is written.
        decision.write(RestoreRangesTable.of(self.storage), owner)
        positions = owner.positions()
        starts = {source: offsets.start for source, offsets in decided.ranges.items() if source not in positions}
        if starts:
            decide_first_rows(owner, self._preserved.with_producers(rows_at(starts, targets), deadline))
        if self._preserved.guard_times is not None:
            LogFilling(owner, self.target, job, lambda: targets.routes, self.supervisor.deadline).fill()

    def _require_complete(self, decided: RestoreRanges) -> None:
        """Raise MirrorError if a partition is not restored up to its end: rows of the archive are missing."""
        positions = self.owner.positions()
        left = {source: offsets.end for source, offsets in decided.ranges.items() if positions[source].offset < offsets.end}
        if left:
            source, end = min(left.items())
            raise MirrorError(
                f"{counted(len(left), 'partition')} cannot be restored up to the cut: {source.topic_partition} ends at "
                f"{positions[source].offset} instead of {end}. Rows of the archive are gone since the restore began "
                "(retention?): shallow-mirror archive verify"
            )
        _log.info("restored: %s up to the cut", counted(len(decided.ranges), "partition"))

    def _left_out_records(self, decision: RestoreDecision) -> list[str]:
        """Return a sentence for records that the file includes and that are not in the target."""
        omissions = [unmatched_sentence(pattern) for pattern in decision.unmatched_patterns]
        offset_map = OffsetMap.open(self.storage.to_read(), mirror=self.config.mirror)
        quarantined = sum(not entry.is_released for entry in undescribed_entries(offset_map))
        if quarantined:
            omissions.append(f"{counted(quarantined, 'batch')} in quarantine (`shallow-mirror quarantine list FILE`)")
        return omissions

    def _commit_groups(self, decided: RestoreRanges) -> list[str]:
        """Commit the offsets of groups at the cut. Return a sentence for each that was left out: the next start tries again."""
        config = self.config
        if config.groups.commit == "off":
            return []
        self.reporter.start_step("committing the offsets of consumer groups")
        tables = self.archive.best_effort_tables()
        times = group_times(self.table, self.archive, decided, config.until, datetime.now(UTC))
        positions = noted_positions(tables, times)
        offset_map = OffsetMap.open(self.storage.to_read(), mirror=config.mirror)
        with closing(GroupClient(config.target.client, config.target_cluster_name, REQUEST_S)) as target:
            groups = restore_groups(config, positions, decided.ranges, offset_map, target)
        return report_groups(groups)

    def _report(self, report: MicroBatchReport) -> None:
        self.reporter.on_micro_batch(report, self.owner, self.owner.positions())
        self.owner.compact_if_due()


class _ConfigsOfArchive:
    """The settings of topics as they were archived."""

    def __init__(self, topics: Mapping[str, TopicDescription]) -> None:
        self._topics = topics

    def topic_configs(self, names: Sequence[str], _deadline: Deadline) -> dict[str, Mapping[str, str]]:
        return {name: self._topics[name].configs for name in names}
