"""Driver: mirrors that a conductor or a rehearsal starts as processes of their own."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from shallow_mirror.processes import is_process

STOP_S = 60.0


@dataclass(frozen=True, slots=True)
class StartedMirror:
    pid: int
    log: Path

    def __str__(self) -> str:
        return f"pid {self.pid}, log {self.log}"

    @property
    def last_words(self) -> str:
        """Return the last line of the log, empty if there is none."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.is_file() else []
        return lines[-1] if lines else ""

    def stop(self, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
        """Stop the process with SIGTERM, and with SIGKILL if it does not end in time."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)
            give_up_at = clock() + STOP_S
            while clock() < give_up_at:
                if not self.is_alive():
                    return
                sleep(0.1)

    def is_alive(self) -> bool:
        with suppress(ChildProcessError):
            if os.waitpid(self.pid, os.WNOHANG)[0] == self.pid:
                return False
        return is_process(self.pid)


Launch = Callable[[str, Path, Sequence[str]], StartedMirror]
"""Start the mirror of a file, which logs to a path, with options of `run`."""


def start_process(file: str, log: Path, options: Sequence[str] = ()) -> StartedMirror:
    """Start `shallow-mirror run FILE` as a process that outlives this one."""
    log.parent.mkdir(parents=True, exist_ok=True)
    pid = os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "shallow_mirror.cli", "run", file, *options],
        dict(os.environ),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setpgroup=0,  # Ctrl-C of the conductor's terminal does not reach it
    )
    return StartedMirror(pid, log)
