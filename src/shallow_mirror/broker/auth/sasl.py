"""Everywhere: SASL on a connection: PLAIN, SCRAM, OAUTHBEARER and GSSAPI."""

from __future__ import annotations

import secrets
from collections.abc import Generator

from shallow_mirror.broker.auth import kerberos
from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.auth.oauth import TokenSource, refusal_remedy
from shallow_mirror.broker.auth.tokens.token import Token
from shallow_mirror.broker.net.connection import Connection
from shallow_mirror.broker.net.error_codes import error_name
from shallow_mirror.broker.net.requests import call
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import AuthenticationError, ConfigError, RetriableError
from shallow_mirror.wire.protocol import ScramClient, ScramError

UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE, SASL_AUTHENTICATION_FAILED = 33, 34, 58

_Conversation = Generator[bytes, bytes, None]
"""Yields messages to the broker and is sent its responses."""


def authenticate(connection: Connection, config: ClientConfig, tokens: TokenSource | None, deadline: Deadline) -> int:
    """Authenticate a connection, also again while it is in use. Return the session's lifetime in ms; 0: no limit (KIP-368).

    Credentials are resolved now. Raises AuthenticationError if one side refuses the other's, RetriableError.
    """
    mechanism, peer = config.sasl_mechanism, connection.transport.peer
    response = call(connection, "SaslHandshake", deadline, mechanism=mechanism)
    if response.error_code == UNSUPPORTED_SASL_MECHANISM:
        offered = ", ".join(sorted(response.mechanisms)) or "none"
        raise AuthenticationError(
            f"broker {peer} does not offer {mechanism} at this listener; it offers {offered}: set sasl.mechanism, or "
            "bootstrap.servers to another listener"
        )
    if response.error_code == ILLEGAL_SASL_STATE:
        raise AuthenticationError(
            f"broker {peer} uses no SASL at this listener: set security.protocol: {config.protocol.removeprefix('sasl_')}, "
            "or bootstrap.servers to another listener"
        )
    if response.error_code:
        raise RetriableError(error_name(response.error_code), f"opening SASL with {peer}")
    kept = None if tokens is None else tokens.kept()
    token = None if tokens is None else _token_of(tokens, deadline)
    exchange = _conversation(config, token, peer, deadline)
    message = next(exchange)
    while True:
        try:
            response = call(connection, "SaslAuthenticate", deadline, auth_bytes=message)
        except RetriableError as error:
            if mechanism != "GSSAPI" or error.error_name != "NETWORK_EXCEPTION":
                raise
            # Java's brokers do so if they have no key of the service, or a ticket is not valid yet or was seen before.
            hint = "during GSSAPI: if the broker runs, its keytab lacks the principal of this listener, or its clock differs"
            raise RetriableError(error.error_name, f"{error.detail} {hint}") from error.__cause__
        if response.error_code == SASL_AUTHENTICATION_FAILED:
            if tokens is not None and token is not None and token is kept:
                tokens.drop(token)
                # It may have been revoked, or the keys of its issuer replaced. A new one that is refused is an error.
                reason = f"broker {peer} refused {_who(config)}, which was requested before; a new one is requested"
                raise RetriableError(error_name(response.error_code), f"{reason}: {response.error_message or 'no reason given'}")
            raise AuthenticationError(
                f"broker {peer} refused {_who(config)}: {response.error_message or 'no reason given'}: {_remedy(config)}"
            )
        if response.error_code:
            raise RetriableError(error_name(response.error_code), f"authentication at {peer}: {response.error_message or ''}")
        try:
            message = exchange.send(response.auth_bytes)
        except StopIteration:
            return int(response.session_lifetime_ms)
        except ScramError as error:
            raise AuthenticationError(f"broker {peer}, {mechanism}: {error}") from None


def _token_of(tokens: TokenSource, deadline: Deadline) -> Token:
    try:
        return tokens.token(deadline)
    except ConfigError as error:
        # Of this kind, the caller names the cluster: several clusters may have the same source of tokens.
        raise AuthenticationError(error.problems) from error


def _conversation(config: ClientConfig, token: Token | None, peer: str, deadline: Deadline) -> _Conversation:
    mechanism = config.sasl_mechanism
    if mechanism == "GSSAPI":
        return kerberos.conversation(config, peer, deadline)
    if token is not None:
        return _bearing(token)
    username, password = config.value("sasl.username"), config.value("sasl.password")
    return _plain(username, password) if mechanism == "PLAIN" else _scram(mechanism, username, password)


def _plain(username: str, password: str) -> _Conversation:
    """Yield the message of PLAIN (RFC 4616)."""
    yield f"\0{username}\0{password}".encode()


def _scram(mechanism: str, username: str, password: str) -> _Conversation:
    client = ScramClient(mechanism, username, password, secrets.token_urlsafe(24))
    client.verify((yield client.final((yield client.first()))))


def _bearing(token: Token) -> _Conversation:
    """Yield the messages of OAUTHBEARER (RFC 7628)."""
    extensions = "".join(f"\x01{name}={value}" for name, value in token.extensions.items())
    refused = yield f"n,,\x01auth=Bearer {token.value}{extensions}\x01\x01".encode()
    # A broker that refuses sends its reason in JSON, and waits for one more byte before it returns the error.
    if refused:
        yield b"\x01"


def _who(config: ClientConfig) -> str:
    mechanism = config.sasl_mechanism
    if mechanism == "GSSAPI":
        return f"{kerberos.principal_name(config)} (GSSAPI)"
    return "the token (OAUTHBEARER)" if mechanism == "OAUTHBEARER" else f"user {config.value('sasl.username')} ({mechanism})"


def _remedy(config: ClientConfig) -> str:
    if config.sasl_mechanism == "OAUTHBEARER":
        return refusal_remedy(config)
    if config.sasl_mechanism == "GSSAPI":
        return (
            "check that sasl.kerberos.service.name is that of the broker, its keytab has the current key of that principal, and "
            "all clocks agree (NTP); its log has the reason"
        )
    return "correct sasl.username and sasl.password"
