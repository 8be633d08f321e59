"""Everywhere: direct reads, GET requests of signed URLs with Python's HTTP and TLS, repeated as obstore repeats its own.

They exist for their cost: obstore takes system calls, wake-ups and an allocation for every TLS record, and its answer is copied
once more. Here the bytes are decrypted into the caller's buffer. What is refused for good is no error of this file: the caller
asks obstore, whose answer is the one that counts.
"""

from __future__ import annotations

import http.client
import random
import ssl
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, RetriableError, StoreUnreachableError
from shallow_mirror.object_store.direct_read_options import DirectReadOptions
from shallow_mirror.object_store.range_connection import RangeConnection, Rejection
from shallow_mirror.object_store.store_errors import no_answer_error, one_line, response_error

IDLE_CONNECTIONS = 8
"""Kept for the next reads; more are closed when their read ends."""
_MAY_PASS = (408, 429)
"""Responses that are repeated, beside those of the 500s."""


class ReadRefusedError(Exception):
    """A direct read was refused and would be refused again. `status`: of the response; None without one."""

    def __init__(self, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True, slots=True)
class _IdleConnection:
    """A connection without a request since a time of the clock. `origin`: scheme, host and port."""

    since_s: float
    origin: tuple[str, str]
    connection: RangeConnection


class RangeReader:
    """Reads ranges of the objects of one store. For any thread; each read has a connection of its own."""

    def __init__(
        self,
        options: DirectReadOptions,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """Open nothing yet. Raises ConfigError if the option root_certificate is not PEM."""
        self._options = options
        self._context = _tls_context(options)
        self._clock, self._sleep, self._jitter = clock, sleep, jitter
        self._idle: deque[_IdleConnection] = deque()
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._idle)

    def read_into(self, signed_url: Callable[[], str], start: int, target: memoryview, operation: str, root: str) -> None:
        """Fill `target` with an object's bytes from `start`. `signed_url` is called for each attempt.

        `operation` and `root` are those of the errors. Raises StoreUnreachableError when all attempts have failed,
        ReadRefusedError, and the errors of `signed_url`.
        """
        rules, began = self._options.retry, self._clock()
        pause_ms, retries = rules.first_pause_ms, 0
        while True:
            url = urlsplit(signed_url())
            failure = self._attempt(url, start, target)
            if failure is None:
                return
            if retries >= rules.max_retries or (self._clock() - began) * 1000 > rules.timeout_ms:
                raise _unreachable(failure, url, operation, root)
            self._sleep(pause_ms / 1000)
            pause_ms, retries = rules.next_pause_ms(pause_ms, self._jitter()), retries + 1

    def _attempt(self, url: SplitResult, start: int, target: memoryview) -> Rejection | str | None:
        """Return None when `target` is filled; else a failure that may pass: a response, or the reason why there was none."""
        deadline = Deadline.after_ms(self._options.timeout_ms, self._clock)
        connection: RangeConnection | None = None
        try:
            connection = self._connection(url, deadline)
            rejection = connection.get(url, start, target, self._options.user_agent, deadline, self._options.read_timeout_ms)
        except ssl.SSLCertVerificationError as error:
            raise ReadRefusedError(f"the certificate of {url.netloc} is not accepted: {error.verify_message}") from None
        except RetriableError as error:
            return error.detail
        except (OSError, http.client.HTTPException) as error:
            return one_line(f"{type(error).__name__}: {error}")
        finally:
            if connection is not None:
                self._give_back(url, connection)
        if rejection is None or rejection.status >= 500 or rejection.status in _MAY_PASS:
            return rejection
        raise ReadRefusedError(f"status {rejection.status} {rejection.phrase}", rejection.status)

    def _connection(self, url: SplitResult, deadline: Deadline) -> RangeConnection:
        """Return an idle connection that is still open, or a new one."""
        if url.scheme == "http" and not self._options.allows_http:
            raise ReadRefusedError("URL scheme is not allowed")
        while True:
            with self._lock:
                idle = self._idle.pop() if self._idle else None
            if idle is None:
                connecting = deadline.sooner(self._options.connect_timeout_ms)
                return RangeConnection(url, self._context if url.scheme == "https" else None, connecting)
            is_fresh = (self._clock() - idle.since_s) * 1000 < self._options.pool_idle_ms
            if is_fresh and idle.origin == (url.scheme, url.netloc) and idle.connection.can_be_reused():
                return idle.connection
            idle.connection.close()

    def _give_back(self, url: SplitResult, connection: RangeConnection) -> None:
        if connection.can_be_reused():
            with self._lock:
                if len(self._idle) < IDLE_CONNECTIONS:
                    self._idle.append(_IdleConnection(self._clock(), (url.scheme, url.netloc), connection))
                    return
        connection.close()


def _close_all(idle: deque[_IdleConnection]) -> None:
    while idle:
        idle.pop().connection.close()


def _unreachable(failure: Rejection | str, url: SplitResult, operation: str, root: str) -> StoreUnreachableError:
    """Return the error for the last of all attempts. The query of the URL, which holds the signature, is in none."""
    place = f"{url.scheme}://{url.netloc}{url.path}"
    if isinstance(failure, str):
        return no_answer_error(failure, place, operation, root)
    return response_error(failure.status, failure.phrase, failure.body, place, operation, root)


def _tls_context(options: DirectReadOptions) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not options.verifies:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    context.load_default_certs()
    if options.ca_pem:
        try:
            context.load_verify_locations(cadata=options.ca_pem)
        except (ssl.SSLError, ValueError):
            raise ConfigError("storage.options.root_certificate: holds no certificate in PEM format") from None
    return context
