"""Where a mirror's processes knock at every point they pass: the harness lets them on, or holds one at the awaited step."""

from __future__ import annotations

import os
import socket
import threading
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.faults.steps import Awaited, Step


class PausedProcess:
    """One process of the mirror that stands at a point until it is released, or dies."""

    def __init__(self, pid: int, point: str, connection: socket.socket) -> None:
        self.pid, self.point = pid, point
        self._connection = connection

    def release(self) -> None:
        """No effect on a process that is dead, or released already."""
        self._connection.close()


class Gate:
    """A Unix socket. `passed` counts the points of all processes."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "gate")
        self.passed: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._awaited: Awaited | None = None
        self._paused: PausedProcess | None = None
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(self.address)
        self._listening.listen(64)
        self._thread = threading.Thread(target=self._serve, name="gate", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.forget()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listening.close()
        os.unlink(self.address)

    def await_step(self, step: Step) -> None:
        """From now on; what was paused before is released."""
        with self._changed:
            self._release_paused()
            self._awaited = Awaited(step)

    def forget(self) -> None:
        """Nothing is paused any more, and nothing awaited."""
        with self._changed:
            self._release_paused()
            self._awaited = None

    def await_paused(self, timeout_s: float) -> PausedProcess | None:
        """Return the process at the awaited step; None when none came within `timeout_s`."""
        with self._changed:
            self._changed.wait_for(lambda: self._paused is not None, timeout_s)
            return self._paused

    def _release_paused(self) -> None:
        if self._paused is not None:
            self._paused.release()
            self._paused = None

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            line = connection.makefile().readline()
            if line:
                self._respond(connection, *line.split())
            else:
                connection.close()

    def _respond(self, connection: socket.socket, pid: str, point: str) -> None:
        with self._changed:
            self.passed[point] += 1
            if self._awaited is not None and self._awaited.is_reached_by(point):
                self._paused = PausedProcess(int(pid), point, connection)
                self._changed.notify_all()
                return
        connection.close()
