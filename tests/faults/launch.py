"""Two ways to start a process that runs `mirror_main`: anew, or forked from a process that has imported everything."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Protocol

REPOSITORY = Path(__file__).resolve().parents[2]
_PROGRAM = "import sys; from tests.faults import mirror_main; sys.exit(mirror_main.main(sys.argv[1:]))"


class Started(Protocol):
    """What is used here of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def terminate(self) -> None: ...


Launch = Callable[[Sequence[str], Path, Mapping[str, str]], Started]
"""(arguments of `mirror_main`, log file, environment of its own) -> the process, the first of a group of its own."""


def anew(arguments: Sequence[str], log_file: Path, own: Mapping[str, str]) -> Started:
    """`own` may add to the front of PYTHONPATH."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    path = os.pathsep.join(filter(None, [own.get("PYTHONPATH"), str(REPOSITORY), inherited.get("PYTHONPATH")]))
    with log_file.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**inherited, **own, "PYTHONPATH": path},
            start_new_session=True,
        )


class Forked:
    """A process of Python's fork server. It is as if started anew, but that no module is imported again."""

    def __init__(self, arguments: Sequence[str], log_file: Path, own: Mapping[str, str]) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.faults.mirror_main", "tests.faults.campaigns", "pandas"])
        self._arguments = list(arguments)
        self._process = context.Process(target=_be_a_mirror, args=(self._arguments, str(log_file), dict(own)))
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._arguments, timeout or 0.0)
        return self._process.exitcode

    def terminate(self) -> None:
        self._process.terminate()


def _be_a_mirror(arguments: Sequence[str], log_file: str, own: Mapping[str, str]) -> None:
    os.setsid()
    log = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.environ.update(own)
    tempfile.tempdir = None
    if "FAULTS_CLOCK" in own:
        from tests.faults.clock import sitecustomize  # noqa: F401 - moves the clock
    from tests.faults import mirror_main

    from shallow_mirror.streaming.spark.temp_dirs import temp_dir

    code = mirror_main.main(arguments)
    sys.stderr.flush()
    shutil.rmtree(temp_dir(), ignore_errors=True)  # as at the end of an interpreter
    os._exit(code)  # what multiprocessing does at an end waits for workers that wait for it


def stop_fork_server() -> None:
    """Stop the server, which would end with this process, for those who look for leftover processes before that."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
