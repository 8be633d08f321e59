"""Faults of the mirror's own processes."""

from __future__ import annotations

from dataclasses import dataclass

import psutil
from tests.faults.gate import Held
from tests.faults.rounds import Scene


@dataclass(frozen=True, slots=True)
class KillAll:
    """SIGKILL of every process of the mirror."""

    name: str = "SIGKILL of the mirror"

    def inject(self, scene: Scene, held: Held) -> None:
        scene.running().kill()

    def heal(self, scene: Scene) -> None:
        return None


@dataclass(frozen=True, slots=True)
class KillDriver:
    """SIGKILL of the Python driver; its JVM, and tasks in it, live on for a while."""

    name: str = "SIGKILL of the driver"

    def inject(self, scene: Scene, held: Held) -> None:
        scene.running().kill_driver()

    def heal(self, scene: Scene) -> None:
        return None


@dataclass(frozen=True, slots=True)
class KillJvm:
    """SIGKILL of Spark's JVM below the driver."""

    name: str = "SIGKILL of the JVM"

    def inject(self, scene: Scene, held: Held) -> None:
        scene.running().jvm().kill()

    def heal(self, scene: Scene) -> None:
        return None


@dataclass(frozen=True, slots=True)
class KillWorker:
    """SIGKILL of the Python worker that stands at the step."""

    name: str = "SIGKILL of a Python worker"

    def inject(self, scene: Scene, held: Held) -> None:
        assert held.pid != scene.running().pid, "the driver stands there"
        psutil.Process(held.pid).kill()

    def heal(self, scene: Scene) -> None:
        return None
