"""Driver: the running mirror: start-up, the take-over, the attempts of its query, the clean stop."""

from __future__ import annotations

import logging
import threading
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from shallow_mirror.access import acl_sync, quota_sync
from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import named_cluster
from shallow_mirror.checkpoints.ledger import OffsetMapOwner, RunIdentity
from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.checkpoints.tables import BestEffortTables, MirrorStorage
from shallow_mirror.config import MirrorConfig, exclude_own_targets
from shallow_mirror.errors import CorruptBatchError, DataLossError, StoppedError
from shallow_mirror.groups.sync import GroupSync
from shallow_mirror.sinks import Observer, observe_nothing
from shallow_mirror.sinks.micro_batches import raising_lost_jvm
from shallow_mirror.streaming.planning import planner_state
from shallow_mirror.streaming.runs.cycle_detection import CycleDetector
from shallow_mirror.streaming.runs.mirror_query import MirrorQuery
from shallow_mirror.streaming.runs.permissions import require_acls
from shallow_mirror.streaming.runs.supervisor import CONNECT_ATTEMPT_MS, Supervisor
from shallow_mirror.streaming.runs.take_over import ClusterIds, refuse_ids_of_another, take_over_offset_map
from shallow_mirror.streaming.spark.spark_session import RunSession, session_of_run
from shallow_mirror.streaming.watch.error_hints import with_remedy
from shallow_mirror.streaming.watch.reported_run import ReportedRun
from shallow_mirror.streaming.watch.run_reporter import RunReporter

_log = logging.getLogger(__name__)


class Mirror:
    """One mirror. `run` returns on a clean end and raises the error that ended it otherwise."""

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

        Use `spark`, or build a local session and stop it at the end. Unreachable clusters are waited for. Raises FencedError,
        ConfigError, BatchRefusedError, DataLossError, CorruptBatchError, RecoverNeededError, SparkLostError.
        """
        try:
            with raising_lost_jvm(self.config.spark_log if spark is None else None):
                _Run(self.config, self._observer, self._stop, available_now, for_seconds).start_and_supervise(spark)
        except StoppedError as stopped:
            _log.warning("stopped while waiting: %s", stopped)
        except (DataLossError, CorruptBatchError) as error:
            raise with_remedy(error, is_quarantining=self.config.write.on_refused == "quarantine") from error


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
        self.reporter = RunReporter(ReportedRun.of_mirror(config), self.identity)
        self.supervisor = Supervisor(stop, for_seconds, self.reporter)

    def start_and_supervise(self, spark: Any) -> None:
        with self.reporter.serve_metrics():
            self._start_and_supervise(spark)

    def _start_and_supervise(self, spark: Any) -> None:
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
            with session_of_run(
                spark,
                self.storage,
                name=self.config.mirror,
                log_file=self.config.spark_log,
                with_references=(self.config.source.client, self.config.target.client),
                start_step=self.reporter.start_step,
                may_stream=self.config.micro_batches != "loop",
            ) as session:
                self.storage = session.storage
                self._supervise(session)
        finally:
            self.source.close()
            self.target.close()

    def _supervise(self, session: RunSession) -> None:
        with self.reporter.recording_end() as end:
            owner = self.supervisor.retry_forever("take-over", self._take_over)
            tables = self.storage.background_tables()
            self.reporter.on_takeover(owner, tables)
            with raising_lost_jvm(session.log_file), self._group_sync(tables) as groups, self._acl_sync(), self._quota_sync():
                query = self._query(owner)
                self.supervisor.retry_forever("query", lambda: query.recover_and_run(session.spark))
                end.outcome = "stopped" if self.supervisor.is_over() else "done"
                if groups is not None:
                    groups.is_last_wanted = end.outcome == "done"
                if self.available_now and end.outcome == "done":
                    mirrored = {source.topic for source in owner.positions()}
                    not_copied = Controls.open(self.storage.to_read()).read().not_copied & mirrored
                    self.reporter.on_caught_up(owner.positions(), not_copied)

    def _query(self, owner: OffsetMapOwner) -> MirrorQuery:
        return MirrorQuery(
            config=self.config,
            identity=self.identity,
            source=self.source,
            target=self.target,
            storage=self.storage,
            owner=owner,
            cycles=self.cycles,
            reporter=self.reporter,
            supervisor=self.supervisor,
            observer=self.observer,
            available_now=self.available_now,
            source_cluster_id=self.source_cluster_id,
        )

    def _group_sync(self, tables: BestEffortTables) -> AbstractContextManager[GroupSync | None]:
        interval_s = self.config.groups.sync_s
        if interval_s is None:
            return nullcontext()
        return GroupSync(self.config, interval_s, self.storage.to_read(), tables, report=self.reporter.record_problem)

    def _acl_sync(self) -> AbstractContextManager[object]:
        interval_s = self.config.acls.sync_s
        if interval_s is None:
            return nullcontext()
        path = planner_state.acls_state_path(self.config.checkpoint)
        on_pass = partial(self.reporter.on_access_pass, "acls", path)
        return acl_sync(self.config, interval_s, report=self.reporter.record_problem, on_pass=on_pass)

    def _quota_sync(self) -> AbstractContextManager[object]:
        interval_s = self.config.quotas.sync_s
        if interval_s is None:
            return nullcontext()
        path = planner_state.quotas_state_path(self.config.checkpoint)
        on_pass = partial(self.reporter.on_access_pass, "quotas", path)
        return quota_sync(self.config, interval_s, report=self.reporter.record_problem, on_pass=on_pass)

    def _id_of(self, cluster: Cluster, where: str) -> str:
        with named_cluster(where):
            return self.supervisor.retry_forever(where, lambda: cluster.cluster_id(self.supervisor.deadline(CONNECT_ATTEMPT_MS)))

    def _require_acls(self) -> None:
        require_acls(self.config, self.source, self.target, self.supervisor.deadline())

    def _take_over(self) -> OffsetMapOwner:
        if self.owner is None:
            self.owner = take_over_offset_map(
                self.config,
                self.storage,
                ClusterIds(source=self.source_cluster_id, target=self.target_cluster_id),
                self.identity,
                before_creation=lambda: refuse_ids_of_another(self.config, self.target, self.supervisor.deadline()),
            )
            _log.info("run epoch %d took over the offset map in %s", self.owner.run_epoch, self.config.tables)
        return self.owner
