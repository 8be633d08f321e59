"""Driver: an archive, from its start to its end. Its query is in `archive_query.py`."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from shallow_mirror.checkpoints.ledger import LedgerOwner
from shallow_mirror.checkpoints.tables import ARCHIVE_LAYOUT
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.errors import LogTruncatedError
from shallow_mirror.groups.archived_groups import GroupNoting
from shallow_mirror.groups.archived_position import PositionCommitting
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.sinks import Observer, check_before_take_over, take_over_archive
from shallow_mirror.streaming.runs.archive_query import ArchiveQuery
from shallow_mirror.streaming.runs.run import Run, Runnable
from shallow_mirror.streaming.watch.error_hints import with_archive_remedy
from shallow_mirror.streaming.watch.reported_run import ReportedRun


class Archive(Runnable[ArchiveConfig]):
    """One archive in one process. `run` returns on a clean end and raises the error that ended it otherwise."""

    _config_class = ArchiveConfig

    def run(self, spark: Any = None, *, available_now: bool = False, for_seconds: float | None = None) -> None:
        """Archive until stopped, until `for_seconds` are over, or with `available_now` up to the log ends of the start.

        Use `spark`, or build a local session and stop it at the end. An unreachable cluster or store is waited for. Raise
        FencedError, ConfigError, DataLossError, CorruptBatchError, SparkLostError.
        """
        try:
            _ArchiveRun(self.config, self._observer, self._stop, available_now, for_seconds).run(spark)
        except LogTruncatedError as truncated:
            raise with_archive_remedy(truncated) from truncated


class _ArchiveRun(Run[ArchiveConfig]):
    layout = ARCHIVE_LAYOUT
    owned = "the archive"

    def __init__(
        self, config: ArchiveConfig, observer: Observer, stop: threading.Event, available_now: bool, for_seconds: float | None
    ) -> None:
        self.objects = ObjectStore.open(config.objects, config.storage_options)
        secrets_of = (config.source.client, self.objects)
        super().__init__(
            config,
            ReportedRun.of_archive(config),
            observer,
            stop,
            available_now=available_now,
            for_seconds=for_seconds,
            may_stream=config.micro_batches != "loop",
            secrets_of=secrets_of,
        )
        self.source = self.connected(config.source.client)

    def connect(self) -> None:
        self.source_cluster_id = self.cluster_id(self.source, self.config.source_cluster_name)

    def check(self) -> None:
        retry, archive = self.supervisor.retry_forever, self.config.archive
        # In front of the probe, which writes where nothing is mounted.
        if not self.storage.location.is_read_by_spark:
            retry("objects", lambda: check_before_take_over(self.storage.to_read(), self.objects, archive))
        retry("objects", self.objects.probe)

    def take_over(self) -> LedgerOwner:
        self.archive = take_over_archive(
            self.storage,
            self.objects,
            archive=self.config.archive,
            source_cluster_id=self.source_cluster_id,
            run=self.identity,
            now_ms=lambda: int(time.time() * 1000),
        )
        return self.archive.table

    def copy(self, spark: Any) -> bool:
        with self._group_noting() as noting, self._position_committing() as committing:
            query = ArchiveQuery(self, self.source, self.source_cluster_id, self.archive, self.objects, committing)
            is_done = self.repeat("query", lambda: query.attempt(spark))
            for thread in (noting, committing):
                if thread is not None:
                    thread.is_last_wanted = True
        return is_done

    def on_done(self) -> str:
        if self.available_now:
            self.reporter.on_caught_up(self.owner.positions())
        return "done"

    def _group_noting(self) -> AbstractContextManager[GroupNoting | None]:
        interval_s = self.config.groups.interval_s
        if interval_s is None:
            return nullcontext()
        return GroupNoting(self.config, interval_s, self.storage.best_effort_tables())

    def _position_committing(self) -> AbstractContextManager[PositionCommitting | None]:
        interval_s = self.config.groups.archived_position_s
        return nullcontext() if interval_s is None else PositionCommitting(self.config, interval_s)
