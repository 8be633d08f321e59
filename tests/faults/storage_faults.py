"""Faults of what the mirror's driver writes to: the folder of the tables, and Spark's checkpoint. Mounts need root."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.faults.gate import PausedProcess
from tests.faults.process_faults import EndsByItself
from tests.faults.rounds import PATIENCE_S, RoundFailedError, Scene

TABLES_BYTES = 256 << 20
_RETRIES_S = 2.0
"""How long a fault lasts once it is reported: the mirror tries again in that time."""


def may_mount() -> bool:
    return os.geteuid() == 0 and shutil.which("mount") is not None


@contextmanager
def small_disk(folder: Path, size_bytes: int = TABLES_BYTES) -> Iterator[None]:
    """`folder` is a file system of its own."""
    folder.mkdir(parents=True)
    _run("mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder))
    try:
        yield
    finally:
        _run("umount", "--lazy", str(folder))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def _let_it_last(scene: Scene, report: str) -> None:
    """Wait until the mirror has logged `report` and tried again, or has ended on it. Raises RoundFailedError."""
    mirror = scene.running_or_ended()
    reports_before = mirror.log().count(report)
    give_up_at = time.monotonic() + PATIENCE_S
    while mirror.exit_code is None and mirror.log().count(report) == reports_before:
        if time.monotonic() > give_up_at:
            raise RoundFailedError(f"the mirror did not report {report!r}:\n{mirror.log()[-4000:]}")
        time.sleep(0.1)
    mirror.wait(_RETRIES_S)


@dataclass(frozen=True, slots=True)
class DiskFull:
    """No block is left where the tables are; `small_disk` keeps that from others."""

    name: str = "disk of the tables full"

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        with _filler(scene).open("wb", buffering=0) as filler:
            try:
                while True:
                    filler.write(bytes(1 << 16))
            except OSError:
                """Full."""

    def repair(self, scene: Scene) -> None:
        _let_it_last(scene, "No space left on device")
        _filler(scene).unlink()


def _filler(scene: Scene) -> Path:
    return scene.tables / "filler"


@dataclass(frozen=True, slots=True)
class ReadOnlyMap:
    """The folder of the offset map is mounted read-only over itself."""

    name: str = "offset map read-only"

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        folder = str(scene.tables / "offset_map")
        _run("mount", "--bind", folder, folder)
        _run("mount", "-o", "bind,remount,ro", folder)

    def repair(self, scene: Scene) -> None:
        _let_it_last(scene, "Read-only file system")
        _run("umount", "--lazy", str(scene.tables / "offset_map"))


@dataclass(frozen=True, slots=True)
class CheckpointDeleted(EndsByItself):
    name: str = "SIGKILL, and Spark's checkpoint deleted"

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        scene.running().kill()
        shutil.rmtree(scene.checkpoint)


@dataclass(frozen=True, slots=True)
class CheckpointOfThePast(EndsByItself):
    """The checkpoint is the one of the first such round: what it plans was copied long ago."""

    name: str = "SIGKILL, and Spark's checkpoint from before"

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        scene.running().kill()
        kept = scene.folder / "checkpoint-from-before"
        if kept.exists():
            shutil.rmtree(scene.checkpoint)
            shutil.copytree(kept, scene.checkpoint)
        else:
            shutil.copytree(scene.checkpoint, kept)
