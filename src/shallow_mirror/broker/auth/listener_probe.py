"""Everywhere: which security protocol a listener has that closed the connection, probed without credentials."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.auth.sasl import ILLEGAL_SASL_STATE
from shallow_mirror.broker.net.connection import Connection
from shallow_mirror.broker.net.requests import call
from shallow_mirror.broker.net.tls_transport import TlsTransport
from shallow_mirror.broker.net.transport import Transport
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, RetriableError

PATIENCE_MS = 2_000
"""For one probe; there are two at most."""


@dataclass(frozen=True, slots=True)
class ListenerProtocol:
    """The security protocol of a listener. `asks_for_sasl` None: unknown, because it asks for a client certificate first."""

    is_tls: bool
    asks_for_sasl: bool | None


def problem(config: ClientConfig, address: tuple[str, int], clock: Callable[[], float]) -> ConfigError | None:
    """Return the error of another protocol; None if the listener has the one of the properties, or does not answer."""
    for is_tls in (not config.uses_tls, config.uses_tls):
        listener = _probe_listener(config.client_id, address, Deadline.after_ms(PATIENCE_MS, clock), is_tls=is_tls)
        if listener is not None:
            return _difference(config, listener, f"{address[0]}:{address[1]}")
    return None


def _difference(config: ClientConfig, listener: ListenerProtocol, peer: str) -> ConfigError | None:
    wants_sasl = config.uses_sasl if listener.asks_for_sasl is None else listener.asks_for_sasl
    protocol = ("sasl_" if wants_sasl else "") + ("ssl" if listener.is_tls else "plaintext")
    if protocol == config.protocol:
        return None
    spoken = {
        "plaintext": "neither TLS nor SASL",
        "ssl": "TLS without SASL",
        "sasl_plaintext": "SASL without TLS",
        "sasl_ssl": "TLS and SASL",
    }[protocol]
    if listener.asks_for_sasl is None:
        spoken = "TLS"
    return ConfigError(
        f"broker {peer} speaks {spoken} on this port, not {config.protocol}: set security.protocol: {protocol}, or "
        "bootstrap.servers to another listener"
    )


def _probe_listener(client_id: str, address: tuple[str, int], deadline: Deadline, *, is_tls: bool) -> ListenerProtocol | None:
    """Return a listener's answer to SaslHandshake with or without TLS; None if it does not answer."""
    try:
        transport = TlsTransport(*address, _any_certificate(), deadline) if is_tls else Transport(*address, deadline)
    except RetriableError:
        return None
    connection = Connection(transport, client_id, 1 << 16)
    try:
        if isinstance(transport, TlsTransport):
            transport.handshake(deadline)
        answer = call(connection, "SaslHandshake", deadline, mechanism="PLAIN")
        return ListenerProtocol(is_tls, answer.error_code != ILLEGAL_SASL_STATE)
    # A TLS alert: so it has TLS.
    except ConfigError:
        return ListenerProtocol(is_tls, None)
    except RetriableError:
        return None
    finally:
        connection.close()


def _any_certificate() -> ssl.SSLContext:
    """Return a context that verifies nothing: no credentials are sent on such a connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
