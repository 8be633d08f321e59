"""Everywhere: a credential that ends, and is renewed in the background while the last one is still valid."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Generic, TypeVar

from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError, RetriableError

_GRACE_S = 0.5
"""So long the caller that begins a renewal waits for it. A broker ends a session with the token that opened it."""

_MOST_PAUSE_S = 30.0
_PAUSE = 0.25
"""Between two attempts to renew: this share of the time between renewal and end, at most `_MOST_PAUSE_S`."""

_NEVER = float("inf")
_log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lease(Generic[T]):
    """A credential and its times, in seconds on the clock of its `RenewedCredential`.

    `renew_at`: a new one is requested from then on. `ends_at`: it is not used from then on.
    """

    value: T
    renew_at: float
    ends_at: float


class RenewedCredential(Generic[T]):
    """The last credential of `fetch`, and the thread that gets the next one.

    A provider gets one call at a time, and this process has one thread for it: libraries of providers may wait for minutes, and
    take no deadline. A call that takes longer than a caller waits is not repeated; later callers wait for it.
    While the last credential is valid, no caller waits but the one that begins a call, for `_GRACE_S`, and an error of `fetch`
    is logged once, not raised. `RetriableError` is followed by other attempts. After any other error the next attempt is made
    when the credential has ended: providers lock accounts.
    """

    def __init__(
        self,
        name: str,
        fetch: Callable[[], Lease[T]],
        *,
        late: Callable[[], RetriableError],
        clock: Callable[[], float],
        timeout_s: float | None = None,
        start: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """`name`: for the log and the thread. `late`: the error of a caller whose deadline, or `timeout_s`, is over.

        `start`: runs a function in the background; None: in a daemon thread.
        """
        self._name, self._fetch, self._late, self._clock, self._timeout_s = name, fetch, late, clock, timeout_s
        self._start = start or self._start_thread
        self._lock = threading.Lock()
        self._lease: Lease[T] | None = None
        self._next_at = 0.0
        self._running: Future[Lease[T]] | None = None
        self._is_reported = False

    def get(self, deadline: Deadline) -> T:
        """Return a credential that is valid now. Raises the errors of `fetch`, and `late()`, where there is none."""
        attempt = deadline if self._timeout_s is None else deadline.sooner(self._timeout_s * 1000)
        lease = self._current(attempt)
        if self._clock() >= lease.ends_at:
            # It took longer than earlier callers waited. One that has ended on arrival again is used: the server has the reason.
            lease = self._current(attempt)
        return lease.value

    def is_valid(self) -> bool:
        """Return whether there is a credential that has not ended."""
        return self._lease is not None and self._clock() < self._lease.ends_at

    def kept(self) -> T | None:
        """Return the credential that the next caller gets without a call of `fetch`; None if there is none."""
        lease = self._lease
        return lease.value if lease is not None and self.is_valid() else None

    def drop(self, value: T) -> None:
        """Do not use a credential any longer; no effect if there is another one by now."""
        with self._lock:
            if self._lease is not None and self._lease.value is value:
                self._lease = None

    def _current(self, attempt: Deadline) -> Lease[T]:
        lease, call = self._look()
        if call is not None:
            remaining_s = attempt.remaining_ms() / 1000
            wait([call], remaining_s if lease is None else min(_GRACE_S, remaining_s))
        if lease is not None:
            return self._lease or lease
        assert call is not None
        if not call.done():
            raise self._late()
        with self._lock:
            if self._running is call:
                self._running = None
        return call.result()

    def _look(self) -> tuple[Lease[T] | None, Future[Lease[T]] | None]:
        """Return the credential while it is valid, and the call to wait for: the one that was due, or runs without one."""
        with self._lock:
            lease = self._lease if self.is_valid() else None
            if lease is not None and (self._running is not None or self._clock() < self._next_at):
                return lease, None
            if self._running is not None:
                return None, self._running
            call = self._running = Future()
        try:
            self._start(lambda: self._run(call))
        except BaseException:
            # There is no thread that would end the call.
            with self._lock:
                self._running = None
            raise
        return lease, call

    def _run(self, call: Future[Lease[T]]) -> None:
        try:
            lease = self._fetch()
        except BaseException as error:  # noqa: BLE001 - raised by the callers that wait; a call must end in any case
            self._fail(call, error)
            return
        with self._lock:
            self._lease, self._next_at, self._running = lease, lease.renew_at, None
            was_reported, self._is_reported = self._is_reported, False
        call.set_result(lease)
        if was_reported:
            _log.info("%s was renewed", self._name)

    def _fail(self, call: Future[Lease[T]], error: BaseException) -> None:
        with self._lock:
            lease, now = self._lease, self._clock()
            is_valid = lease is not None and now < lease.ends_at
            if is_valid:
                assert lease is not None
                pause_s = min(_MOST_PAUSE_S, (lease.ends_at - lease.renew_at) * _PAUSE)
                self._next_at = now + pause_s if isinstance(error, RetriableError) else _NEVER
                self._running = None
                is_reported, self._is_reported = self._is_reported, True
        # Without a valid credential the call is kept until a caller has taken its error: of refused credentials, which would be
        # sent again and again where every caller stops waiting before the refusal arrives.
        call.set_exception(error)
        if is_valid and not is_reported:
            assert lease is not None
            # The text of any other error may hold a secret.
            reason = str(error) if isinstance(error, MirrorError) else type(error).__name__
            _log.warning("%s was not renewed and is used until it ends in %.0f s: %s", self._name, lease.ends_at - now, reason)

    def _start_thread(self, run: Callable[[], None]) -> None:
        threading.Thread(target=run, name=self._name, daemon=True).start()
