"""A world in memory: strict clusters, tables and a checkpoint that are lists, a clock that waiting moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.operators.checker import Row
from tests.operators.direct_transport import Network
from tests.operators.fake_cluster import FakeCluster
from tests.operators.lives import KilledError, Life, Lives
from tests.operators.memory_tables import TableFolders, settled_rows
from tests.operators.virtual_clock import VirtualClock
from tests.operators.world import During, FindingError, TablesCopy, World
from tests.support.inline_streams import Checkpoint, InlineStreams

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import worker_clients
from shallow_mirror.errors import MirrorError
from shallow_mirror.streaming.runs import Mirror
from shallow_mirror.streaming.runs.topic_monitor import TopicMonitor

_IDLE_S = 20.0
MOST_WAITS = 12
"""So often a run may try again. Nothing here recovers by itself, so that more would be for ever."""


class WaitsForeverError(BaseException):
    """A run tries the same again and again. Not an `Exception`: the supervisor would retry it."""


class FakeWorld(World):
    source: FakeCluster
    target: FakeCluster

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.lives = Lives()
        self.clock = VirtualClock()
        self.network = Network(self.lives)
        self.table_folders = TableFolders(self.lives)
        self.checkpoints: dict[str, Checkpoint] = {}
        self.source, self.target = (FakeCluster(name, self.clock.now_ms) for name in ("east", "west"))
        for cluster in (self.source, self.target):
            self.network.add(cluster.name, cluster.state)
        self.waits: list[str] = []
        self.monitor: TopicMonitor | None = None
        self.while_idle: list[Callable[[], None]] = []
        """What happens while a run has nothing to copy: one of them each time, before its monitor looks at the target."""

    def rows_in(self, tables: Any) -> Sequence[Row]:
        versions = self.table_folders.at(tables).tables if isinstance(tables, str) else tables
        return settled_rows(versions.get("offset_map", []))

    def ended_by(self, life: Life, during: During, patience_s: float) -> MirrorError | None:
        self.waits = []
        requests = 0

        def observe(_host: str, _api: str) -> None:
            nonlocal requests
            requests += 1
            event = during.get(requests)
            if event is not None:
                with self.other_process():
                    event()

        self.lives.current, self.network.observe = life, observe
        mirror = Mirror(self.config)
        ends_at = self.clock.monotonic() + patience_s

        def on_idle() -> None:
            self.clock.sleep(_IDLE_S)
            with self.other_process():
                assert self.monitor is not None
                self.monitor._read_controls()  # as its thread does every three seconds
                if self.while_idle:
                    self.while_idle.pop(0)()
                with closing(Cluster(self.config.target.client)) as target:
                    self.monitor._look_at_idle_settings(target, is_due=True)
            if self.clock.monotonic() > ends_at:
                mirror.stop()

        try:
            mirror.run(InlineStreams(self.checkpoints, on_idle), available_now=not patience_s)
        except MirrorError as error:
            return error
        except KilledError:
            return None
        except WaitsForeverError as waiting:
            raise FindingError(f"the run waits for ever: {waiting}") from waiting
        finally:
            self.network.observe = lambda *_: None
            self.lives.current = Life()  # `other_process` puts back that of a run that is suspended meanwhile
            if life.is_over:
                worker_clients._clusters.clear()
        return None

    def command(self, life: Life, perform: Callable[[], None]) -> None:
        former, self.lives.current = self.lives.current, life
        try:
            perform()
        finally:
            self.lives.current = former
            if life.is_over:
                self.kills += 1
                worker_clients._clusters.clear()

    def run_beside(self) -> MirrorError | None:
        """Run the mirror of the same tables in another process, up to the log ends, while this one is suspended."""
        observed, monitor, waits = self.network.observe, self.monitor, self.waits
        connections = dict(worker_clients._clusters)
        worker_clients._clusters.clear()
        try:
            with self.other_process():
                return self.ended_by(Life(), {}, 0.0)
        finally:
            worker_clients._clusters.clear()
            worker_clients._clusters.update(connections)
            self.network.observe, self.monitor, self.waits = observed, monitor, waits

    @contextmanager
    def other_process(self) -> Iterator[None]:
        """Perform the block in a process that is not killed."""
        former, self.lives.current = self.lives.current, Life()
        try:
            yield
        finally:
            self.lives.current = former

    def has_tables(self) -> bool:
        return bool(self.table_folders.at(self.config.tables).tables.get("offset_map"))

    def copied_tables(self, *, with_checkpoint: bool) -> TablesCopy:
        checkpoint = self.checkpoints.get(self.config.checkpoint)
        kept = checkpoint.copy() if checkpoint is not None and with_checkpoint else None
        return TablesCopy(self.settings.number, self.table_folders.at(self.config.tables).copy(), kept)

    def put_back(self, copy: TablesCopy) -> None:
        self.table_folders.at(self.config.tables).put_back(copy.tables)
        if copy.checkpoint is not None:
            self.checkpoints[self.config.checkpoint] = copy.checkpoint.copy()

    def lose_checkpoint(self) -> None:
        self.checkpoints.pop(self.config.checkpoint, None)

    def idle(self, seconds: float) -> None:
        self.clock.sleep(seconds)
