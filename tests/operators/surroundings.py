"""A world with everything of the package in it: patched clocks, connections, tables, Spark's stand-in and threads."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.operators.direct_transport import Network, direct_connections
from tests.operators.fake_world import MOST_WAITS, FakeWorld, WaitsForeverError
from tests.operators.lives import Life
from tests.operators.memory_tables import TableFolders
from tests.operators.virtual_clock import VirtualClock, virtual_clock

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import worker_clients
from shallow_mirror.checkpoints.tables import storage
from shallow_mirror.errors import MirrorError
from shallow_mirror.streaming.runs import mirror_query
from shallow_mirror.streaming.runs.supervisor import Supervisor
from shallow_mirror.streaming.runs.topic_monitor import TopicMonitor
from shallow_mirror.streaming.watch.run_reporter import RunReporter


@contextmanager
def isolating_world(folder: Path, *, records: int = 1, group: str | None = None) -> Iterator[FakeWorld]:
    """Yield two clusters whose topics a and b a mirror with `on_error: isolate` has copied.

    `records`: of each topic. `group`: one that has read one record of each; None: there is none.
    """
    with opened_world(folder) as world:
        world._configs[world.settings.key()] = world.config.model_copy(update={"on_error": "isolate"})
        for topic in ("a", "b"):
            world.create_source_topic(topic, 1)
            world.produce(topic, 0, records)
            if group is not None:
                world.source.commit_group(group, topic, 0, 1)
        assert world.run(Life()) is None
        yield world


@contextmanager
def world_of_two_topics(folder: Path) -> Iterator[FakeWorld]:
    """Yield a world whose source has the topics a and b, with a record each; nothing is copied yet."""
    with opened_world(folder) as world:
        for topic in ("a", "b"):
            world.create_source_topic(topic, 1)
            world.produce(topic, 0, 1)
        yield world


@contextmanager
def opened_world(folder: Path) -> Iterator[FakeWorld]:
    """Yield a world; everything of the package that is used in the block runs in it."""
    world = FakeWorld(folder)

    def wait(_supervisor: Supervisor, seconds: float) -> bool:
        world.clock.sleep(seconds)
        if len(world.waits) > MOST_WAITS:
            raise WaitsForeverError(world.waits[-1])
        return False

    def on_retry(_reporter: Any, step: str, error: MirrorError, _since_ms: int, _pause_s: float) -> None:
        world.waits.append(f"{step}: {error}")

    def run_monitor(monitor: TopicMonitor) -> None:
        """Leave to the world when it reads the controls."""
        world.monitor = monitor

    with (
        pytest.MonkeyPatch.context() as patch,
        in_memory(world.clock, world.network, world.table_folders),
    ):
        patch.setattr(Supervisor, "wait", wait)
        patch.setattr(RunReporter, "on_retry", on_retry)
        patch.setattr(TopicMonitor, "_run", run_monitor)
        try:
            yield world
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def in_memory(clock: VirtualClock, network: Network, table_folders: TableFolders) -> Iterator[None]:
    """Let everything of the package that is used in the block go by this clock, and use these clusters and tables."""
    kept: dict[Any, Cluster] = {}
    with pytest.MonkeyPatch.context() as patch, virtual_clock(clock), direct_connections(network):
        patch.setattr(storage, "DeltalakeBackend", table_folders.backend)
        patch.setattr(storage, "DeltalakeWriter", table_folders.writer)
        patch.setattr(storage, "BackgroundTables", lambda tables: tables)
        patch.setattr(worker_clients, "_clusters", kept)
        patch.setattr(worker_clients, "freeze_imports_once", lambda: None)
        patch.setattr(mirror_query, "require_preserved_offsets", lambda *_: None)  # most requests of a start
        yield
