"""Driver: the running mirror: start-up, the streaming query, the clean stop."""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.connectivity import named_cluster
from shallow_mirror.checkpoints.best_effort_tables import BestEffortTables
from shallow_mirror.checkpoints.commit_metadata import RunIdentity
from shallow_mirror.checkpoints.controls import Controls
from shallow_mirror.checkpoints.offset_map_writer import OffsetMapOwner
from shallow_mirror.checkpoints.quarantine.entries import QuarantineTable
from shallow_mirror.checkpoints.storage import MirrorStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import CorruptBatchError, DataLossError, MirrorError, RetriableError, TopicRecreatedError
from shallow_mirror.groups.sync import GroupSync
from shallow_mirror.local_kafka.jars import delta_jars
from shallow_mirror.plurals import counted
from shallow_mirror.sinks.base import Observer, observe_nothing
from shallow_mirror.sinks.kafka.kafka_sink import KafkaSink
from shallow_mirror.sinks.kafka.micro_batch import SLOWEST_SLOT, TOTAL, MicroBatchReport, MicroBatchSink
from shallow_mirror.sinks.kafka.protocol.stall_detector import StallDetector
from shallow_mirror.sinks.kafka.protocol.txn_inspection import refuse_used_ids
from shallow_mirror.sinks.kafka.protocol.txn_performer import TxnPerformer, recover
from shallow_mirror.sinks.kafka.slots.quarantine_policy import NO_LIMITS
from shallow_mirror.sinks.kafka.slots.slot_job import SlotJob
from shallow_mirror.sinks.kafka.slots.slot_time import SlotTime
from shallow_mirror.sinks.kafka.spark_failures import find_unfit_python, lost_worker, raising_lost_jvm, raising_unfit_python
from shallow_mirror.sinks.kafka.targets.log_append_time import LogAppendTimeTopics
from shallow_mirror.sinks.kafka.targets.target_topics import TargetTopics, first_rows
from shallow_mirror.sinks.kafka.targets.transactional_ids import id_count, transactional_ids
from shallow_mirror.streaming.planning import offset_planning, planner_state
from shallow_mirror.streaming.planning.error_transport import deserialize_error
from shallow_mirror.streaming.planning.planner_config import PlannerConfig
from shallow_mirror.streaming.planning.rate_limiter import CopiedBytes
from shallow_mirror.streaming.planning.source_offsets import SourceOffsets
from shallow_mirror.streaming.runner import spark_session, temp_dirs
from shallow_mirror.streaming.runner.acl_check import require_acls
from shallow_mirror.streaming.runner.cycle_detection import CycleDetector, exclude_own_targets
from shallow_mirror.streaming.runner.error_hints import with_remedy
from shallow_mirror.streaming.runner.partition_registration import PartitionRegistrar, decide_first_rows
from shallow_mirror.streaming.runner.run_reporter import RunReporter
from shallow_mirror.streaming.runner.supervisor import CONNECT_ATTEMPT_MS, StoppedError, Supervisor
from shallow_mirror.streaming.runner.topic_monitor import TopicMonitor
from shallow_mirror.streaming.runner.unauthorized_topics import require_authorized_topics
from shallow_mirror.streaming.runner.worker_secrets import pass_secrets_to_workers
from shallow_mirror.streaming.sources import kafka_batches, planned_ranges, stream_reader
from shallow_mirror.types import SegmentKind

_log = logging.getLogger(__name__)

_POLL_S = 0.2
_QUIET_S = 1.0
"""A mirror is idle when nothing came for this long beyond its trigger interval."""


class Mirror:
    """One mirror in one process. `run` returns on a clean end and raises the error that ended it otherwise."""

    def __init__(self, config: MirrorConfig, *, observer: Observer = observe_nothing) -> None:
        self.config = config
        self._observer = observer
        self._stop = threading.Event()

    @classmethod
    def from_file(cls, path: str | Path) -> Mirror:
        return cls(MirrorConfig.load(path))

    def stop(self) -> None:
        """Request an end at the next micro-batch boundary. Safe in a signal handler."""
        self._stop.set()

    def run(self, spark: Any = None, *, available_now: bool = False, for_seconds: float | None = None) -> None:
        """Mirror until stopped, until `for_seconds` are over, or with `available_now` until the offsets of the start are reached.

        Use `spark`, or build a local session and stop it at the end. Unreachable clusters are waited for. Raise FencedError,
        ConfigError, BatchRefusedError, DataLossError, CorruptBatchError, RecoverNeededError, SparkLostError.
        """
        own_session = spark is None
        try:
            with raising_lost_jvm(self.config.spark_log if own_session else None):
                _Run(self.config, self._observer, self._stop, available_now, for_seconds).start_and_supervise(spark, own_session)
        except StoppedError as stopped:
            _log.warning("stopped while waiting: %s", stopped)
        except (DataLossError, CorruptBatchError) as error:
            raise with_remedy(error, is_quarantining=self.config.write.on_refused == "quarantine") from error


def _planner_error(text: str) -> MirrorError:
    """Return the planner's error from the text that Spark passes on, or what else ended the query."""
    error = deserialize_error(text) or find_unfit_python(text)
    if error is not None:
        return error
    lost = lost_worker(text)
    if lost is not None:
        return RetriableError("WORKER_LOST", f"Spark lost the planner's process: {lost}")
    _log.error("the streaming query ended: %s", text)
    return MirrorError(f"the streaming query ended: {text.splitlines()[0] if text else 'Spark does not say why'}")


class _Run:
    """State of one `Mirror.run`: the ownership of the offset map lasts as long as this object."""

    def __init__(
        self, config: MirrorConfig, observer: Observer, stop: threading.Event, available_now: bool, for_seconds: float | None
    ) -> None:
        self.config = config
        self.observer = observer
        self.available_now = available_now
        self.identity = RunIdentity.of_this_process()
        self.source = Cluster(config.source.client)
        self.target = Cluster(config.target.client)
        self.owner: OffsetMapOwner | None = None
        self.has_begun = False
        self.spark_log: Path | None = None
        self.copied = CopiedBytes(config.topics.bytes_per_second)
        self.reporter = RunReporter(config, self.identity)
        self.supervisor = Supervisor(stop, for_seconds, self.reporter)
        self.stamping = LogAppendTimeTopics(self.reporter.record_problem)
        self.slot_time = SlotTime(config.write.slots)

    def start_and_supervise(self, spark: Any, own_session: bool) -> None:
        with self.reporter.serve_metrics():
            self._start_and_supervise(spark, own_session)

    def _start_and_supervise(self, spark: Any, own_session: bool) -> None:
        try:
            self.source_cluster_id: str = self.supervisor.retry_forever(
                self.config.source_cluster_name, lambda: self._id_of(self.source, self.config.source_cluster_name)
            )
            self.target_cluster_id: str = self.supervisor.retry_forever(
                self.config.target_cluster_name, lambda: self._id_of(self.target, self.config.target_cluster_name)
            )
            self.config = exclude_own_targets(self.config, is_same_cluster=self.source_cluster_id == self.target_cluster_id)
            self.cycles = CycleDetector(
                self.config, source_cluster_id=self.source_cluster_id, target_cluster_id=self.target_cluster_id
            )
            location, setting = self.config.table_location, self.config.tables_writer
            self.storage = self.supervisor.retry_forever("tables", lambda: MirrorStorage.to_write(location, setting))
            self.supervisor.retry_forever("conditional writes", self.storage.require_conditional_writes)
            self.supervisor.retry_forever("permissions", self._require_acls)
            if spark is None:
                self.spark_log = self.config.spark_log
                self.reporter.start_step("starting Spark", f" (its log: {self.config.spark_log})")
                spark = spark_session.local_session(
                    f"shallow-mirror {self.config.mirror}",
                    log_file=self.config.spark_log,
                    cores=os.cpu_count() or 2,
                    delta_jars=delta_jars() if self.storage.writer == "spark" else (),
                )
            spark_session.check_session(spark)
            pass_secrets_to_workers(spark, (self.config.source.client, self.config.target.client))
            if self.storage.writer == "spark":
                spark_session.check_delta(spark, self.config.tables)
            self.storage = self.storage.with_session(spark)
            self._supervise(spark)
        finally:
            self.source.close()
            self.target.close()
            if own_session and spark is not None:
                spark.stop()

    def _supervise(self, spark: Any) -> None:
        outcome, ended_by = "failed", None
        try:
            owner = self.supervisor.retry_forever("take-over", self._take_over)
            tables = self.storage.background_tables()
            self.reporter.on_takeover(owner, tables)
            with raising_lost_jvm(self.spark_log), self._group_sync(tables) as groups:
                self.supervisor.retry_forever("query", lambda: self._recover_and_query(owner, spark))
                outcome = "stopped" if self.supervisor.is_over() else "done"
                if self.available_now and outcome == "done":
                    self.reporter.on_caught_up(owner.positions())
                if groups is not None:
                    groups.is_last_wanted = outcome == "done"
        except StoppedError:
            outcome = "stopped"
            raise
        except MirrorError as error:
            outcome, ended_by = type(error).__name__, error
            raise
        finally:
            self.reporter.on_end(outcome, ended_by)

    def _group_sync(self, tables: BestEffortTables) -> AbstractContextManager[GroupSync | None]:
        interval_s = self.config.groups.sync_s
        if interval_s is None:
            return nullcontext()
        return GroupSync(self.config, interval_s, self.storage.to_read(), tables, tell=self.reporter.record_problem)

    def _id_of(self, cluster: Cluster, where: str) -> str:
        with named_cluster(where):
            return self.supervisor.retry_forever(where, lambda: cluster.cluster_id(self.supervisor.deadline(CONNECT_ATTEMPT_MS)))

    def _require_acls(self) -> None:
        require_acls(self.config, self.source, self.target, self.supervisor.deadline())

    def _take_over(self) -> OffsetMapOwner:
        if self.owner is None:
            self.owner = OffsetMapOwner.take_over(
                self.storage,
                mirror=self.config.mirror,
                source_cluster_id=self.source_cluster_id,
                target_cluster_id=self.target_cluster_id,
                run=self.identity,
                now_ms=lambda: int(time.time() * 1000),
                before_creation=self._refuse_used_ids,
                slots=id_count(self.config.write.slots),
            )
            _log.info("run epoch %d took over the offset map in %s", self.owner.run_epoch, self.config.tables)
        return self.owner

    def _refuse_used_ids(self) -> None:
        ids = transactional_ids(self.config.mirror, id_count(self.config.write.slots))
        refuse_used_ids(self.target, ids, self.supervisor.deadline())

    def _recover_and_query(self, owner: OffsetMapOwner, spark: Any) -> None:
        """Do one attempt of the query: resolve what the last one left open, then mirror until the query ends."""
        config = self.config
        performer = TxnPerformer(
            owner, self.target, transaction_timeout_ms=config.write.transaction_timeout_ms, observer=self.observer
        )
        owner.check_ownership()
        count = counted(owner.highest_slot + 1, "transactional id")
        self.reporter.start_step("resolving the transactions of the last run", f", fencing {count}")
        recover(owner, performer, mirror=config.mirror, deadline=self.supervisor.deadline())
        targets = TargetTopics(
            config,
            self.source,
            self.target,
            positions=owner.positions(),
            route=self.cycles.target_topic_name,
            announce=self.cycles.register,
            stamping=self.stamping,
        )
        topic_ids = self._register_partitions(owner, targets)
        registration = planner_state.RegistrationFiles.of_query(temp_dirs.temp_dir(), uuid.uuid4().hex)
        registrar = PartitionRegistrar(
            registration,
            owner,
            targets,
            self.source,
            deadline=self.supervisor.deadline,
            report=self.reporter.set_positions,
            observer=self.observer,
        )
        kafka = KafkaSink(
            job=replace(
                SlotJob.of_mirror(config, map_id=owner.map_id, run_id=self.identity.run_id, observer=self.observer),
                leaves_out=True,
                isolates=config.on_error == "isolate",
            ),
            slots=config.write.slots,
            owner=owner,
            performer=performer,
            targets=targets,
            observer=self.observer,
        )
        sink = MicroBatchSink(
            kafka,
            source=self.source,
            slot_time=self.slot_time,
            report=self._report,
            observer=self.observer,
            continues_after_data_loss=config.read.continues_after_data_loss,
            quarantine=QuarantineTable.open(self.storage),
            quarantine_limits=config.write.quarantine_limits or NO_LIMITS,
            left_out=self.reporter.left_out.on_micro_batch,
            register=registrar.register,
        )
        positions = owner.positions()
        self.reporter.set_positions(positions)
        # A recreated topic keeps its old positions in the map: the query begins with those of the topics that exist.
        initial = {
            source: position.offset for source, position in positions.items() if topic_ids.get(source.topic) == source.topic_id
        }
        paused_path = temp_dirs.temp_dir() / f"paused-{self.identity.run_id}.json"
        self.reporter.left_out.on_query_start(initial)
        options = stream_reader.options_of_mirror(
            config,
            owner.map_id,
            initial=initial,
            paused_path=paused_path,
            left_out_path=self.reporter.left_out.path,
            registration=registration,
        )
        controls = Controls.open(self.storage.to_read())
        monitor = TopicMonitor(
            config,
            targets,
            {source.topic for source in positions},
            controls,
            paused_path,
            cycles=self.cycles,
            report=self.reporter.record_problem,
        )
        self.reporter.start_step("starting the query", f" over {counted(len(positions), 'partition')}")
        try:
            with monitor:
                self._run_query(spark, sink, kafka.watch, options)
        except TopicRecreatedError as recreated:
            if not config.read.continues_after_data_loss:
                raise
            # The next attempt registers the new incarnation's partitions.
            raise RetriableError(
                "TOPIC_CREATED_AGAIN", f"{recreated}; what it holds now is mirrored from its start"
            ) from recreated
        finally:
            registration.discard()
        owner.settle()

    def _register_partitions(self, owner: OffsetMapOwner, targets: TargetTopics) -> dict[str, str]:
        """Register every partition of the source before anything is planned, and prepare the target of every topic.

        Return the id of every topic that the source has: the map may have older ones of the same name.
        """
        deadline = self.supervisor.deadline()
        positions = owner.positions()
        count = counted(len(positions), "partition")
        self.reporter.start_step("looking for new topics and partitions", f", {count} registered so far")
        offsets = SourceOffsets(PlannerConfig.of_mirror(self.config), self.source)
        starts = offsets.start_offsets(positions, deadline, is_start=not self.has_begun)
        self.cycles.read_registrations()
        is_included = self.config.topics.is_included
        topics = sorted({source.topic for source in (*starts, *positions) if is_included(source.topic)})
        metadata = self.source.metadata(topics, deadline).topics
        listed = {name: topic for name, topic in metadata.items() if topic.error_code == 0}
        mirrored = {source.topic for source in positions}.intersection(topics)
        require_authorized_topics(self.source, self.config.topics.include, mirrored, listed, deadline)
        self.cycles.require_no_cycles(listed)
        self.reporter.start_step("preparing target topics", f" of {counted(len(listed), 'source topic')}")
        targets.prepare({name: len(topic.partitions) for name, topic in listed.items()}, deadline)
        rows = first_rows(targets, self.source, starts, deadline)
        if rows:
            self.reporter.start_step("registering new partitions", f": {len(rows):,}")
            decide_first_rows(owner, rows)
        self.has_begun = True
        return {name: topic.topic_id for name, topic in listed.items()}

    @raising_unfit_python()
    def _run_query(self, spark: Any, sink: MicroBatchSink, steps: StallDetector, options: Mapping[str, str]) -> None:
        is_direct = self.config.read.transfer == "direct"
        if is_direct:
            planned_ranges.register_planned_ranges(spark)
        else:
            kafka_batches.register_kafka_batches(spark)
            spark_session.bound_arrow_batches(spark, self.config.read.fetch_bytes)
        source_format = planned_ranges.NAME if is_direct else kafka_batches.NAME
        stream = spark.readStream.format(source_format).options(**options).load()
        writer = stream.writeStream.foreachBatch(sink).option("checkpointLocation", self.config.checkpoint)
        trigger = {"availableNow": True} if self.available_now else {"processingTime": f"{self.config.trigger_s} seconds"}
        query = writer.trigger(**trigger).start()
        self.reporter.start_step("waiting for the first plan")
        failure: StreamingQueryException | None = None
        try:
            while not query.awaitTermination(_POLL_S):
                if self.supervisor.is_over():
                    _log.info("ending after the micro-batch that runs")
                    sink.stop()
                    break
                self.reporter.check_stalls(steps.lingering())
                sink.register_if_idle()
                sink.settle_if_idle(self.config.trigger_s + _QUIET_S)
        except StreamingQueryException as error:
            failure = error
        finally:
            query.stop()
        if sink.failure is not None:
            raise sink.failure
        if failure is not None:
            raise _planner_error(str(failure)) from failure

    def _report(self, report: MicroBatchReport) -> None:
        """Record a finished micro-batch, and pass measurements to the planner."""
        assert self.owner is not None
        self.reporter.on_micro_batch(report, self.owner)
        self.owner.compact_if_due()
        segments = [row.segment for row in report.rows]
        self.stamping.produced(
            {segment.target.topic for segment in segments if segment.kind is SegmentKind.DATA}, report.stamped_topics
        )
        self.copied.add(segments)
        seconds, slot_seconds = report.duration_ms[TOTAL] / 1000, report.duration_ms[SLOWEST_SLOT] / 1000
        measured = offset_planning.measure(segments, seconds, self.copied.totals, slot_seconds=slot_seconds)
        planner_state.write_measurements(planner_state.measurements_path(self.config.checkpoint), measured)
