"""Driver: start and stop several servers at the same time, all or none."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Protocol

_KILL_AGAIN_S = 0.5


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
