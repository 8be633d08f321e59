"""Everywhere: TLS over a transport, which takes from the socket what has come at once, not one TLS record after the other.

Python's SSLSocket takes two system calls for every record, and a record may be as small as its sender likes: S3 servers send 16
KiB or 4 KiB. Here the socket is read in pieces of RECEIVE_BYTES, and OpenSSL takes its records out of memory.
"""

from __future__ import annotations

import ssl

from shallow_mirror.broker.net import Transport
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError

RECEIVE_BYTES = 256 << 10
"""Taken from the socket at once. A connection holds at most twice this: encrypted bytes, and OpenSSL's copy of them."""


class TlsStream:
    """A byte stream within TLS over a connected transport. Raises RetriableError, and ssl.SSLError for violations of TLS."""

    def __init__(self, transport: Transport, context: ssl.SSLContext, host: str, deadline: Deadline) -> None:
        """Open TLS. Raises ssl.SSLCertVerificationError for a certificate that is not accepted here."""
        self._transport = transport
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=host)
        self._received = memoryview(bytearray(RECEIVE_BYTES))
        while not self._has_shaken_hands(deadline):
            self._receive(1, deadline)

    def _has_shaken_hands(self, deadline: Deadline) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self._send_outgoing(deadline)  # also the alert that says why this side gives up
        return True

    def send(self, data: bytes, deadline: Deadline) -> None:
        self._tls.write(data)
        self._send_outgoing(deadline)

    def recv_some_into(self, view: memoryview, deadline: Deadline, expected: int = 1) -> int:
        """Receive at least one byte, and all others that are available; return how many. `expected`: how many bytes will come."""
        received = 0
        while received < len(view):
            try:
                # With a buffer the answer is how many bytes were read into it.
                size: int = self._tls.read(len(view) - received, view[received:])  # type: ignore[assignment]
            except ssl.SSLWantReadError:
                if received:
                    break
                self._receive(expected, deadline)
                continue
            if not size:
                break
            received += size
        if not received:
            raise RetriableError("NETWORK_EXCEPTION", f"{self._transport.peer} closed the connection")
        return received

    def _receive(self, expected: int, deadline: Deadline) -> None:
        """Take available bytes from the socket, at least one. OpenSSL may have a part of the expected bytes already."""
        size = self._transport.recv_some_into(self._received, deadline, max(1, expected - self._incoming.pending))
        self._incoming.write(self._received[:size])
        if self._outgoing.pending:
            self._send_outgoing(deadline)

    def _send_outgoing(self, deadline: Deadline) -> None:
        records = self._outgoing.read()
        if records:
            self._transport.send_parts([records], deadline)
