"""Driver: a mirror, from its start to its end. Its query is in `mirror_query.py`."""

from __future__ import annotations

import threading
from collections.abc import Collection
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from shallow_mirror.access import acl_sync, quota_sync, read_only_sync
from shallow_mirror.checkpoints.ledger import LedgerOwner
from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.config import MirrorConfig, exclude_own_targets
from shallow_mirror.errors import ConfigError, CorruptBatchError, DataLossError
from shallow_mirror.groups.sync import GroupSync
from shallow_mirror.mirror_maker.heartbeats import heartbeats
from shallow_mirror.schemas import schema_sync
from shallow_mirror.sinks import Observer
from shallow_mirror.sinks.kafka.protocol import pending_sentences
from shallow_mirror.streaming.planning import planner_state
from shallow_mirror.streaming.runs.broker_limits import require_room_for_receipts
from shallow_mirror.streaming.runs.cycle_detection import CycleDetector
from shallow_mirror.streaming.runs.mirror_query import MirrorQuery
from shallow_mirror.streaming.runs.permissions import require_acls
from shallow_mirror.streaming.runs.run import Run, Runnable
from shallow_mirror.streaming.runs.take_over import ClusterIds, refuse_ids_of_another, take_over_offset_map
from shallow_mirror.streaming.watch.error_hints import with_remedy
from shallow_mirror.streaming.watch.open_transactions import unread_sentences
from shallow_mirror.streaming.watch.reported_run import ReportedRun


class Mirror(Runnable[MirrorConfig]):
    """One mirror. `run` returns on a clean end and raises the error that ended it otherwise."""

    _config_class = MirrorConfig

    def run(self, spark: Any = None, *, available_now: bool = False, for_seconds: float | None = None) -> None:
        """Mirror until stopped, until `for_seconds` are over, or with `available_now` until the offsets of the start are reached.

        Use `spark`, or build a local session and stop it at the end. Unreachable clusters are waited for. Raises FencedError,
        ConfigError, BatchRefusedError, DataLossError, CorruptBatchError, RecoverNeededError, SparkLostError.
        """
        try:
            _MirrorRun(self.config, self._observer, self._stop, available_now, for_seconds).run(spark)
        except (DataLossError, CorruptBatchError) as error:
            raise with_remedy(error, is_quarantining=self.config.write.on_refused == "quarantine") from error


class _MirrorRun(Run[MirrorConfig]):
    def __init__(
        self, config: MirrorConfig, observer: Observer, stop: threading.Event, available_now: bool, for_seconds: float | None
    ) -> None:
        secrets_of = (config.source.client, config.target.client)
        super().__init__(
            config,
            ReportedRun.of_mirror(config),
            observer,
            stop,
            available_now=available_now,
            for_seconds=for_seconds,
            may_stream=config.micro_batches != "loop",
            secrets_of=secrets_of,
        )
        self.source = self.connected(config.source.client)
        self.target = self.connected(config.target.client)

    def connect(self) -> None:
        source_id = self.cluster_id(self.source, self.config.source_cluster_name)
        target_id = self.cluster_id(self.target, self.config.target_cluster_name)
        self.cluster_ids = ClusterIds(source=source_id, target=target_id)
        self.reporter.set_clusters(source_id, target_id)
        self.config = exclude_own_targets(self.config, is_same_cluster=source_id == target_id)
        self.cycles = CycleDetector(self.config, source_cluster_id=source_id, target_cluster_id=target_id)

    def check(self) -> None:
        self.supervisor.retry_forever(
            "permissions",
            lambda: require_acls(self.config, self.source, self.target, self.supervisor.deadline(), self._handed_over),
        )
        self.supervisor.retry_forever(
            "settings of brokers",
            lambda: require_room_for_receipts(self.target, self.config.target_cluster_name, self.supervisor.deadline()),
        )

    def _handed_over(self) -> Collection[str]:
        """Return the topics that a migration has handed over. Before Spark runs: tables of a catalog cannot be read yet."""
        if self.config.table_location.is_read_by_spark:
            return ()
        return Controls.open(self.storage.to_read()).read().moving

    def take_over(self) -> LedgerOwner:
        owner = take_over_offset_map(
            self.config,
            self.storage,
            self.cluster_ids,
            self.identity,
            before_creation=lambda: refuse_ids_of_another(self.config, self.target, self.supervisor.deadline()),
        )
        # After the take-over: a fail-over writes its row first and takes over then, so one of the two ends this run.
        self._refuse_failed_over()
        return owner

    def _refuse_failed_over(self) -> None:
        """Raise ConfigError where this mirror was failed over: what it would copy now belongs behind records of applications."""
        controls = Controls.open(self.storage.to_read()).read()
        problem = controls.failed_over_problem(self.config.mirror, self.config.target.alias)
        if problem is not None:
            raise ConfigError(problem)

    def copy(self, spark: Any) -> bool:
        query = MirrorQuery(self, self.source, self.cluster_ids.source, self.target, self.cycles)
        with (
            self._group_sync() as groups,
            self._acl_sync(),
            self._quota_sync(),
            self._schema_sync(),
            self._read_only_sync(),
            self._heartbeats(),
        ):
            is_done = self.repeat("query", lambda: query.attempt(spark))
            if groups is not None:
                groups.is_last_wanted = is_done
        return is_done

    def on_done(self) -> str:
        if self.available_now:
            positions = self.owner.positions()
            not_copied = Controls.open(self.storage.to_read()).read().not_copied & {source.topic for source in positions}
            copied = [source for source in positions if source.topic not in not_copied]
            self.reporter.on_caught_up(
                positions,
                not_copied,
                pending=pending_sentences(self.owner.pending_rows()),
                unread=unread_sentences(self.source, copied, self.config.read.isolation_level, self.supervisor.deadline()),
            )
        return "done"

    def _group_sync(self) -> AbstractContextManager[GroupSync | None]:
        interval_s = self.config.groups.sync_s
        if interval_s is None:
            return nullcontext()
        return GroupSync(
            self.config,
            interval_s,
            self.storage.to_read(),
            self.tables,
            report=self.reporter.record_problem,
            on_lag=self.reporter.on_group_lag,
        )

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

    def _read_only_sync(self) -> AbstractContextManager[object]:
        sync = self.supervisor.retry_forever(
            "read-only topics", lambda: read_only_sync(self.config, self.storage, report=self.reporter.record_problem)
        )
        return sync or nullcontext()

    def _schema_sync(self) -> AbstractContextManager[object]:
        interval_s = self.config.schemas.sync_s
        if interval_s is None:
            return nullcontext()
        path = planner_state.schemas_state_path(self.config.checkpoint)
        on_pass = partial(self.reporter.on_access_pass, "schemas", path)
        return schema_sync(self.config, interval_s, self.storage, report=self.reporter.record_problem, on_pass=on_pass)

    def _heartbeats(self) -> AbstractContextManager[object]:
        interval_s = self.config.heartbeats.interval_s
        return nullcontext() if interval_s is None else heartbeats(self.config, interval_s, report=self.reporter.record_problem)
