"""Driver: retries of a run without limit, its deadlines, and its end at a stop or after a time."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Protocol, TypeVar

from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError, OutcomeUnknownError, RetriableError, StoppedError

BACK_OFF_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses between attempts; the last repeats without limit."""

CONNECT_ATTEMPT_MS = 5_000
START_ATTEMPT_MS = 60_000
"""How long one attempt to reach a cluster, to resolve and to prepare topics may take before the log says what is waited for."""

T = TypeVar("T")


class RetryReporter(Protocol):
    def on_retry(self, step: str, error: MirrorError, since_ms: int, pause_s: float) -> None: ...


class Supervisor:
    """Of one run. `stop`: set in a signal handler, or from any thread. `for_seconds`: the run ends after so long; None: never."""

    def __init__(self, stop: threading.Event, for_seconds: float | None, reporter: RetryReporter) -> None:
        self._stop = stop
        self._ends_at = None if for_seconds is None else time.monotonic() + for_seconds
        self._reporter = reporter

    def retry_forever(self, step: str, attempt: Callable[[], T]) -> T:
        """Return the result of `attempt`. Retry errors that may pass without limit, with a growing pause, visible in the log.

        Raise definite errors at once, StoppedError at a stop, and the last error when the time of the run is over.
        """
        failures, since_ms = 0, _now_ms()
        while True:
            began = time.monotonic()
            try:
                return attempt()
            except (RetriableError, OutcomeUnknownError) as error:
                # An attempt that held for long was a success: its failure is a new one, with a short first pause.
                if time.monotonic() - began > BACK_OFF_S[-1] * 2:
                    failures, since_ms = 0, _now_ms()
                pause_s = BACK_OFF_S[min(failures, len(BACK_OFF_S) - 1)]
                failures += 1
                self._reporter.on_retry(step, error, since_ms, pause_s)
                if self.wait(pause_s):
                    if self._stop.is_set():
                        raise StoppedError(f"{step}: {error}") from error
                    raise

    def is_over(self) -> bool:
        """Return True when the run should end at the next micro-batch boundary."""
        return self._stop.is_set() or (self._ends_at is not None and time.monotonic() >= self._ends_at)

    def deadline(self, most_ms: float = START_ATTEMPT_MS) -> Deadline:
        """Return the deadline of one attempt of a step that is retried; it is over at once when a stop is requested."""
        return Deadline.after_ms(most_ms, lambda: math.inf if self._stop.is_set() else time.monotonic())

    def wait(self, seconds: float) -> bool:
        """Return True when the run should end instead of trying again."""
        if self._ends_at is not None:
            seconds = min(seconds, max(0.0, self._ends_at - time.monotonic()))
        return self._stop.wait(seconds) or self.is_over()


def _now_ms() -> int:
    return int(time.time() * 1000)
