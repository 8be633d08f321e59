"""Faults of the mirror's own processes, and of their clocks."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from tests.faults import mirror_process
from tests.faults.gate import PausedProcess
from tests.faults.rounds import Scene


class EndsByItself:
    """A fault that needs no end."""

    def repair(self, scene: Scene) -> None:
        return None


@dataclass(frozen=True, slots=True)
class KillAll(EndsByItself):
    name: str = "SIGKILL of the mirror"

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        scene.running().kill()


@dataclass(frozen=True, slots=True)
class KillDriver(EndsByItself):
    """Tasks of the dead driver live on until they notice, while its successor starts."""

    name: str = "SIGKILL of the driver"

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        scene.running().kill_driver()


@dataclass(frozen=True, slots=True)
class KillJvm(EndsByItself):
    name: str = "SIGKILL of the JVM"

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        scene.running().jvm().kill()


@dataclass(frozen=True, slots=True)
class KillWorker(EndsByItself):
    """The Python worker that stands at the step."""

    name: str = "SIGKILL of a Python worker"

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        assert paused.pid != scene.running().pid, "the driver stands there"
        psutil.Process(paused.pid).kill()


@dataclass(frozen=True, slots=True)
class KillTask(KillWorker):
    """The process of the slot that stands at the step, without Spark."""

    name: str = "SIGKILL of a task"


@dataclass(frozen=True, slots=True)
class KillExecutor(EndsByItself):
    """One executor of a local cluster: that of the task that stands at the step."""

    name: str = "SIGKILL of an executor"

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        own = {parent.pid for parent in psutil.Process(paused.pid).parents()}
        next(executor for executor in scene.running().executors() if executor.pid in own).kill()


@dataclass(frozen=True, slots=True)
class Suspend(EndsByItself):
    """SIGSTOP of everything, for longer than the target keeps a transaction open, then SIGCONT."""

    seconds: float
    name: str = "SIGSTOP beyond the transaction timeout"

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        stopped = scene.running().everything()
        mirror_process.kill(stopped, signal.SIGSTOP)
        time.sleep(self.seconds)
        mirror_process.kill(stopped, signal.SIGCONT)


CLOCK = Path(__file__).with_name("clock")


def _clock_file(folder: Path) -> Path:
    return folder / "clock"


def movable_clock(folder: Path) -> dict[str, str]:
    """Environment of a mirror whose clock can be moved; `folder` is its scene's."""
    return {"FAULTS_CLOCK": str(_clock_file(folder)), "PYTHONPATH": str(CLOCK)}


@dataclass(frozen=True, slots=True)
class MoveClock(EndsByItself):
    """The wall clock of all Python processes of the mirror jumps; see `clock/sitecustomize.py`."""

    seconds: float
    name: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"wall clock {'forward' if self.seconds > 0 else 'back'} by {abs(self.seconds):.0f} s")

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        clock = _clock_file(scene.folder)
        moved_s = float(clock.read_text()) if clock.exists() else 0.0
        unfinished = clock.with_suffix(".new")
        unfinished.write_text(str(moved_s + self.seconds))
        unfinished.rename(clock)
