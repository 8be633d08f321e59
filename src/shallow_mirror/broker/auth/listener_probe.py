"""Everywhere: what a listener speaks that hung up on us: asked on connections of their own, without credentials."""

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
"""Of one question; there are two at most."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """`asks_for_sasl` None: it did not say, because it asks for a client certificate first."""

    is_tls: bool
    asks_for_sasl: bool | None


def problem(config: ClientConfig, address: tuple[str, int], clock: Callable[[], float]) -> ConfigError | None:
    """None where the listener speaks what the properties say, or nothing at all."""
    for is_tls in (not config.uses_tls, config.uses_tls):
        spoken = _spoken(config.client_id, address, Deadline.after_ms(PATIENCE_MS, clock), is_tls=is_tls)
        if spoken is not None:
            return _difference(config, spoken, f"{address[0]}:{address[1]}")
    return None


def _difference(config: ClientConfig, spoken: Spoken, peer: str) -> ConfigError | None:
    wants_sasl = config.uses_sasl if spoken.asks_for_sasl is None else spoken.asks_for_sasl
    protocol = ("sasl_" if wants_sasl else "") + ("ssl" if spoken.is_tls else "plaintext")
    if protocol == config.protocol:
        return None
    said = {
        "plaintext": "neither TLS nor SASL",
        "ssl": "TLS without SASL",
        "sasl_plaintext": "SASL without TLS",
        "sasl_ssl": "TLS and SASL",
    }[protocol]
    if spoken.asks_for_sasl is None:
        said = "TLS"
    return ConfigError(
        f"broker {peer} speaks {said} at this port, not {config.protocol}: set security.protocol: {protocol}, or "
        "bootstrap.servers to another listener"
    )


def _spoken(client_id: str, address: tuple[str, int], deadline: Deadline, *, is_tls: bool) -> Spoken | None:
    """None where nobody answers that way."""
    try:
        transport = TlsTransport(*address, _any_certificate(), deadline) if is_tls else Transport(*address, deadline)
    except RetriableError:
        return None
    connection = Connection(transport, client_id, 1 << 16)
    try:
        if isinstance(transport, TlsTransport):
            transport.handshake(deadline)
        answer = call(connection, "SaslHandshake", deadline, mechanism="PLAIN")
        return Spoken(is_tls, answer.error_code != ILLEGAL_SASL_STATE)
    except ConfigError:  # an alert, which only TLS has
        return Spoken(is_tls, None)
    except RetriableError:
        return None
    finally:
        connection.close()


def _any_certificate() -> ssl.SSLContext:
    """Nothing is said on such a connection that anybody must not hear."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
