"""Everywhere: bearer tokens of the clouds' own libraries, called in a thread because a library may wait longer than we do."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, TimeoutError as FutureTimeoutError

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.auth.oauth_properties import METHOD
from shallow_mirror.broker.auth.tokens import azure, databricks, google, msk
from shallow_mirror.broker.auth.tokens.credentials import CredentialsMissingError
from shallow_mirror.broker.auth.tokens.token import Token
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, MirrorError, RetriableError

PROVIDER_TIMEOUT_S = 10.0
"""For one token, or until the deadline of the connection if that is earlier."""

_FETCHES: dict[str, Callable[[ClientConfig], Token]] = {
    "aws_msk_iam": msk.token_of_msk,
    "azure": azure.token_of_azure,
    "google": google.token_of_google,
    "databricks": databricks.token_of_databricks,
}


_LIBRARIES = ("azure", "boto3", "botocore", "google", "msal", "requests", "urllib3")
"""Names of their loggers. Below INFO they log requests and responses, with credentials in them."""


def provider_of(config: ClientConfig) -> BoundedProvider:
    """Return the provider of `sasl.oauthbearer.method`."""
    method = config.value(METHOD).lower()
    for name in _LIBRARIES:
        logger = logging.getLogger(name)
        if logger.getEffectiveLevel() < logging.INFO:
            logger.setLevel(logging.INFO)
    return BoundedProvider(method, lambda: _FETCHES[method](config))


class BoundedProvider:
    """A token source with a time limit.

    At most one call runs at a time, in a thread of its own. A call that takes longer than the limit is not repeated: later
    attempts wait for its result, so that a provider that hangs gets one request, and this process one thread.
    """

    def __init__(self, method: str, fetch: Callable[[], Token], *, timeout_s: float = PROVIDER_TIMEOUT_S) -> None:
        self._method = method
        self._fetch = fetch
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._running: Future[Token] | None = None
        self._has_succeeded = False

    def token(self, deadline: Deadline) -> Token:
        """Return a token. Raises ConfigError where credentials are refused or missing, RetriableError."""
        attempt = deadline.sooner(self._timeout_s * 1000)
        while True:
            call = self._call()
            try:
                token = call.result(attempt.remaining_ms() / 1000)
            except FutureTimeoutError:
                if not call.done():
                    raise RetriableError(
                        "TOKEN_PROVIDER_UNREACHABLE",
                        f"{METHOD}: {self._method} returned no token within {self._timeout_s:g} s",
                    ) from None
                continue
            except CredentialsMissingError as error:
                self._forget(call)
                # The metadata service of a machine may be unavailable for a moment: a mirror that had a token waits for it.
                if self._has_succeeded:
                    raise RetriableError("TOKEN_PROVIDER_UNREACHABLE", str(error)) from None
                raise ConfigError(error.problems) from None
            except MirrorError:
                self._forget(call)
                raise
            self._forget(call)
            self._has_succeeded = True
            # The result of a call that took longer than an earlier attempt may have ended since.
            if token.expires_at_s > time.time():
                return token
            attempt.require(f"a token of {METHOD}: {self._method} that has not expired")

    def _call(self) -> Future[Token]:
        with self._lock:
            if self._running is None:
                self._running = Future()
                threading.Thread(target=self._run, args=(self._running,), name=f"token-{self._method}", daemon=True).start()
            return self._running

    def _run(self, call: Future[Token]) -> None:
        try:
            call.set_result(self._fetch())
        except MirrorError as error:
            call.set_exception(error)
        except OSError as error:
            call.set_exception(RetriableError("TOKEN_PROVIDER_UNREACHABLE", f"{METHOD}: {self._method}: {type(error).__name__}"))
        except BaseException as error:  # noqa: BLE001 - of a library; its text may hold a secret. A call must end in any case.
            call.set_exception(
                ConfigError(f"{METHOD}: {self._method}: its library raised {type(error).__name__}: check version and credentials")
            )

    def _forget(self, call: Future[Token]) -> None:
        with self._lock:
            if self._running is call:
                self._running = None
