"""Driver: the skeleton of a run: the steps that a mirror, an archive and a restore have in common, in their order."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.cluster import named_cluster
from shallow_mirror.checkpoints.ledger import LedgerOwner, RunIdentity
from shallow_mirror.checkpoints.tables import OFFSET_MAP_LAYOUT, BestEffortTables, TableLayout, TableStorage
from shallow_mirror.config import ArchiveConfig, MirrorConfig, RestoreConfig
from shallow_mirror.errors import StoppedError
from shallow_mirror.sinks import Observer, observe_nothing
from shallow_mirror.sinks.micro_batches import raising_lost_jvm
from shallow_mirror.streaming.runs.supervisor import CONNECT_ATTEMPT_MS, Supervisor
from shallow_mirror.streaming.spark.spark_session import RunSession, session_of_run
from shallow_mirror.streaming.spark.worker_secrets import WithReferences
from shallow_mirror.streaming.watch.reported_run import ReportedRun
from shallow_mirror.streaming.watch.run_reporter import RunReporter

_log = logging.getLogger(__name__)

Config = TypeVar("Config", bound=MirrorConfig | ArchiveConfig | RestoreConfig)


class Runnable(Generic[Config]):
    """Public face of a mirror, an archive or a restore: its file, its stop, and `run`, which the subclass has."""

    _config_class: ClassVar[Any]

    def __init__(self, config: Config, *, observer: Observer = observe_nothing) -> None:
        self.config = config
        self._observer = observer
        self._stop = threading.Event()

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        return cls(cls._config_class.load(path))

    def stop(self) -> None:
        """Request an end at the next micro-batch boundary. Safe in a signal handler."""
        self._stop.set()


class Run(ABC, Generic[Config]):
    """State and steps of one call of `run`. Subclasses fill in the steps that differ.

    What holds for all runs:

    - Metrics and probes come first and end last: the steps of a start and an end are visible.
    - Before the session nothing is taken over, so that a run that is refused there has fenced no other, and started no Spark.
    - The take-over fences every older run. Only then is the start recorded in `runs`, and from then on every end.
    - Every attempt begins with the ownership: a commit of the last one with an unknown outcome is found there.
    - The end is recorded while the session lives, because tables may need it, and behind the threads that `copy` has started,
      because they write to the same tables. Connections are closed at last, whatever was raised.
    """

    layout: ClassVar[TableLayout] = OFFSET_MAP_LAYOUT
    owned: ClassVar[str] = "the offset map"
    """What the log says was taken over."""

    storage: TableStorage
    """From `check` on; from the take-over on with the session."""
    owner: LedgerOwner
    """From the take-over on. The ownership lasts as long as this object."""
    tables: BestEffortTables
    """What the run records besides. One object, whose rows are on disk when the end is recorded."""

    def __init__(
        self,
        config: Config,
        reported: ReportedRun,
        observer: Observer,
        stop: threading.Event,
        *,
        available_now: bool = False,
        for_seconds: float | None = None,
        may_stream: bool,
        secrets_of: Iterable[WithReferences],
        reads: TableStorage | None = None,
    ) -> None:
        """`available_now`: a query ends at the log ends of its start. `for_seconds`: the run ends then; None: never by itself.

        `may_stream`: False if the micro-batches come from a loop. `secrets_of`: settings whose secrets tasks need. `reads`:
        tables of an archive that the run reads.
        """
        self.config = config
        self.observer = observer
        self.available_now = available_now
        self.identity = RunIdentity.of_this_process()
        self.reporter = RunReporter(reported, self.identity)
        self.supervisor = Supervisor(stop, for_seconds, self.reporter)
        self._name = reported.name
        self._may_stream = may_stream
        self._secrets_of = secrets_of
        self._reads = reads
        self._connections = ExitStack()

    def run(self, spark: Any) -> None:
        """Run to the end, with `spark` or a session of its own. A stop while something is waited for is no error."""
        try:
            with raising_lost_jvm(self.config.spark_log if spark is None else None), self._connections:
                with self.reporter.serve_metrics():
                    self._start(spark)
        except StoppedError as stopped:
            _log.warning("stopped while waiting: %s", stopped)

    def _start(self, spark: Any) -> None:
        config, retry = self.config, self.supervisor.retry_forever
        self.connect()
        self.storage = retry(
            "tables", lambda: TableStorage.to_write(config.table_location, config.tables_writer, layout=self.layout)
        )
        retry("conditional writes", self.storage.require_conditional_writes)
        self.check()
        with session_of_run(
            spark,
            self.storage,
            name=self._name,
            log_file=config.spark_log,
            with_references=self._secrets_of,
            start_step=self.reporter.start_step,
            may_stream=self._may_stream,
            reads=self._reads,
        ) as session:
            self.storage = session.storage
            self.on_session(session)
            self._own_and_copy(session)

    def _own_and_copy(self, session: RunSession) -> None:
        with self.reporter.recording_end() as end, raising_lost_jvm(session.log_file):
            self.owner = self.supervisor.retry_forever("take-over", self.take_over)
            _log.info("run epoch %d took over %s in %s", self.owner.run_epoch, self.owned, self.config.tables)
            self.tables = self.storage.background_tables()
            self.reporter.on_takeover(self.owner, self.tables)
            end.outcome = self.on_done() if self.copy(session.spark) else "stopped"

    @abstractmethod
    def connect(self) -> None:
        """Reach the clusters, by `cluster_id`, or the archive to be copied."""

    def check(self) -> None:
        """Raise ConfigError if an operator has to change something, before anything is taken over."""

    def on_session(self, session: RunSession) -> None:
        """Open the tables that could not be opened without the session."""

    @abstractmethod
    def take_over(self) -> LedgerOwner:
        """Fence every older run. Called again with the same `identity` after an error that may pass."""

    @abstractmethod
    def copy(self, spark: Any) -> bool:
        """Copy, by `repeat`, until everything is copied or the run is over. Return False at a stop."""

    def on_done(self) -> str:
        """Return the outcome for `runs` of a run that was not stopped. Raises IncompleteRunError."""
        return "done"

    def repeat(self, step: str, attempt: Callable[[], bool]) -> bool:
        """Return the result of `attempt`. It is begun again, without limit, after each error that may pass."""

        def attempt_as_owner() -> bool:
            self.owner.check_ownership()
            return attempt()

        return self.supervisor.retry_forever(step, attempt_as_owner)

    def connected(self, client: ClientConfig) -> Cluster:
        """Return a cluster whose connections are closed at the end of the run."""
        return self._connections.enter_context(closing(Cluster(client)))

    def cluster_id(self, cluster: Cluster, name: str) -> str:
        """Return the id of a cluster, which is waited for. `name`: as in "source cluster east"."""

        def attempt() -> str:
            with named_cluster(name):
                return cluster.cluster_id(self.supervisor.deadline(CONNECT_ATTEMPT_MS))

        return self.supervisor.retry_forever(name, attempt)
