"""A world of migrations with everything of the package in it: its processes, clock, clusters and tables."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.operators.moves.commands import Commands
from tests.operators.moves.moving_world import MovingWorld, Setting
from tests.operators.surroundings import in_memory

from shallow_mirror.streaming.runs.supervisor import Supervisor
from shallow_mirror.streaming.runs.topic_monitor import CONTROLS_EVERY_S, TopicMonitor


@contextmanager
def opened_world(folder: Path, setting: Setting) -> Iterator[MovingWorld]:
    """Yield a world; everything of the package that is used in the block runs in it."""
    with pytest.MonkeyPatch.context() as patch:
        world = MovingWorld(folder, setting)

        def wait(supervisor: Supervisor, seconds: float) -> bool:
            world.clock.sleep(seconds)
            return supervisor.is_over()

        def watch(monitor: TopicMonitor) -> None:
            """Do what the thread of a monitor does, as far as it changes something."""
            while True:
                world.clock.sleep(CONTROLS_EVERY_S)
                if monitor._stop.is_set():
                    return
                monitor._read_controls()
                monitor._look_at_map()
                there = world.clusters[monitor._config.target.alias].topic_ids()
                names = monitor._targets.names()
                monitor._cycles.check_while_running({name: target for name, target in names.items() if target in there})

        enter = TopicMonitor.__enter__

        def entered(monitor: TopicMonitor) -> TopicMonitor:
            enter(monitor)
            world.processes.start_thread(lambda: watch(monitor))
            return monitor

        patch.setattr(Supervisor, "wait", wait)
        patch.setattr(TopicMonitor, "_run", lambda _: None)
        patch.setattr(TopicMonitor, "__enter__", entered)
        patch.setattr(os, "getpid", world.getpid)
        patch.setattr(os, "kill", world.kill_signal)
        try:
            with in_memory(world.clock, world.network, world.table_folders), world.processes.ended():
                yield world
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def moved_world(folder: Path, setting: Setting) -> Iterator[MovingWorld]:
    """Yield a world whose waves have moved, after 20 s of the application."""
    with opened_world(folder, setting) as world:
        world.begin()
        world.let(20)
        assert Commands(world).perform("run") is None
        yield world
