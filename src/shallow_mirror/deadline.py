"""One deadline runs through a micro-batch. Clocks come in as arguments."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from shallow_mirror.errors import RetriableError

REQUEST_MS = 20_000


@dataclass(frozen=True, slots=True)
class Deadline:
    """A point on `clock` (seconds, monotonic). Never pickled: remaining ms travel instead."""

    at: float
    clock: Callable[[], float]

    @classmethod
    def after_ms(cls, ms: float, clock: Callable[[], float]) -> Deadline:
        return cls(clock() + ms / 1000.0, clock)

    def remaining_ms(self) -> float:
        """Return the milliseconds that are left, never negative."""
        return max(0.0, (self.at - self.clock()) * 1000.0)

    def is_over(self) -> bool:
        return self.clock() >= self.at

    def sooner(self, ms: float) -> Deadline:
        """Return the earlier of this deadline and `ms` from now."""
        return Deadline(min(self.at, self.clock() + ms / 1000.0), self.clock)

    def require(self, waiting_for: str) -> None:
        """Raise `RetriableError("DEADLINE")` once it is over; `waiting_for` completes "gave up waiting for …"."""
        if self.is_over():
            raise RetriableError("DEADLINE", f"gave up waiting for {waiting_for}")


class Silence:
    """A clock (seconds) since the last data was received, for a deadline that moves with the data."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since = clock()

    def reset(self) -> None:
        self._since = self._clock()

    def __call__(self) -> float:
        return self._clock() - self._since


def request_deadline() -> Deadline:
    return Deadline.after_ms(REQUEST_MS, time.monotonic)
