"""Pure: the client's side of SCRAM (RFC 5802, RFC 7677), as Kafka's brokers speak it: no channel binding, no SASLprep.

kafka-python's module neither escapes user names nor bounds the iteration count from below, and does not parse a server's
error. Random nonces come in as arguments.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac

LEAST_ITERATIONS, MOST_ITERATIONS = 4096, 1_000_000
"""Fewer would let an impostor guess the password from the messages; Java's client refuses them, too."""

_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


class ScramError(ValueError):
    """The server does not prove that it knows the password. The message holds no secret."""


class ScramClient:
    """One exchange: `first`, then `final` with the server's first message, then `verify` with its final message."""

    def __init__(self, mechanism: str, username: str, password: str, nonce: str) -> None:
        self._hash = _HASHES[mechanism]
        self._password = password.encode()
        self._nonce = nonce
        escaped = username.replace("=", "=3D").replace(",", "=2C")
        self._first_bare = f"n={escaped},r={nonce}"
        self._server_signature = b""

    def first(self) -> bytes:
        return f"n,,{self._first_bare}".encode()

    def final(self, server_first: bytes) -> bytes:
        """Return the client's final message. Raises ScramError."""
        fields = _fields(server_first)
        nonce, salt, iterations = _parse_challenge(fields, self._nonce)
        salted = hashlib.pbkdf2_hmac(self._hash, self._password, salt, iterations)
        without_proof = f"c=biws,r={nonce}"
        auth_message = ",".join((self._first_bare, server_first.decode(), without_proof)).encode()
        client_key = self._hmac(salted, b"Client Key")
        signature = self._hmac(hashlib.new(self._hash, client_key).digest(), auth_message)
        self._server_signature = self._hmac(self._hmac(salted, b"Server Key"), auth_message)
        proof = bytes(key_byte ^ mask for key_byte, mask in zip(client_key, signature, strict=True))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, server_final: bytes) -> None:
        """Check the server's signature. Raises ScramError if it refused, or does not know the password itself."""
        fields = _fields(server_final)
        if "e" in fields:
            raise ScramError(f"the server refused: {fields['e']}")
        if not hmac.compare_digest(_decode_base64(fields, "v"), self._server_signature):
            raise ScramError("the server does not know the password: it is not the broker it claims to be")

    def _hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self._hash)


def _fields(message: bytes) -> dict[str, str]:
    try:
        return dict(attribute.split("=", 1) for attribute in message.decode().split(","))
    except ValueError:
        raise ScramError("the server's message is not one of SCRAM") from None


def _parse_challenge(fields: dict[str, str], own_nonce: str) -> tuple[str, bytes, int]:
    """Return nonce, salt and iteration count. Raises ScramError."""
    nonce, iterations = fields.get("r", ""), fields.get("i", "")
    if "m" in fields:
        raise ScramError("the server asks for an extension of SCRAM that is not known")
    if not nonce.startswith(own_nonce) or nonce == own_nonce:
        raise ScramError("the server's nonce does not continue the client's")
    if not (iterations.isascii() and iterations.isdigit() and len(iterations) < 10):
        raise ScramError("the server names no count of iterations")
    if not LEAST_ITERATIONS <= int(iterations) <= MOST_ITERATIONS:
        raise ScramError(f"the server asks for {iterations} iterations; {LEAST_ITERATIONS} to {MOST_ITERATIONS} are accepted")
    return nonce, _decode_base64(fields, "s"), int(iterations)


def _decode_base64(fields: dict[str, str], name: str) -> bytes:
    try:
        return base64.b64decode(fields[name], validate=True)
    except (KeyError, binascii.Error):
        raise ScramError(f"the server's message has no readable {name}=") from None
