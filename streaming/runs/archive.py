"""Driver: a running archive: start-up, the streaming query, the clean stop. Its query is that of a mirror (`query.py`)."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import named_cluster
from shallow_mirror.broker.fetch import topic_storage
from shallow_mirror.checkpoints import DecidedSegment, Position, first_rows_at
from shallow_mirror.checkpoints.ledger import ArchivedTopics, ArchiveTable, OffsetMapOwner, RunIdentity, TopicDescription
from shallow_mirror.checkpoints.logs.topics import DeletedTopicsTable
from shallow_mirror.checkpoints.tables import ARCHIVE_LAYOUT, MirrorStorage
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import (
    LogTruncatedError,
    RetriableError,
    StoppedError,
    StoreRefusedError,
    StoreUnreachableError,
    TopicRecreatedError,
)
from shallow_mirror.groups.archived_groups import GroupNoting
from shallow_mirror.groups.archived_position import PositionCommitting
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.plurals import counted
from shallow_mirror.sinks import (
    ArchiveOwner,
    ArchiveSink,
    ArchiveSlotJob,
    Observer,
    archived_partition,
    check_before_take_over,
    observe_nothing,
    take_over_archive,
)
from shallow_mirror.sinks.archive import DeletedTopics, Expiry, GroupNoteExpiry, TopicObjects, TxnOutcomes, retention_of
from shallow_mirror.sinks.micro_batches import SOURCE_LOG_TRUNCATED, MicroBatchReport, MicroBatchSink, raising_lost_jvm
from shallow_mirror.sinks.slots import SlotTime
from shallow_mirror.streaming.planning import planner_state
from shallow_mirror.streaming.planning.offset_planning import recreated_topics
from shallow_mirror.streaming.planning.planner_config import PlannerConfig
from shallow_mirror.streaming.planning.rate_limiter import CopiedBytes
from shallow_mirror.streaming.planning.source_offsets import SourceOffsets
from shallow_mirror.streaming.runs.gone_topics import problems_of_gone, without_gone_topics
from shallow_mirror.streaming.runs.micro_batch_choice import choose_micro_batches
from shallow_mirror.streaming.runs.next_lineages import NextLineages
from shallow_mirror.streaming.runs.partition_registration import PartitionRegistrar, decide_first_rows
from shallow_mirror.streaming.runs.permissions import require_authorized_topics
from shallow_mirror.streaming.runs.query import Query, run_query
from shallow_mirror.streaming.runs.supervisor import CONNECT_ATTEMPT_MS, Supervisor
from shallow_mirror.streaming.sources.planner_options import PlannerOptions
from shallow_mirror.streaming.spark import spark_session, temp_dirs
from shallow_mirror.streaming.watch.error_hints import with_archive_remedy
from shallow_mirror.streaming.watch.micro_batch_summary import measurements_of
from shallow_mirror.streaming.watch.reported_run import ReportedRun
from shallow_mirror.streaming.watch.run_reporter import RunReporter
from shallow_mirror.types import SourcePartition

_log = logging.getLogger(__name__)

CHECK_OWNER_EVERY_S = 60.0
"""So often a run looks whether the objects have become those of another table. The table itself is checked at each decision."""


class Archive:
    """One archive in one process. `run` returns on a clean end and raises the error that ended it otherwise."""

    def __init__(self, config: ArchiveConfig, *, observer: Observer = observe_nothing) -> None:
        self.config = config
        self._observer = observer
        self._stop = threading.Event()

    @classmethod
    def from_file(cls, path: str | Path) -> Archive:
        return cls(ArchiveConfig.load(path))

    def stop(self) -> None:
        """Request an end at the next micro-batch boundary. Safe in a signal handler."""
        self._stop.set()

    def run(self, spark: Any = None, *, available_now: bool = False, for_seconds: float | None = None) -> None:
        """Archive until stopped, until `for_seconds` are over, or with `available_now` up to the log ends of the start.

        Use `spark`, or build a local session and stop it at the end. An unreachable cluster or store is waited for. Raise
        FencedError, ConfigError, DataLossError, CorruptBatchError, SparkLostError.
        """
        try:
            with raising_lost_jvm(self.config.spark_log if spark is None else None):
                _ArchiveRun(self.config, self._observer, self._stop, available_now, for_seconds).run(spark)
        except LogTruncatedError as truncated:
            raise with_archive_remedy(truncated) from truncated
        except StoppedError as stopped:
            _log.warning("stopped while waiting: %s", stopped)


class _ArchiveRun:
    """State of one `Archive.run`."""

    def __init__(
        self, config: ArchiveConfig, observer: Observer, stop: threading.Event, available_now: bool, for_seconds: float | None
    ) -> None:
        self._config = config
        self._observer = observer
        self._available_now = available_now
        self._identity = RunIdentity.of_this_process()
        self._source = Cluster(config.source.client)
        self._objects = ObjectStore.open(config.objects, config.storage_options)
        self._archive: ArchiveOwner | None = None
        self._owner_check_at = 0.0
        self._owner: OffsetMapOwner | None = None
        self._expiry: Expiry | None = None
        self._next_lineages: NextLineages | None = None
        self._topic_objects: TopicObjects | None = None
        self._committing: PositionCommitting | None = None
        self._has_begun = False
        self._copied = CopiedBytes({})
        self._reporter = RunReporter(ReportedRun.of_archive(config), self._identity)
        self._supervisor = Supervisor(stop, for_seconds, self._reporter)
        self._slot_time = SlotTime(config.read.slots)

    def run(self, spark: Any) -> None:
        try:
            with self._reporter.serve_metrics():
                config, retry = self._config, self._supervisor.retry_forever
                self._source_cluster_id = retry(config.source_cluster_name, self._id_of_source)
                self._storage = retry(
                    "tables",
                    lambda: MirrorStorage.to_write(config.table_location, config.tables_writer, layout=ARCHIVE_LAYOUT),
                )
                retry("conditional writes", self._storage.require_conditional_writes)
                if not self._storage.location.is_read_by_spark:  # in front of the probe, which writes where nothing is mounted
                    retry(
                        "objects",
                        lambda: check_before_take_over(self._storage.to_read(), self._objects, config.archive),
                    )
                retry("objects", self._objects.probe)
                with spark_session.session_of_run(
                    spark,
                    self._storage,
                    name=config.archive,
                    log_file=config.spark_log,
                    with_references=(config.source.client, self._objects),
                    start_step=self._reporter.start_step,
                    may_stream=config.micro_batches != "loop",
                ) as session:
                    self._storage = session.storage
                    self._supervise(session)
        finally:
            self._source.close()

    def _id_of_source(self) -> str:
        with named_cluster(self._config.source_cluster_name):
            return self._source.cluster_id(self._supervisor.deadline(CONNECT_ATTEMPT_MS))

    def _supervise(self, session: spark_session.RunSession) -> None:
        with self._reporter.recording_end() as end:
            owner = self._supervisor.retry_forever("take-over", self._take_over)
            self._reporter.on_takeover(owner, self._storage.background_tables())
            with (
                raising_lost_jvm(session.log_file),
                self._group_noting() as noting,
                self._position_committing() as self._committing,
            ):
                self._supervisor.retry_forever("query", lambda: self._attempt(owner, session.spark))
                for thread in (noting, self._committing):
                    if thread is not None:
                        thread.is_last_wanted = True
            end.outcome = "stopped" if self._supervisor.is_over() else "done"
            if self._available_now and end.outcome == "done":
                self._reporter.on_caught_up(owner.positions())

    def _group_noting(self) -> AbstractContextManager[GroupNoting | None]:
        interval_s = self._config.groups.interval_s
        if interval_s is None:
            return nullcontext()
        return GroupNoting(self._config, interval_s, self._storage.best_effort_tables())

    def _position_committing(self) -> AbstractContextManager[PositionCommitting | None]:
        interval_s = self._config.groups.archived_position_s
        return nullcontext() if interval_s is None else PositionCommitting(self._config, interval_s)

    def _publish(self, positions: Mapping[SourcePartition, Position]) -> None:
        """Pass on the positions of a decision that is committed. One whose log was truncated holds nothing of the new log yet."""
        if self._committing is not None:
            held = {} if self._next_lineages is None else self._next_lineages.held
            self._committing.publish({source: at.offset for source, at in positions.items() if source not in held})

    def _take_over(self) -> OffsetMapOwner:
        if self._archive is None:
            self._archive = take_over_archive(
                self._storage,
                self._objects,
                archive=self._config.archive,
                source_cluster_id=self._source_cluster_id,
                run=self._identity,
                now_ms=_now_ms,
            )
            self._owner = self._archive.table
            _log.info("run epoch %d took over the archive in %s", self._owner.run_epoch, self._config.tables)
        return self._archive.table

    def _attempt(self, owner: OffsetMapOwner, spark: Any) -> None:
        """Do one attempt of the query. The start has tested the store; from then on its refusals are waited for."""
        try:
            self._query(owner, spark)
        except StoreRefusedError as refused:
            raise StoreUnreachableError(
                refused.operation, refused.store, refused.reason, refused.remedy, is_refused=True
            ) from refused

    def _query(self, owner: OffsetMapOwner, spark: Any) -> None:
        """Run the query. A decision that the last attempt made holds: its objects were complete before it."""
        config = self._config
        assert self._archive is not None
        owner.check_ownership()
        self._archive.check()
        owner.settle()
        self._archive.complete_copies(self._open_table())
        topic_ids = self._register_partitions(owner)
        lineages = self._lineages_of(owner)
        self._expire_if_due()  # behind the first reading of positions, which counts the rows
        registration = planner_state.RegistrationFiles.of_query(temp_dirs.temp_dir(), uuid.uuid4().hex)
        registrar = PartitionRegistrar(
            registration,
            owner,
            self._source,
            self._first_rows,
            deadline=self._supervisor.deadline,
            report=self._reporter.set_positions,
            observer=self._observer,
        )
        job = ArchiveSlotJob.of_archive(
            config, archive_id=owner.map_id, source_cluster_id=self._source_cluster_id, observer=self._observer
        )
        sink = MicroBatchSink(
            ArchiveSink(
                job=job, owner=owner, observer=self._observer, read_outcomes=self._txn_outcomes, expire=self._expire_if_due
            ),
            source=self._source,
            slot_time=self._slot_time,
            report=self._report,
            observer=self._observer,
            continues_after_data_loss=config.read.continues_after_data_loss,
            left_out=self._reporter.left_out.on_micro_batch,
            register=registrar.register,
            begin_lineages=lineages.begin,
        )
        positions = owner.positions()
        self._reporter.set_positions(positions)
        self._publish(positions)
        # A recreated topic keeps its old positions: the query begins with those of the topics that exist.
        of_query = without_gone_topics(positions, topic_ids, keeps_recreated=config.isolates_recreated)
        initial = {source: positions[source].offset for source in of_query}
        self._reporter.left_out.on_query_start(initial)
        options = PlannerOptions(
            config=config,
            map_id=owner.map_id,
            parallelism=spark_session.parallelism_of(spark, config.read.slots),
            initial=initial,
            left_out_path=self._reporter.left_out.path,
            registration=registration,
            held_truncations={source: at for source, at in lineages.held.items() if source in initial},
        )
        self._reporter.start_step("starting the query", f" over {counted(len(positions), 'partition')}")
        try:
            run_query(
                Query(
                    spark=spark,
                    sink=sink,
                    options=options,
                    trigger_s=None if self._available_now else config.trigger_s,
                    health=self._reporter.health,
                ),
                choose_micro_batches(config.micro_batches, spark),
                settle_after_s=config.trigger_s,
                supervisor=self._supervisor,
                check=lambda: self._reporter.check_stalls(None),
            )
        except LogTruncatedError as truncated:
            if not config.read.continues_after_data_loss:
                raise
            lineages.begin_or_hold(truncated)
            raise RetriableError(SOURCE_LOG_TRUNCATED, f"{truncated}; planned again from the archive's positions") from truncated
        except TopicRecreatedError as recreated:
            if not config.read.continues_after_data_loss:
                raise
            raise RetriableError("TOPIC_RECREATED", f"{recreated}; what it holds now is archived from its start") from recreated
        finally:
            registration.discard()
        owner.settle()

    def _lineages_of(self, owner: OffsetMapOwner) -> NextLineages:
        """Return those of the run: what waits without a next lineage does so in every query."""
        if self._next_lineages is None:
            self._next_lineages = NextLineages(
                owner,
                self._open_table,
                self._source,
                is_included=self._config.topics.is_included,
                deadline=self._supervisor.deadline,
                report=self._reporter.record_problem,
                observer=self._observer,
            )
        return self._next_lineages

    def _txn_outcomes(self) -> TxnOutcomes:
        def is_compacted(topic: str) -> bool:
            storage = topic_storage(self._source, topic, self._supervisor.deadline())
            return storage.is_compacted or bool(storage.refusal)

        return TxnOutcomes(self._open_table().unended_aborts(), is_compacted)

    def _open_table(self) -> ArchiveTable:
        return ArchiveTable.open(self._storage, archive=self._config.archive)

    def _expire_if_due(self) -> None:
        """Between micro-batches: delete what the retention of the archive file does not keep."""
        assert self._archive is not None
        if time.monotonic() >= self._owner_check_at:
            self._archive.check()
            self._owner_check_at = time.monotonic() + CHECK_OWNER_EVERY_S
        if self._expiry is None:
            config = self._config
            table = self._open_table()
            self._expiry = Expiry(
                self._archive,
                table,
                self._objects,
                retention_of(config.retention),
                now_ms=_now_ms,
                observer=self._observe_deletion,
                group_notes=GroupNoteExpiry(self._storage.background_tables(), table, config.groups.keep_s, _now_ms),
                deleted_topics=DeletedTopics(
                    self._source,
                    self._source_cluster_id,
                    DeletedTopicsTable.of_archive(self._storage),
                    config.deleted_topics.keep_s,
                    run_epoch=self._archive.table.run_epoch,
                    deadline=self._supervisor.deadline,
                    now_ms=_now_ms,
                ),
            )
        self._expiry.run_if_due()

    def _observe_deletion(self, step: str) -> None:
        """Show the probes that a deletion moves: one of many objects takes longer than a micro-batch."""
        self._reporter.health.on_move()
        self._observer(step)

    def _register_partitions(self, owner: OffsetMapOwner) -> dict[str, str]:
        """Register every partition of the source before anything is planned. Return the id of every topic that the source has."""
        deadline = self._supervisor.deadline()
        positions = owner.positions()
        self._reporter.start_step(
            "looking for new topics and partitions", f", {counted(len(positions), 'partition')} registered so far"
        )
        offsets = SourceOffsets(PlannerConfig.of_archive(self._config), self._source)
        starts = offsets.start_offsets(positions, deadline, is_start=not self._has_begun)
        topics = {source.topic for source in (*starts, *positions) if self._config.topics.is_included(source.topic)}
        listed = self._source.metadata(sorted(topics), deadline).topics
        topic_ids = {name: topic.topic_id for name, topic in listed.items() if topic.error_code == 0}
        recreated = recreated_topics(positions, topic_ids) if self._config.isolates_recreated else {}
        self._reporter.on_gone_topics(problems_of_gone({}, recreated))
        # What waits for the operator gets no description: a restore would take it for the topic of that name.
        self._describe(topics - recreated.keys(), deadline)
        archived = {source.topic for source in positions}.intersection(topics)
        require_authorized_topics(self._source, self._config.topics.include, archived, topic_ids, deadline)
        if starts:
            self._reporter.start_step("registering new partitions", f": {len(starts):,}")
            decide_first_rows(owner, first_rows_at(starts, archived_partition))
        self._has_begun = True
        return topic_ids

    def _first_rows(self, starts: Mapping[SourcePartition, int], deadline: Deadline) -> tuple[DecidedSegment, ...]:
        """Return the first rows of partitions that appeared while the archive runs. A restore needs their topics described."""
        self._describe({source.topic for source in starts}, deadline)
        return first_rows_at(starts, archived_partition)

    def _describe(self, topics: Iterable[str], deadline: Deadline) -> None:
        """Record partitions and settings of these topics where they changed."""
        assert self._owner is not None
        metadata = self._source.metadata(sorted(topics), deadline).topics
        listed = {name: topic for name, topic in metadata.items() if topic.error_code == 0}
        configs = self._source.topic_configs(sorted(listed), deadline) if listed else {}
        descriptions = [
            TopicDescription(topic=name, topic_id=topic.topic_id, partitions=len(topic.partitions), configs=configs.get(name, {}))
            for name, topic in listed.items()
        ]
        at_ms, archived_topics = _now_ms(), ArchivedTopics.of(self._storage)
        if self._topic_objects is None:
            self._topic_objects = TopicObjects(self._objects, self._owner.map_id)
        self._topic_objects.record(descriptions, at_ms=at_ms, history=archived_topics.seen)
        archived_topics.record(
            descriptions,
            run_epoch=self._owner.run_epoch,
            micro_batch=self._owner.micro_batch,
            at_ms=at_ms,
        )

    def _report(self, report: MicroBatchReport) -> None:
        """Record a finished micro-batch, and pass measurements to the planner."""
        assert self._owner is not None
        self._reporter.on_micro_batch(report, self._owner)
        self._publish(self._owner.positions())
        self._owner.compact_if_due()
        segments = [row.segment for row in report.rows]
        self._copied.add(segments)
        self._reporter.write_measurements(measurements_of(report, self._copied.totals))


def _now_ms() -> int:
    return int(time.time() * 1000)
