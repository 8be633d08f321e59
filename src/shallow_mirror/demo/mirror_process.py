"""Driver: `shallow-mirror` in a process of its own, as a user starts it, and how to kill all of it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

_STOP_TIMEOUT_S = 20.0
_RECOVERY = re.compile(r"recovery: (?P<decision>.+)$")
_SLOT = re.compile(r"slot txn (?P<slot>.+?\(producer id -?\d+, epoch -?\d+\)|\S+): (?P<fate>.+)$")


class MirrorProcess:
    """One run; its standard output and error go to `log_file`. Spark's Java and Python processes are its descendants.

    Scratch files of a killed Spark are in the folder `scratch` beside the log.
    """

    def __init__(self, conf: Path, log_file: Path, arguments: Sequence[str] = ("run", "{}", "--available-now")) -> None:
        """`arguments` of `shallow-mirror`; `{}` stands for the file `conf`."""
        self.log_file = log_file
        scratch = log_file.parent / "scratch"
        scratch.mkdir(exist_ok=True)
        with log_file.open("wb") as log:
            self._process = subprocess.Popen(
                [*command(), *(str(conf) if argument == "{}" else argument for argument in arguments)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "SPARK_LOCAL_DIRS": str(scratch), "TMPDIR": str(scratch)},
                start_new_session=True,
            )

    @property
    def exit_code(self) -> int | None:
        """Return None while it runs; negative when a signal ended it."""
        return self._process.poll()

    def kill(self) -> None:
        """Kill the whole process group, and descendants that left it: PySpark's worker daemon has a group of its own."""
        if self._process.poll() is not None:
            return
        others = descendants(self._process.pid, _parents())
        os.killpg(self._process.pid, signal.SIGKILL)
        for pid in others:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Ask for a clean end, and kill the remaining processes after 20 s."""
        if self._process.poll() is not None:
            return
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_TIMEOUT_S)
        self.kill()

    def log_tail(self, lines: int = 30) -> str:
        return "\n".join(self.log_lines()[-lines:])

    def log_lines(self) -> list[str]:
        return self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()


def command() -> list[str]:
    """Return the command: the installed script beside this Python, else on the path, else the module."""
    script = Path(sys.executable).with_name("shallow-mirror")
    executable = str(script) if script.is_file() else shutil.which("shallow-mirror")
    return [executable] if executable else [sys.executable, "-c", "from shallow_mirror.cli import main; main()"]


def descendants(pid: int, parents: Iterable[tuple[int, int]]) -> list[int]:
    """Return children, their children and so on, of (pid, parent's pid) of all processes. Pure."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for child, parent in parents:
        children[parent].append(child)
    pids: list[int] = []
    unseen = list(children[pid])
    while unseen:
        descendant = unseen.pop()
        pids.append(descendant)
        unseen += children[descendant]
    return pids


def _parents() -> list[tuple[int, int]]:
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    return [(int(pid), int(parent)) for pid, parent in (line.split() for line in listed.splitlines() if line.strip())]


def recovery_decisions(lines: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return (slot transaction or "", decision of the recovery) from the log of the run that recovered. Pure."""
    decisions = []
    for line in lines:
        match = _RECOVERY.search(line)
        if match is None:
            continue
        of_slot = _SLOT.search(match["decision"])
        decisions.append((of_slot["slot"], of_slot["fate"]) if of_slot else ("", match["decision"]))
    return tuple(decisions)
