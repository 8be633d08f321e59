"""Driver, for the cli: signatures of files, detached, with Ed25519 (RFC 8032). `openssl pkeyutl` checks them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from shallow_mirror.errors import ConfigError

_MAKE = "openssl genpkey -algorithm ed25519 -out key.pem"


class Signer:
    """A private key. `fingerprint`: SHA-256 of the public key in DER, hexadecimal."""

    def __init__(self, key: Any) -> None:
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        self._key = key
        public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        self.fingerprint = hashlib.sha256(public).hexdigest()

    @classmethod
    def load(cls, path: Path) -> Signer:
        """Read a private key in PEM. Raises ConfigError."""
        try:
            from cryptography.exceptions import UnsupportedAlgorithm
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
            from cryptography.hazmat.primitives.serialization import load_pem_private_key
        except ImportError as error:
            raise ConfigError("--key needs the extra signatures: pip install 'shallow-mirror[signatures]'") from error
        try:
            key = load_pem_private_key(path.read_bytes(), None)
        except OSError as error:
            raise ConfigError(f"--key: cannot read {path}: {error.strerror}") from error
        except TypeError as error:  # cryptography's answer to a key that needs a password
            raise ConfigError(f"--key: {path} is encrypted: give a key without a password, readable by its owner only") from error
        except (ValueError, UnsupportedAlgorithm) as error:
            raise ConfigError(f"--key: {path} is no private key in PEM: make one: {_MAKE}") from error
        if not isinstance(key, Ed25519PrivateKey):
            raise ConfigError(f"--key: {path} is no Ed25519 key: make one: {_MAKE}")
        return cls(key)

    def sign(self, content: bytes) -> bytes:
        """Return the signature, 64 bytes."""
        return bytes(self._key.sign(content))
