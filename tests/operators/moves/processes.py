"""Processes of a world, one at a time: each is a thread that hands over where it waits, and where the world lets it.

Nothing depends on the machine: the clock moves only where a process waits, asks a cluster or looks at the clock, and the one that
waited for the earliest moment goes on. So a seed is a history.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.operators.lives import KilledError, Life, Lives
from tests.operators.virtual_clock import VirtualClock

_BEGIN_S = 1_767_225_600.0
_LOOK_S = 1e-6
"""Of the clock moves it by so much: a loop that only looks at the time ends."""


@dataclass(eq=False)
class Process:
    """`threads` of one process share its life, its pid and what it keeps between tasks."""

    name: str
    pid: int
    life: Life = field(default_factory=Life)
    clusters: dict[Any, Any] = field(default_factory=dict)
    """Connections that its tasks keep (`worker_clients`)."""
    requests: int = 0
    is_over: bool = False
    error: BaseException | None = None


def _locked() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock


@dataclass(eq=False)
class _Thread:
    process: Process
    turn: threading.Lock = field(default_factory=_locked)


class SteppedClock(VirtualClock):
    """`on_sleep` takes the place of sleeping."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = _BEGIN_S
        self.on_sleep: Callable[[float], None] = self.advance

    def monotonic(self) -> float:
        self.now_s += _LOOK_S
        return self.now_s

    def time(self) -> float:
        return self.monotonic()

    def advance(self, seconds: float) -> None:
        self.now_s += seconds

    def sleep(self, seconds: float) -> None:
        self.on_sleep(seconds)


class Processes:
    """`on_switch`: called with the process that goes on, or with None where the script of the world does."""

    def __init__(self, clock: SteppedClock, lives: Lives, on_switch: Callable[[Process | None], None]) -> None:
        self._clock, self._lives, self._on_switch = clock, lives, on_switch
        self._order = itertools.count()
        self._pids = itertools.count(4_000_000)
        self._due: list[tuple[float, int, _Thread | Callable[[], None]]] = []
        self._script_turn = _locked()
        self._running: _Thread | None = None
        self.known: dict[int, Process] = {}
        """By pid."""
        clock.on_sleep = self.sleep

    @property
    def current(self) -> Process | None:
        """Return the process that runs; None: the script of the world does."""
        return None if self._running is None else self._running.process

    def start(self, name: str, body: Callable[[], None], life: Life | None = None) -> Process:
        process = Process(name, next(self._pids), life or Life())
        self.known[process.pid] = process
        self._begin(process, body, is_main=True)
        return process

    def start_thread(self, body: Callable[[], None]) -> None:
        """Start another thread of the process that runs. It ends by itself, or with its process."""
        assert self._running is not None, "the script has no threads"
        self._begin(self._running.process, body, is_main=False)

    def _begin(self, process: Process, body: Callable[[], None], *, is_main: bool) -> None:
        thread = _Thread(process)

        def run() -> None:
            thread.turn.acquire()
            try:
                self._require_alive(process)
                body()
            except KilledError:
                pass
            except BaseException as error:  # noqa: BLE001 - whoever has started the process looks at it
                process.error = error
            process.is_over = process.is_over or is_main or process.life.is_over
            self._script_turn.release()

        threading.Thread(target=run, name=process.name, daemon=True).start()
        self._push(self._clock.now_s, thread)

    def at(self, seconds: float, action: Callable[[], None]) -> None:
        """Let the script do something so many seconds from now."""
        self._push(self._clock.now_s + seconds, action)

    def _push(self, at_s: float, item: _Thread | Callable[[], None]) -> None:
        heapq.heappush(self._due, (at_s, next(self._order), item))

    def sleep(self, seconds: float) -> None:
        """Let others go on. Raise KilledError where the process was killed meanwhile."""
        thread = self._running
        if thread is None:
            self._clock.advance(seconds)
            return
        self._require_alive(thread.process)
        self._push(self._clock.now_s + max(0.0, seconds), thread)
        self._script_turn.release()
        thread.turn.acquire()
        self._require_alive(thread.process)

    def _require_alive(self, process: Process) -> None:
        if process.life.is_over:
            raise KilledError

    def kill(self, process: Process) -> None:
        """SIGKILL: its threads do nothing any more."""
        process.life.is_over = process.is_over = True

    def run_until(self, is_done: Callable[[], bool]) -> None:
        """Let processes, and what was to happen `at` a time, go on."""
        while not is_done():
            assert self._due, "nothing goes on"
            self._step()

    def _step(self) -> None:
        at_s, _, item = heapq.heappop(self._due)
        self._clock.now_s = max(self._clock.now_s, at_s)
        if not isinstance(item, _Thread):
            item()
            return
        former = self._lives.current
        self._running, self._lives.current = item, item.process.life
        self._on_switch(item.process)
        item.turn.release()
        self._script_turn.acquire()
        self._running, self._lives.current = None, former
        self._on_switch(None)

    @contextmanager
    def ended(self) -> Iterator[None]:
        """Kill whatever still runs behind the block."""
        try:
            yield
        finally:
            for process in self.known.values():
                self.kill(process)
            while self._due:
                item = self._due[0][2]
                if isinstance(item, _Thread):
                    self._step()
                else:
                    heapq.heappop(self._due)
