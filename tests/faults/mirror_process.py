"""The mirror that is harmed: its processes by their parts, how to kill them, and what is left of them."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import psutil
from tests.faults import launch
from tests.faults.launch import Started
from tests.faults.steps import SLOTS

STOP_TIMEOUT_S = 90.0

SPARK, LOCAL_CLUSTER, WITHOUT_SPARK = "Spark", "Spark, 2 executors", "without Spark"
BUSY_CLUSTER, BUSY_WITHOUT_SPARK = "Spark, 1 core", "without Spark, 1 core"
"""What runs the micro-batches: Spark in one JVM, Spark with executors of their own, or `without_spark` in its place. What is
busy has a single core for `BUSY_SLOTS` slots, as if other applications held the others."""

BUSY_SLOTS = 6


class MirrorProcess:
    """One run. Standard output and error are appended to `log_file`; scratch files lie in `scratch`."""

    def __init__(self, conf: Path, gate: str, log_file: Path, scratch: Path, engine: str, environment: Mapping[str, str]) -> None:
        self.log_file = log_file
        log_file.touch()
        self._log_start = log_file.stat().st_size
        scratch.mkdir(exist_ok=True)
        started = launch.Forked if engine in (WITHOUT_SPARK, BUSY_WITHOUT_SPARK) else launch.anew
        own = {"TMPDIR": str(scratch), "PYTHONPYCACHEPREFIX": str(scratch.with_name("pycache"))}
        slots = BUSY_SLOTS if engine in (BUSY_CLUSTER, BUSY_WITHOUT_SPARK) else SLOTS
        self._process: Started = started([str(conf), gate, str(slots), engine], log_file, {**own, **environment})
        self._driver = psutil.Process(self._process.pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative when a signal ended it."""
        return self._process.poll()

    def everything(self) -> list[psutil.Process]:
        """Return the driver and all its descendants, at this moment."""
        try:
            return [self._driver, *self._driver.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def jvm(self) -> psutil.Process:
        """Spark's JVM, a child of the driver."""
        return next(child for child in self._driver.children() if _name_of(child) == "java")

    def executors(self) -> list[psutil.Process]:
        """Executors of a local cluster: JVMs below the driver's JVM."""
        return [child for child in self.jvm().children(recursive=True) if _name_of(child) == "java"]

    def kill(self) -> None:
        """SIGKILL to all of it. No effect when it has ended."""
        kill(self.everything())
        self._process.wait()

    def kill_driver(self) -> None:
        """SIGKILL to the Python driver alone; Spark's JVM then ends by itself."""
        self._driver.kill()
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM, and the exit code. Raises subprocess.TimeoutExpired."""
        self._process.terminate()
        return self._process.wait(STOP_TIMEOUT_S)

    def wait(self, timeout_s: float) -> int | None:
        """Return the exit code, or None when it has not ended within `timeout_s`."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout_s)
        return self.exit_code

    def log(self) -> str:
        """Return what this run has logged so far."""
        with self.log_file.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")


def kill(processes: Iterable[psutil.Process], how: signal.Signals = signal.SIGKILL) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(how)


def survivors(processes: Iterable[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Those that still run after `timeout_s`. A process that ended and that nobody has waited for runs no more."""
    give_up_at = time.monotonic() + timeout_s
    while True:
        alive = [process for process in processes if is_alive(process)]
        if not alive or time.monotonic() > give_up_at:
            return alive
        time.sleep(0.05)


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _name_of(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.NoSuchProcess:
        return ""
