"""Driver: server programs, each under a supervisor that kills it when this process ends in whatever way; several at once."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Protocol

from shallow_mirror.local_kafka import supervisor
from shallow_mirror.local_kafka.ports import BrokerStartError

STOP_TIMEOUT_S = 20.0

_log = logging.getLogger(__name__)

_KILL_AGAIN_S = 0.5


class ServerProcess:
    """A program. `what` names it in messages: "the broker in /x". Its output is appended to `log_file`. May be started again."""

    def __init__(self, what: str, log_file: Path) -> None:
        self.what = what
        self._log_file = log_file
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None

    @property
    def pid(self) -> int:
        if self._pid is None:
            raise BrokerStartError(f"{self.what} does not run")
        return self._pid

    def is_running(self) -> bool:
        return self._supervisor is not None and self._supervisor.poll() is None

    def launch(self, command: Sequence[str]) -> None:
        """Start the program; return as soon as there is a process. Raises BrokerStartError."""
        watched = [sys.executable, "-I", "-S", supervisor.__file__, str(os.getpid()), str(self._log_file), *command]
        process = subprocess.Popen(watched, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self._supervisor = process
        assert process.stdout is not None
        with process.stdout as output:
            line = output.readline()
        if not line:
            raise BrokerStartError(f"the supervisor of {self.what} ended at once, see standard error")
        self._pid = int(line)

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL when that takes longer than 20 s. No effect if nothing runs."""
        if self.is_running():
            self.resume()
        self._end(b"T")

    def kill(self) -> None:
        """Send SIGKILL. No effect if nothing runs."""
        self._end(b"K")

    def pause(self) -> None:
        """Send SIGSTOP. Raises BrokerStartError."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT after `pause`. Raises BrokerStartError."""
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, how: bytes) -> None:
        process, self._supervisor, self._pid = self._supervisor, None, None
        if process is None:
            return
        assert process.stdin is not None
        try:
            os.write(process.stdin.fileno(), how)
        except BrokenPipeError:
            _log.debug("%s had ended before it was asked to", self.what)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            _log.warning("%s did not stop within %s s and is killed", self.what, STOP_TIMEOUT_S)
        process.stdin.close()
        process.wait()


class Server(Protocol):
    def start(self) -> None: ...

    def stop(self) -> None: ...

    def kill(self) -> None: ...


def start_together(servers: Sequence[Server]) -> None:
    """Start all servers. Raises the first error; then none is left running, and none is waited for that waits for the failed."""
    with ThreadPoolExecutor(max(len(servers), 1)) as pool:
        starting = [pool.submit(server.start) for server in servers]
        try:
            _, pending = wait(starting, return_when=FIRST_EXCEPTION)
            for started in starting:
                if started not in pending:
                    started.result()
        except BaseException:
            while wait(starting, timeout=_KILL_AGAIN_S).not_done:
                _kill_all(servers)
            _kill_all(servers)
            raise


def _kill_all(servers: Sequence[Server]) -> None:
    for server in servers:
        server.kill()


def stop_together(servers: Sequence[Server]) -> None:
    with ThreadPoolExecutor(max(len(servers), 1)) as pool:
        for stopped in [pool.submit(server.stop) for server in servers]:
            stopped.result()
