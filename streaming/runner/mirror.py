"""Driver: the running mirror: start-up, the streaming query, the supervisor, the clean stop."""

from __future__ import annotations

import copy
import logging
import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.connectivity import named_cluster
from shallow_mirror.checkpoints.backends.best_effort_table import ObservationStore, open_store
from shallow_mirror.checkpoints.backends.conditional_put_probe import require_conditional_puts
from shallow_mirror.checkpoints.commit_metadata import RunIdentity
from shallow_mirror.checkpoints.controls import open_controls_to_read
from shallow_mirror.checkpoints.offset_map_writer import OffsetMapOwner
from shallow_mirror.checkpoints.quarantine_tables import open_quarantine
from shallow_mirror.checkpoints.storage import choose_writer, open_writer
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import (
    CorruptBatchError,
    DataLossError,
    MirrorError,
    OutcomeUnknownError,
    RetriableError,
    TopicRecreatedError,
)
from shallow_mirror.groups.sync import GroupSync
from shallow_mirror.local_kafka.jars import delta_jars
from shallow_mirror.plurals import counted
from shallow_mirror.sinks.base import Observer, observe_nothing
from shallow_mirror.sinks.kafka.kafka_sink import KafkaSink
from shallow_mirror.sinks.kafka.micro_batch import SLOWEST_SLOT, TOTAL, MicroBatchReport, MicroBatchSink
from shallow_mirror.sinks.kafka.protocol.recovery import TxnPerformer, recover
from shallow_mirror.sinks.kafka.protocol.stall_detector import StallDetector
from shallow_mirror.sinks.kafka.protocol.txn_inspection import refuse_used_ids
from shallow_mirror.sinks.kafka.slots.quarantine_policy import NO_LIMITS
from shallow_mirror.sinks.kafka.slots.slot_time import SlotTime
from shallow_mirror.sinks.kafka.spark_failures import find_unfit_python, lost_worker, raising_lost_jvm, raising_unfit_python
from shallow_mirror.sinks.kafka.targets.log_append_time import LogAppendTimeTopics
from shallow_mirror.sinks.kafka.targets.target_topics import TargetTopics, first_rows
from shallow_mirror.sinks.kafka.targets.transactional_ids import id_count, transactional_ids
from shallow_mirror.streaming.planning import offset_planning, planner_state
from shallow_mirror.streaming.planning.error_transport import told_error
from shallow_mirror.streaming.planning.planner_config import PlanSettings
from shallow_mirror.streaming.planning.rate_limiter import CopiedBytes
from shallow_mirror.streaming.planning.source_offsets import Planner
from shallow_mirror.streaming.runner import spark_session, temp_dirs
from shallow_mirror.streaming.runner.acl_check import refuse_missing_rights
from shallow_mirror.streaming.runner.cycle_detection import Loops, without_own_targets
from shallow_mirror.streaming.runner.partition_registration import PartitionRegistrar, decide_first_rows
from shallow_mirror.streaming.runner.run_reporter import Witness
from shallow_mirror.streaming.runner.sink_config import job_template, target_topics
from shallow_mirror.streaming.runner.topic_monitor import TopicWatch
from shallow_mirror.streaming.runner.unauthorized_topics import refuse_hidden_topics
from shallow_mirror.streaming.runner.worker_secrets import hand_over
from shallow_mirror.streaming.sources import kafka_batches, planned_ranges, stream_reader
from shallow_mirror.types import SegmentKind

_log = logging.getLogger(__name__)

BACK_OFF_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses between attempts of the supervisor; the last repeats without limit."""

REACH_ATTEMPT_MS = 5_000
START_ATTEMPT_MS = 60_000
"""How long one attempt to reach a cluster, to resolve and to prepare topics may take before the log says what is waited for."""

_GOING_ON = (
    "To give up what is lost, set read.on_data_loss: continue and start again: offsets that retention deleted are recorded as "
    "expired, a topic that was created again is mirrored from its start behind the records of the old one, and behind a log that "
    "was cut the mirror continues at its position, reporting which offsets hold other records now. Or exclude the topic "
    "(topics.exclude); to copy all that it holds now, mirror it with another mirror id, tables and checkpoint"
)

_DAMAGED = "Look at the disk of the source's broker; if another replica is sound, make it the leader"
_SETTING_ASIDE = "If the data is lost for good, write.on_refused: quarantine sets the batch aside and goes on"
_NOT_SET_ASIDE = (
    "write.on_refused: quarantine cannot set this one aside: if the data is lost for good, exclude the topic (topics.exclude)"
)

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
        """Ask for an end at the next micro-batch boundary. Safe in a signal handler."""
        self._stop.set()

    def run(self, spark: Any = None, *, available_now: bool = False, for_seconds: float | None = None) -> None:
        """Mirror until stopped, or until `for_seconds` are over, or, with `available_now`, until the offsets of the start
        are reached.

        Uses `spark` or builds a local session and stops it at the end. Raises FencedError, ConfigError, BatchRefusedError,
        DataLossError, CorruptBatchError, RecoverNeededError, SparkLostError; survives clusters that are away.
        """
        own_session = spark is None
        try:
            with raising_lost_jvm(self.config.spark_log if own_session else None):
                _Run(self.config, self._observer, self._stop, available_now, for_seconds).start_and_supervise(spark, own_session)
        except _StoppedError as stopped:
            _log.warning("stopped while waiting: %s", stopped)
        except DataLossError as loss:
            raise _with_remedy(loss, _GOING_ON) from loss
        except CorruptBatchError as damage:
            is_quarantining = self.config.write.on_refused == "quarantine"
            raise _with_remedy(damage, f"{_DAMAGED}. {_NOT_SET_ASIDE if is_quarantining else _SETTING_ASIDE}") from damage


def _with_remedy(error: MirrorError, remedy: str) -> MirrorError:
    """For whoever started the run; `problems` keeps remedies in a column of their own."""
    said = copy.copy(error)
    said.args = (f"{error}. {remedy}",)
    return said


def _planner_error(text: str) -> MirrorError:
    """The planner process hands its errors to Spark, which hands on their text."""
    told = told_error(text) or find_unfit_python(text)
    if told is not None:
        return told
    lost = lost_worker(text)
    if lost is not None:
        return RetriableError("WORKER_LOST", f"Spark lost the planner's process: {lost}")
    _log.error("the streaming query ended: %s", text)
    return MirrorError(f"the streaming query ended: {text.splitlines()[0] if text else 'Spark does not say why'}")


class _StoppedError(Exception):
    """A stop was asked for while the run waited for something; what it left undone the next start does."""


class _Run:
    """State of one `Mirror.run`: the take-over lasts as long as this object."""

    def __init__(
        self, config: MirrorConfig, observer: Observer, stop: threading.Event, available_now: bool, for_seconds: float | None
    ) -> None:
        self.config, self.observer, self.stop, self.available_now = config, observer, stop, available_now
        self.ends_at = None if for_seconds is None else time.monotonic() + for_seconds
        self.identity = RunIdentity.of_this_process()
        self.source, self.target = Cluster(config.source.client), Cluster(config.target.client)
        self.owner: OffsetMapOwner | None = None
        self.has_begun = False
        self.spark_log: Path | None = None
        self.copied = CopiedBytes(config.topics.bytes_per_second)
        self.witness = Witness(config, self.identity)
        self.stamping = LogAppendTimeTopics(self.witness.met)
        self.slot_time = SlotTime(config.write.slots)

    def start_and_supervise(self, spark: Any, own_session: bool) -> None:
        with self.witness.telling():
            self._start_and_supervise(spark, own_session)

    def _start_and_supervise(self, spark: Any, own_session: bool) -> None:
        try:
            self.source_cluster_id: str = self._patiently(
                self.config.source_cluster_name, lambda: self._id_of(self.source, self.config.source_cluster_name)
            )
            self.target_cluster_id: str = self._patiently(
                self.config.target_cluster_name, lambda: self._id_of(self.target, self.config.target_cluster_name)
            )
            self.config = without_own_targets(self.config, is_same_cluster=self.source_cluster_id == self.target_cluster_id)
            self.loops = Loops(self.config, source_cluster_id=self.source_cluster_id, target_cluster_id=self.target_cluster_id)
            tables, setting = self.config.table_storage, self.config.tables_writer
            self.tables_writer = self._patiently("tables", lambda: choose_writer(tables, setting))
            if self.tables_writer == "deltalake":
                self._patiently("conditional writes", lambda: require_conditional_puts(tables))
            self._patiently("rights", self._refuse_missing_rights)
            if spark is None:
                self.spark_log = self.config.spark_log
                self.witness.start_step("starting Spark", f" (its log: {self.config.spark_log})")
                spark = spark_session.local_session(
                    f"shallow-mirror {self.config.mirror}",
                    log_file=self.config.spark_log,
                    cores=os.cpu_count() or 2,
                    delta_jars=delta_jars() if self.tables_writer == "spark" else (),
                )
            spark_session.check_session(spark)
            hand_over(spark, (self.config.source.client, self.config.target.client))
            if self.tables_writer == "spark":
                spark_session.check_delta(spark, self.config.tables)
            self.map_writer = open_writer(tables, self.tables_writer, spark)
            self._supervise(spark)
        finally:
            self.source.close()
            self.target.close()
            if own_session and spark is not None:
                spark.stop()

    def _supervise(self, spark: Any) -> None:
        outcome, ended_by = "failed", None
        try:
            owner = self._patiently("take-over", self._take_over)
            store = open_store(self.config.table_storage, self.tables_writer, spark)
            self.witness.took_over(owner, store)
            with raising_lost_jvm(self.spark_log), self._groups_in_step(store, spark) as groups:
                self._patiently("query", lambda: self._recover_and_query(owner, spark))
                outcome = "stopped" if self._is_over() else "done"
                if self.available_now and outcome == "done":
                    self.witness.caught_up(owner.positions())
                if groups is not None:
                    groups.is_last_wanted = outcome == "done"
        except _StoppedError:
            outcome = "stopped"
            raise
        except MirrorError as error:
            outcome, ended_by = type(error).__name__, error
            raise
        finally:
            self.witness.ended(outcome, ended_by)

    def _groups_in_step(self, store: ObservationStore, spark: Any) -> AbstractContextManager[GroupSync | None]:
        interval_s = self.config.groups.sync_s
        if interval_s is None:
            return nullcontext()
        to_read = spark if self.tables_writer == "spark" else None
        return GroupSync(self.config, interval_s, store, to_read, tell=self.witness.met)

    def _patiently(self, what: str, attempt: Callable[[], Any]) -> Any:
        """Level three of the retries: without limit, with a growing pause, visible in the log; not for definite errors."""
        failures, since_ms = 0, int(time.time() * 1000)
        while True:
            began = time.monotonic()
            try:
                return attempt()
            except (RetriableError, OutcomeUnknownError) as error:
                if time.monotonic() - began > BACK_OFF_S[-1] * 2:
                    failures, since_ms = 0, int(time.time() * 1000)
                pause = BACK_OFF_S[min(failures, len(BACK_OFF_S) - 1)]
                failures += 1
                self.witness.failed(what, error, since_ms, pause)
                if self._wait(pause):
                    if self.stop.is_set():
                        raise _StoppedError(f"{what}: {error}") from error
                    raise
        raise AssertionError

    def _wait(self, seconds: float) -> bool:
        """True when the run should end instead of trying again."""
        if self.ends_at is not None:
            seconds = min(seconds, max(0.0, self.ends_at - time.monotonic()))
        return self.stop.wait(seconds) or self._is_over()

    def _is_over(self) -> bool:
        return self.stop.is_set() or (self.ends_at is not None and time.monotonic() >= self.ends_at)

    def _deadline(self, most_ms: float = START_ATTEMPT_MS) -> Deadline:
        """Of one attempt of something that is tried again; over at once when a stop is asked for."""
        return Deadline.after_ms(most_ms, lambda: math.inf if self.stop.is_set() else time.monotonic())

    def _id_of(self, cluster: Cluster, where: str) -> str:
        with named_cluster(where):
            cluster_id: str = self._patiently(where, lambda: cluster.cluster_id(self._deadline(REACH_ATTEMPT_MS)))
            return cluster_id

    def _refuse_missing_rights(self) -> None:
        refuse_missing_rights(self.config, self.source, self.target, self._deadline())

    def _take_over(self) -> OffsetMapOwner:
        if self.owner is None:
            self.owner = OffsetMapOwner.take_over(
                self.config.table_storage,
                mirror=self.config.mirror,
                source_cluster_id=self.source_cluster_id,
                target_cluster_id=self.target_cluster_id,
                run=self.identity,
                now_ms=lambda: int(time.time() * 1000),
                writer=self.map_writer,
                before_creation=self._refuse_used_ids,
                slots=id_count(self.config.write.slots),
            )
            _log.info("run epoch %d took over the offset map in %s", self.owner.run_epoch, self.config.tables)
        return self.owner

    def _refuse_used_ids(self) -> None:
        refuse_used_ids(self.target, transactional_ids(self.config.mirror, id_count(self.config.write.slots)), self._deadline())

    def _recover_and_query(self, owner: OffsetMapOwner, spark: Any) -> None:
        config = self.config
        performer = TxnPerformer(
            owner, self.target, transaction_timeout_ms=config.write.transaction_timeout_ms, observer=self.observer
        )
        owner.check_ownership()
        count = counted(owner.highest_slot + 1, "transactional id")
        self.witness.start_step("resolving the transactions of the last run", f", fencing {count}")
        recover(owner, performer, mirror=config.mirror, deadline=self._deadline())
        targets = target_topics(
            config,
            self.source,
            self.target,
            owner.positions(),
            route=self.loops.target_of,
            announce=self.loops.announce,
            stamping=self.stamping,
        )
        topic_ids = self._register_partitions(owner, targets)
        exchange = planner_state.RegistrationNotes.of_query(temp_dirs.scratch_folder(), uuid.uuid4().hex)
        registrar = PartitionRegistrar(
            exchange,
            owner,
            targets,
            self.source,
            deadline=self._deadline,
            report=self.witness.stands_at,
            observer=self.observer,
        )
        kafka = KafkaSink(
            job=replace(
                job_template(config, map_id=owner.map_id, run_id=self.identity.run_id, observer=self.observer),
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
            continues_after_data_loss=self._continues_after_data_loss,
            quarantine=open_quarantine(config.table_storage, self.tables_writer, spark),
            quarantine_limits=config.write.quarantine_limits or NO_LIMITS,
            left_out=self.witness.left_out.micro_batch_done,
            register=registrar.register,
        )
        known = owner.positions()
        self.witness.stands_at(known)
        initial = {one: at.offset for one, at in known.items() if topic_ids.get(one.topic) == one.topic_id}
        paused_path = temp_dirs.scratch_folder() / f"paused-{self.identity.run_id}.json"
        self.witness.left_out.query_begins(initial)
        options = stream_reader.options_of_mirror(
            config,
            owner.map_id,
            initial=initial,
            paused_path=paused_path,
            left_out_path=self.witness.left_out.path,
            registration=exchange,
        )
        controls = open_controls_to_read(config.table_storage, spark)
        watch = TopicWatch(
            config, targets, {one.topic for one in known}, controls, paused_path, loops=self.loops, tell=self.witness.met
        )
        count = counted(len(known), "partition")
        self.witness.start_step("starting the query", f" over {count}")
        try:
            with watch:
                self._run_query(spark, sink, kafka.watch, options)
        except TopicRecreatedError as again:
            if not self._continues_after_data_loss:
                raise
            raise RetriableError("TOPIC_CREATED_AGAIN", f"{again}; what it holds now is mirrored from its start") from again
        finally:
            exchange.discard()
        owner.settle()

    @property
    def _continues_after_data_loss(self) -> bool:
        return self.config.read.on_data_loss == "continue"

    def _register_partitions(self, owner: OffsetMapOwner, targets: TargetTopics) -> dict[str, str]:
        """Every partition that is known now gets a position before anything is planned, and every topic its target.

        Returns the id of every topic that the source has: the map may know older ones of the same name.
        """
        deadline = self._deadline()
        known = owner.positions()
        self.witness.start_step("looking for new topics and partitions", f", {counted(len(known), 'partition')} known so far")
        planner = Planner(PlanSettings.of_mirror(self.config), self.source)
        starts = planner.start_offsets(known, deadline, is_start=not self.has_begun)
        self.loops.read()
        topics = sorted({one.topic for one in (*starts, *known) if self.config.topics.is_included(one.topic)})
        listed = {name: one for name, one in self.source.metadata(topics, deadline).topics.items() if one.error_code == 0}
        mirrored = {one.topic for one in known}.intersection(topics)
        refuse_hidden_topics(self.source, self.config.topics.include, mirrored, listed, deadline)
        self.loops.refuse(listed)
        self.witness.start_step("preparing target topics", f" of {counted(len(listed), 'source topic')}")
        targets.prepare({name: len(topic.partitions) for name, topic in listed.items()}, deadline)
        rows = first_rows(targets, self.source, starts, deadline)
        if rows:
            self.witness.start_step("registering new partitions", f": {len(rows):,}")
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
        self.witness.start_step("waiting for the first plan")
        failure: StreamingQueryException | None = None
        try:
            while not query.awaitTermination(_POLL_S):
                if self._is_over():
                    _log.info("ending after the micro-batch that runs")
                    sink.stop()
                    break
                self.witness.looks_at(steps.lingering())
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
        """Of what was really read the planner learns."""
        assert self.owner is not None
        self.witness.micro_batch(report, self.owner)
        self.owner.compact_if_due()
        segments = [row.segment for row in report.rows]
        self.stamping.produced({one.target.topic for one in segments if one.kind is SegmentKind.DATA}, report.stamped_topics)
        self.copied.add(segments)
        seconds, slot_seconds = report.duration_ms[TOTAL] / 1000, report.duration_ms[SLOWEST_SLOT] / 1000
        measured = offset_planning.measure(segments, seconds, self.copied.totals, slot_seconds=slot_seconds)
        planner_state.write_measured(planner_state.measured_path(self.config.checkpoint), measured)
