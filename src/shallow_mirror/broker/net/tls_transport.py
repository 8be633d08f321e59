"""Everywhere: the byte stream of transport.py within TLS, and TLS's failures as sentences."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Sequence

from shallow_mirror.broker.net.transport import Part, Take, Transport
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, MirrorError, RetriableError

_RECORD_BYTES = 16_384
"""The most that one TLS record carries: smaller parts are joined up to that."""

_MOST_OF_A_RECORD = _RECORD_BYTES + 512
"""Header, padding and tag included: what of a record that is still incomplete TLS has already taken from the socket, at most."""


class TlsTransport(Transport):
    """A byte stream within TLS, connected when made; `handshake` has to come first.

    Raises ConfigError if one side does not accept the other, and RetriableError as its base.
    """

    def __init__(self, host: str, port: int, context: ssl.SSLContext, deadline: Deadline) -> None:
        super().__init__(host, port, deadline)
        self._tls = self._socket = context.wrap_socket(self._socket, server_hostname=host, do_handshake_on_connect=False)

    def handshake(self, deadline: Deadline) -> None:
        """Open TLS. Under TLS 1.3 the peer may refuse our certificate later, in its first response."""
        while True:
            try:
                return self._tls.do_handshake()
            except OSError as error:
                self._wait_or_raise(error, "opening TLS with", deadline)

    def send_parts(self, parts: Sequence[Part], deadline: Deadline, take: Take | None = None) -> None:
        for record in _joined(parts):
            left = record
            while len(left):
                try:
                    left = left[self._tls.send(left) :]
                except OSError as error:
                    self._wait_or_raise(error, "sending to", deadline, take=take)

    def _recv_some(self, view: memoryview, expected: int, deadline: Deadline) -> int:
        while True:
            try:
                received = self._tls.recv_into(view)
            except OSError as error:
                self._wait_or_raise(error, "receiving from", deadline, expected - _MOST_OF_A_RECORD)
                continue
            if not received:
                raise RetriableError("NETWORK_EXCEPTION", f"{self.peer} closed the connection")
            return received

    def recv_available_into(self, view: memoryview) -> int:
        try:
            received = self._tls.recv_into(view)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except OSError as error:
            raise tls_failure(error, self.peer, f"receiving from {self.peer}") from error
        if not received:
            raise RetriableError("NETWORK_EXCEPTION", f"{self.peer} closed the connection")
        return received

    def has_pending(self) -> bool:
        return self._tls.pending() > 0

    def _wait_or_raise(self, error: OSError, what: str, deadline: Deadline, expected: int = 1, take: Take | None = None) -> None:
        # To send, TLS may have to receive first, and the other way round.
        try:
            if isinstance(error, ssl.SSLWantReadError):
                return self._wait_to_receive(max(expected, 1), deadline)
            if isinstance(error, ssl.SSLWantWriteError):
                return self._wait_until(self._writable, deadline, take)
        except TimeoutError as late:
            error = late
        raise tls_failure(error, self.peer, f"{what} {self.peer}") from error


def _joined(parts: Sequence[Part]) -> Iterator[memoryview]:
    small = bytearray()
    for part in parts:
        if len(small) + len(part) <= _RECORD_BYTES:
            small += part
            continue
        if small:
            yield memoryview(small)
            small = bytearray()
        if len(part) <= _RECORD_BYTES // 2:
            small += part
        else:
            yield memoryview(part)
    if small:
        yield memoryview(small)


_UNKNOWN_CA = {18, 19, 20, 21}
_EXPIRED, _NOT_YET_VALID = 10, 9
_OTHER_NAME = {62, 64}
_REFUSED_CERTIFICATE = (
    "BAD_CERTIFICATE",
    "CERTIFICATE_UNKNOWN",
    "UNSUPPORTED_CERTIFICATE",
    "CERTIFICATE_REVOKED",
    "CERTIFICATE_EXPIRED",
    "UNKNOWN_CA",
    "ACCESS_DENIED",
    "DECRYPT_ERROR",
)
_NOTHING_IN_COMMON = ("HANDSHAKE_FAILURE", "PROTOCOL_VERSION", "INSUFFICIENT_SECURITY", "UNSUPPORTED_PROTOCOL")


def tls_failure(error: OSError, peer: str, what: str) -> MirrorError:
    """Return ConfigError for errors that a person can correct, else RetriableError. Pure."""
    reason = getattr(error, "reason", None) or ""
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConfigError(f"broker {peer}: {_verification_problem(error)}")
    if "CERTIFICATE_REQUIRED" in reason:
        return ConfigError(f"broker {peer} asks for a client certificate: set ssl.certificate.location and ssl.key.location")
    alert = reason.partition("ALERT_")[2]
    if alert in _REFUSED_CERTIFICATE:
        return ConfigError(
            f"broker {peer} rejected the client certificate, or asks for one (TLS alert {alert.lower()}): set "
            "ssl.certificate.location and ssl.key.location to one that is valid and signed by a CA that the broker trusts"
        )
    if alert in _NOTHING_IN_COMMON or reason in _NOTHING_IN_COMMON:
        return ConfigError(
            f"broker {peer} has no TLS version or cipher in common with this client ({reason.lower()}), or asks for a client "
            "certificate (ssl.certificate.location); TLS 1.2 and 1.3 are supported: check ssl.enabled.protocols of the broker"
        )
    return RetriableError("NETWORK_EXCEPTION", f"{what}: {error}")


def _verification_problem(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code == _EXPIRED:
        return "its certificate, or that of its CA, has expired: renew it on the broker"
    if error.verify_code == _NOT_YET_VALID:
        return "its certificate is not valid yet: check the clocks of this machine and of the broker"
    if error.verify_code in _OTHER_NAME:
        return (
            f"its certificate is for other hosts ({error.verify_message}): use a host name that the certificate contains, in "
            "bootstrap.servers and in advertised.listeners of the broker, or disable the check "
            "(ssl.endpoint.identification.algorithm: none)"
        )
    if error.verify_code in _UNKNOWN_CA:
        return (
            f"its certificate is signed by a CA that is not trusted here ({error.verify_message}): set ssl.ca.location (or "
            "ssl.ca.pem) to the certificate of that CA"
        )
    return f"its certificate cannot be verified: {error.verify_message}"
