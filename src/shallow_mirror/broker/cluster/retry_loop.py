"""Everywhere: repeat what has no effect on the cluster until it succeeds or the deadline is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError

BACK_OFF_MS = (5, 10, 20, 50, 100, 200, 500, 1000)
"""Pauses between tries, jittered by half; the last one repeats until the deadline."""

_T = TypeVar("_T")


class RetryLoop:
    """Tries, each bounded by the request timeout, with jittered pauses between them."""

    def __init__(
        self,
        request_timeout_ms: float,
        *,
        sleep: Callable[[float], None],
        jitter: Callable[[], float],
        before_retry: Callable[[], None],
    ) -> None:
        self._request_timeout_ms = request_timeout_ms
        self._sleep = sleep
        self._jitter = jitter
        self._before_retry = before_retry

    def run(
        self,
        what: str,
        attempt: Callable[[Deadline], _T],
        deadline: Deadline,
        require_hope: Callable[[RetriableError], None] = lambda _error: None,
    ) -> _T:
        """Repeat `attempt` while it raises RetriableError. `what` names it in the error that is raised at the deadline.

        `require_hope` raises if another try cannot help.
        """
        tries = 0
        while True:
            try:
                return attempt(deadline.sooner(self._request_timeout_ms))
            except RetriableError as error:
                # A subclass knows more than "again": the caller decides about it.
                if type(error) is not RetriableError or deadline.is_over():
                    raise
                require_hope(error)
                self._before_retry()
                self.pause(tries, deadline)
                tries += 1
                if deadline.is_over():
                    raise RetriableError(error.error_name, f"gave up {what}: {error.detail}") from error

    def pause(self, tries: int, deadline: Deadline) -> None:
        self.wait(self.back_off_ms(tries), deadline)

    def back_off_ms(self, tries: int) -> float:
        """Return the pause after so many failed tries, jittered."""
        return BACK_OFF_MS[min(tries, len(BACK_OFF_MS) - 1)] * (0.5 + self._jitter() / 2)

    def wait(self, ms: float, deadline: Deadline) -> None:
        self._sleep(min(ms, deadline.remaining_ms()) / 1000)
