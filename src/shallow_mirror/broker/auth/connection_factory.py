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
from shallow_mirror.broker.net.requests import check_versions
from shallow_mirror.broker.net.tls_transport import TlsTransport
from shallow_mirror.broker.net.transport import Transport
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, RetriableError


class ConnectionOpener:
    """Of one client in one process. Files and references are read anew for every connection: secrets may rotate."""

    def __init__(self, config: ClientConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._config, self._clock = config, clock
        self._tls: tuple[TlsSettings, ssl.SSLContext] | None = None
        self._tokens: TokenSource | None = token_source(config) if config.sasl_mechanism == "OAUTHBEARER" else None

    def open(self, address: tuple[str, int], deadline: Deadline) -> Connection:
        """Raises RetriableError where the broker is away; ConfigError where it refuses us, we refuse it, or its listener speaks
        another security protocol."""
        transport = self._connected(address, deadline)
        try:
            return self._introduced(transport, address, deadline)
        except RetriableError as error:
            transport.close()
            explained = self._explained(error, address)
            if explained is not None:
                raise explained from error
            raise
        except BaseException:
            transport.close()
            raise

    def _connected(self, address: tuple[str, int], deadline: Deadline) -> Transport:
        if not self._config.uses_tls:
            return Transport(*address, deadline)
        return TlsTransport(*address, self._context(), deadline)

    def _context(self) -> ssl.SSLContext:
        settings = TlsSettings.of(self._config)
        if self._tls is None or self._tls[0] != settings:
            self._tls = settings, settings.context()
        return self._tls[1]

    def _introduced(self, transport: Transport, address: tuple[str, int], deadline: Deadline) -> Connection:
        config = self._config
        if isinstance(transport, TlsTransport):
            transport.handshake(deadline)
        if config.uses_sasl:
            connection = AuthenticatedConnection(
                transport,
                config.client_id,
                config.max_frame_bytes,
                authenticate=lambda one, until: authenticate(one, config, self._tokens, until),
                clock=self._clock,
            )
            check_versions(connection, deadline)
            connection.authenticate(deadline)
            return connection
        plain = Connection(transport, config.client_id, config.max_frame_bytes)
        check_versions(plain, deadline)
        plain.explain_next(lambda error: self._explained(error, address))
        return plain

    def _explained(self, error: RetriableError, address: tuple[str, int]) -> ConfigError | None:
        """A listener of another security protocol hangs up without a word, as does a broker that goes away (None)."""
        has_hung_up = error.error_name in ("NETWORK_EXCEPTION", "PROTOCOL") and not isinstance(error.__cause__, TimeoutError)
        return listener_probe.problem(self._config, address, self._clock) if has_hung_up else None
