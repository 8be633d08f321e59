"""Everywhere: connections to brokers, opened as the client's properties say: TCP, TLS, versions, SASL."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable

from shallow_mirror.broker.auth import listener_probe
from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.auth.oauth import TokenSource, token_source
from shallow_mirror.broker.auth.sasl import authenticate
from shallow_mirror.broker.auth.tls_settings import TlsSettings
from shallow_mirror.broker.net.authenticated_connection import AuthenticatedConnection
from shallow_mirror.broker.net.connection import Connection
from shallow_mirror.broker.net.path_log import PathLog
from shallow_mirror.broker.net.requests import check_versions
from shallow_mirror.broker.net.tls_transport import TlsTransport
from shallow_mirror.broker.net.transport import Transport
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, RetriableError

REREAD_AFTER_S = (0.1, 0.4)
"""Pauses before files of TLS that do not fit together are read again: they may be replaced at this moment."""


class ConnectionOpener:
    """Opens connections of one client in one process.

    Files and references are read again for every connection: secrets may rotate.
    """

    def __init__(
        self,
        config: ClientConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._config = config
        self._clock = clock
        self._sleep = sleep
        self._tls: tuple[TlsSettings, ssl.SSLContext] | None = None
        self._tokens: TokenSource | None = token_source(config) if config.sasl_mechanism == "OAUTHBEARER" else None

    def open(self, address: tuple[str, int], deadline: Deadline, path: PathLog | None = None) -> Connection:
        """Connect and authenticate; note waiting times in `path`. Raises RetriableError if the broker is unreachable.

        Raises ConfigError if one side does not accept the other, or the listener has another security protocol.
        """
        if self._config.uses_tls:
            transport: Transport = TlsTransport(*address, self._context(), deadline)
        else:
            transport = Transport(*address, deadline)
        try:
            return self._handshake(transport, address, deadline, path)
        except RetriableError as error:
            transport.close()
            explained = self._explain_hangup(error, address)
            if explained is not None:
                raise explained from error
            raise
        except BaseException:
            transport.close()
            raise

    def _context(self) -> ssl.SSLContext:
        for pause_s in REREAD_AFTER_S:
            try:
                return self._read_context()
            except ConfigError:
                # Certificate and key are two files: between their replacements they do not fit.
                self._sleep(pause_s)
        return self._read_context()

    def _read_context(self) -> ssl.SSLContext:
        settings = TlsSettings.of(self._config)
        if self._tls is None or self._tls[0] != settings:
            self._tls = settings, settings.context()
        return self._tls[1]

    def _handshake(self, transport: Transport, address: tuple[str, int], deadline: Deadline, path: PathLog | None) -> Connection:
        config = self._config
        if isinstance(transport, TlsTransport):
            transport.handshake(deadline)
        if config.uses_sasl:
            connection = AuthenticatedConnection(
                transport,
                config.client_id,
                config.max_frame_bytes,
                authenticate=lambda connection, attempt_deadline: authenticate(
                    connection, config, self._tokens, attempt_deadline
                ),
                clock=self._clock,
            )
            connection.watch(path)
            check_versions(connection, deadline)
            connection.authenticate(deadline)
            return connection
        plain = Connection(transport, config.client_id, config.max_frame_bytes)
        plain.watch(path)
        check_versions(plain, deadline)
        plain.explain_next(lambda error: self._explain_hangup(error, address))
        return plain

    def _explain_hangup(self, error: RetriableError, address: tuple[str, int]) -> ConfigError | None:
        """Return why a listener closed the connection; None if the broker may have stopped."""
        has_hung_up = error.error_name in ("NETWORK_EXCEPTION", "PROTOCOL") and not isinstance(error.__cause__, TimeoutError)
        # A listener with another security protocol closes the connection without an answer, as a broker that stops does.
        return listener_probe.problem(self._config, address, self._clock) if has_hung_up else None
