"""Driver: the query of an archive: registration, descriptions of topics, next lineages, expiry, and the query itself."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.fetch import topic_storage
from shallow_mirror.checkpoints import DecidedSegment, first_rows_at
from shallow_mirror.checkpoints.ledger import ArchivedTopics, ArchiveTable, TopicDescription
from shallow_mirror.checkpoints.logs.topics import DeletedTopicsTable
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import LogTruncatedError, RetriableError, StoreRefusedError, StoreUnreachableError
from shallow_mirror.groups.archived_position import PositionCommitting
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.plurals import counted
from shallow_mirror.sinks import ArchiveOwner, ArchiveSink, ArchiveSlotJob, archived_partition
from shallow_mirror.sinks.archive import DeletedTopics, Expiry, GroupNoteExpiry, TopicObjects, TxnOutcomes, retention_of
from shallow_mirror.sinks.micro_batches import SOURCE_LOG_TRUNCATED, MicroBatchReport, MicroBatchSink
from shallow_mirror.streaming.planning.planner_config import PlannerConfig
from shallow_mirror.streaming.planning.planner_state import RegistrationFiles
from shallow_mirror.streaming.runs.gone_topics import problems_of_gone
from shallow_mirror.streaming.runs.next_lineages import NextLineages
from shallow_mirror.streaming.runs.partition_registration import decide_first_rows
from shallow_mirror.streaming.runs.run import Run
from shallow_mirror.streaming.runs.source_query import SourceQuery
from shallow_mirror.types import SourcePartition

CHECK_OWNER_EVERY_S = 60.0
"""So often a run looks whether the objects have become those of another table. The table itself is checked at each decision."""


class ArchiveQuery(SourceQuery[ArchiveConfig]):
    """The query of the owner of an archive."""

    copied = "archived"

    def __init__(
        self,
        run: Run[ArchiveConfig],
        source: Cluster,
        source_cluster_id: str,
        archive: ArchiveOwner,
        objects: ObjectStore,
        committing: PositionCommitting | None,
    ) -> None:
        super().__init__(run, source, source_cluster_id, slots=run.config.read.slots, topic_rates={})
        self._archive = archive
        self._objects = objects
        self._committing = committing
        self._topic_objects = TopicObjects(objects, self.owner.map_id)
        self._owner_check_at = 0.0
        self._expiry: Expiry | None = None
        # What waits without a next lineage does so in every query.
        self._lineages = NextLineages(
            self.owner,
            self._open_table,
            source,
            is_included=self.config.topics.is_included,
            deadline=self.supervisor.deadline,
            report=self.reporter.record_problem,
            observer=self.observer,
        )

    def attempt(self, spark: Any) -> bool:
        """Do one attempt. The start has tested the store; from then on its refusals are waited for."""
        try:
            return super().attempt(spark)
        except StoreRefusedError as refused:
            raise StoreUnreachableError(
                refused.operation, refused.store, refused.reason, refused.remedy, is_refused=True
            ) from refused

    def recover_and_run(self, spark: Any, registration: RegistrationFiles) -> None:
        self._archive.check()
        self.owner.settle()  # a decision that the last attempt made holds: its objects were complete before it
        self._archive.complete_copies(self._open_table())
        planned_ids = self._register_partitions()
        self._expire_if_due()  # behind the first reading of positions, which counts the rows
        registrar = self.registrar(registration, self._first_rows)
        job = ArchiveSlotJob.of_archive(
            self.config, archive_id=self.owner.map_id, source_cluster_id=self.source_cluster_id, observer=self.observer
        )
        sink = MicroBatchSink(
            ArchiveSink(
                job=job,
                owner=self.owner,
                observer=self.observer,
                read_outcomes=self._txn_outcomes,
                expire=self._expire_if_due,
            ),
            source=self.source,
            slot_time=self.slot_time,
            report=self.report,
            observer=self.observer,
            continues_after_data_loss=self.config.read.continues_after_data_loss,
            left_out=self.reporter.left_out.on_micro_batch,
            register=registrar.register,
            begin_lineages=self._lineages.begin,
        )
        self._publish()
        options = self.planner_options(spark, planned_ids, registration)
        initial = options.initial or {}
        held = {source: at for source, at in self._lineages.held.items() if source in initial}
        self.reporter.start_step("starting the query", f" over {counted(len(self.positions()), 'partition')}")
        try:
            self.run_query(spark, sink, replace(options, held_truncations=held), check=lambda: self.reporter.check_stalls(None))
        except LogTruncatedError as truncated:
            if not self.config.read.continues_after_data_loss:
                raise
            self._lineages.begin_or_hold(truncated)
            raise RetriableError(SOURCE_LOG_TRUNCATED, f"{truncated}; planned again from the archive's positions") from truncated

    def _publish(self) -> None:
        """Pass on the positions of a decision that is committed. One whose log was truncated holds nothing of the new log yet."""
        if self._committing is not None:
            positions = self.positions().items()
            self._committing.publish({source: at.offset for source, at in positions if source not in self._lineages.held})

    def _txn_outcomes(self) -> TxnOutcomes:
        def is_compacted(topic: str) -> bool:
            storage = topic_storage(self.source, topic, self.supervisor.deadline())
            return storage.is_compacted or bool(storage.refusal)

        return TxnOutcomes(self._open_table().unended_aborts(), is_compacted)

    def _open_table(self) -> ArchiveTable:
        return ArchiveTable.open(self.storage, archive=self.config.archive)

    def _expire_if_due(self) -> None:
        """Between micro-batches: delete rows and objects that the retention of the archive file does not keep."""
        if time.monotonic() >= self._owner_check_at:
            self._archive.check()
            self._owner_check_at = time.monotonic() + CHECK_OWNER_EVERY_S
        if self._expiry is None:
            config = self.config
            table = self._open_table()
            self._expiry = Expiry(
                self._archive,
                table,
                self._objects,
                retention_of(config.retention),
                now_ms=_now_ms,
                observer=self._observe_deletion,
                group_notes=GroupNoteExpiry(self.storage.background_tables(), table, config.groups.keep_s, _now_ms),
                deleted_topics=DeletedTopics(
                    self.source,
                    self.source_cluster_id,
                    DeletedTopicsTable.of_archive(self.storage),
                    config.deleted_topics.keep_s,
                    run_epoch=self.owner.run_epoch,
                    deadline=self.supervisor.deadline,
                    now_ms=_now_ms,
                ),
            )
        self._expiry.run_if_due()

    def _observe_deletion(self, step: str) -> None:
        """Show the probes that a deletion moves: one of many objects takes longer than a micro-batch."""
        self.reporter.health.on_move()
        self.observer(step)

    def _register_partitions(self) -> Mapping[str, str]:
        """Register every partition of the source before anything is planned. Return the topic ids that the query begins with."""
        deadline = self.supervisor.deadline()
        listing = self.list_source(PlannerConfig.of_archive(self.config), deadline)
        self.reporter.on_gone_topics(problems_of_gone({}, listing.recreated))
        # What waits for the operator gets no description: a restore would take it for the topic of that name.
        described = {name: topic_id for name, topic_id in listing.topic_ids.items() if name not in listing.recreated}
        self._describe(described, deadline)
        if listing.starts:
            self.reporter.start_step("registering new partitions", f": {len(listing.starts):,}")
            decide_first_rows(self.owner, first_rows_at(listing.starts, archived_partition))
        self.has_begun = True
        return listing.planned_ids

    def _first_rows(self, starts: Mapping[SourcePartition, int], deadline: Deadline) -> tuple[DecidedSegment, ...]:
        """Return the first rows of partitions that appeared while the archive runs. A restore needs their topics described."""
        self._describe({source.topic: source.topic_id for source in starts}, deadline)
        return first_rows_at(starts, archived_partition)

    def _describe(self, topic_ids: Mapping[str, str], deadline: Deadline) -> None:
        """Record partitions and settings of these topics if they changed. Raise RetriableError if one cannot be described now.

        `topic_ids`: by name.
        """
        metadata = self.source.metadata(sorted(topic_ids), deadline).topics
        listed = {name: topic for name, topic in metadata.items() if topic.error_code == 0}
        ids = {name: topic.topic_id for name, topic in listed.items()}
        self.require_known({name for name, topic_id in topic_ids.items() if ids.get(name) != topic_id})
        configs = self.source.topic_configs(sorted(listed), deadline) if listed else {}
        descriptions = [
            TopicDescription(topic=name, topic_id=topic.topic_id, partitions=len(topic.partitions), configs=configs.get(name, {}))
            for name, topic in listed.items()
        ]
        at_ms, archived_topics = _now_ms(), ArchivedTopics.of(self.storage)
        self._topic_objects.record(descriptions, at_ms=at_ms, history=archived_topics.seen)
        archived_topics.record(
            descriptions,
            run_epoch=self.owner.run_epoch,
            micro_batch=self.owner.micro_batch,
            at_ms=at_ms,
        )

    def report(self, report: MicroBatchReport) -> None:
        super().report(report)
        self._publish()


def _now_ms() -> int:
    return int(time.time() * 1000)
