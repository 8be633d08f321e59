"""A Kerberos context and the acceptor of a broker without a KDC: as strict as Java's, with an HMAC for the protection of messages.

Its tokens have nothing of Kerberos; who may say what in which order has (RFC 4752, GssKrb5Server of the JDK).
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import NamedTuple

MUTUAL_AUTHENTICATION = 2
_KEY = b"session key"


class RefusedError(Exception):
    """The acceptor ends the exchange."""


class Unwrapped(NamedTuple):
    message: bytes


def protect(message: bytes) -> bytes:
    return hmac.digest(_KEY, message, hashlib.sha256) + message


def _open(message: bytes) -> bytes:
    if not hmac.compare_digest(message[:32], hmac.digest(_KEY, message[32:], hashlib.sha256)):
        raise RefusedError("a message was changed")
    return message[32:]


class FakeContext:
    """The client's context, which is complete once it has seen the acceptor's token."""

    def __init__(self, *, flags: int = MUTUAL_AUTHENTICATION) -> None:
        self.complete = False
        self.actual_flags = flags

    def step(self, token: bytes, /) -> bytes | None:
        if token != b"AP-REP":
            raise RefusedError("a defective token")
        self.complete = True
        return None

    def wrap(self, message: bytes, encrypt: bool, /) -> Unwrapped:
        if encrypt:
            raise RefusedError("the layer is not negotiated yet: nothing is encrypted")
        return Unwrapped(protect(message))

    def unwrap(self, message: bytes, /) -> Unwrapped:
        return Unwrapped(_open(message))


@dataclass
class FakeAcceptor:
    """`offer`: bit mask of security layers and the size of its buffer. `principal`: of the client."""

    offer: bytes = bytes([1, 0, 0, 0])
    principal: str = "mirror@REALM.TEST"
    is_complete: bool = False
    _round: int = 0

    def answer(self, message: bytes) -> bytes:
        """Return the next message. Raises RefusedError."""
        self._round += 1
        if self._round == 1:
            if message != b"AP-REQ":
                raise RefusedError("the exchange begins with AP-REQ")
            return b"AP-REP"
        if self._round == 2:
            if message:
                raise RefusedError("nothing is to be said between AP-REP and the offer of layers")
            return protect(self.offer)
        if self._round > 3:
            raise RefusedError("the exchange is over")
        self._take_choice(_open(message))
        self.is_complete = True
        return b""

    def _take_choice(self, choice: bytes) -> None:
        if len(choice) < 4:
            raise RefusedError("the choice of a layer has four bytes")
        if choice[0] not in (1, 2, 4) or not choice[0] & self.offer[0]:
            raise RefusedError("exactly one of the offered layers is to be chosen")
        if choice[0] == 1 and choice[1:4] != bytes(3):
            raise RefusedError("without a layer there is no buffer")
        if choice[4:] not in (b"", self.principal.encode()):
            raise RefusedError("a principal can only act as itself")
