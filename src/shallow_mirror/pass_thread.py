"""Driver: a thread beside a run that does one pass after the other, over groups or ACLs: nothing of the run waits for it."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing
from datetime import datetime
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar

from shallow_mirror.log_context import in_context

_log = logging.getLogger(__name__)

REQUEST_S = 10.0
"""Timeout of each request to a cluster."""
SHARE = 0.1
"""Share of the time that passes may take; the pause behind a long one is longer."""
LAST_PASS_S, END_S = 15.0, 2.0
"""How long the end of a run waits for its last pass, and for the current one where no further one is wanted."""

Done = TypeVar("Done")
Result = TypeVar("Result")
Done_co = TypeVar("Done_co", covariant=True)


class Passes(Protocol[Done_co]):
    """Opened and used by the thread alone."""

    def run_pass(self, now: datetime) -> Done_co: ...
    def close(self) -> None: ...


class PassThread(ABC, Generic[Done]):
    """Context manager: the thread. With `is_last_wanted` set, the end of the block waits for one more pass."""

    def __init__(self, name: str, interval_s: float, now: Callable[[], datetime], *, abandoned: str, recovered: str) -> None:
        """`abandoned`: the message if the last pass does not end in time, with the seconds; `recovered`: after failures."""
        self._interval_s = interval_s
        self._now = now
        self._abandoned = abandoned
        self._recovered = recovered
        self._stop = threading.Event()
        self._thread = threading.Thread(target=in_context(self._run), name=name, daemon=True)
        self._problem: str | None = None
        self.is_last_wanted = False

    @abstractmethod
    def open_passes(self) -> Passes[Done]:
        """Return the object that does the passes. Called in the thread."""

    @abstractmethod
    def on_failure(self, error: Exception, problem: str, now: datetime, level: int) -> None:
        """Report a pass that failed; `level` is that of its log line, lower if the last one failed alike."""

    def on_done(self, done: Done) -> None:
        """Report a pass that did not fail."""

    def is_stopped_within(self, passes: Passes[Done], pause_s: float) -> bool:
        """Wait between two passes. Return whether the run ends."""
        return self._stop.wait(pause_s)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        patience_s = LAST_PASS_S if self.is_last_wanted else END_S
        self._thread.join(patience_s)
        if self._thread.is_alive():
            _log.warning(self._abandoned, patience_s)

    def _run(self) -> None:
        with closing(self.open_passes()) as passes:
            while True:
                began = time.monotonic()
                self._run_pass(passes)
                took = time.monotonic() - began
                if self.is_stopped_within(passes, max(self._interval_s - took, took * (1 - SHARE) / SHARE)):
                    break
            if self.is_last_wanted:
                self._run_pass(passes)

    def _run_pass(self, passes: Passes[Done]) -> None:
        now = self._now()
        done = self.attempt(lambda: passes.run_pass(now), now)
        if done is not None:
            self.on_done(done)

    def attempt(self, act: Callable[[], Result], now: datetime) -> Result | None:
        """Return the result of a pass, or of a part of one; None where it failed, which is reported."""
        try:
            result = act()
        except Exception as error:  # noqa: BLE001 - no failure of a pass may end or delay the run
            if self._stop.is_set() and not self.is_last_wanted:
                return None  # what it needs may be gone already
            problem = f"{type(error).__name__}: {error}"
            self.on_failure(error, problem, now, logging.DEBUG if problem == self._problem else logging.WARNING)
            self._problem = problem
            return None
        if self._problem is not None:
            _log.info(self._recovered)
        self._problem = None
        return result
