"""Everywhere: key stores and trust stores in the format PKCS#12, as PEM text."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shallow_mirror.errors import ConfigError

_JKS = (bytes.fromhex("feedfeed"), bytes.fromhex("cececece"))


@dataclass(frozen=True, slots=True)
class StoredIdentity:
    """A certificate with its chain, and the private key. PEM."""

    certificates: str
    key: str = field(repr=False)


def read_identity(store: str, path: str, password: str) -> StoredIdentity:
    """Return certificate and private key. `store`: ssl.keystore. Raises ConfigError."""
    contents = _load(store, path, password)
    if contents.key is None or contents.cert is None:
        raise ConfigError(
            f"{store}.location: {path} holds no private key with its certificate: use the key store of the client (a trust "
            "store belongs to ssl.truststore.location)"
        )
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = contents.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    chain = [contents.cert, *contents.additional_certs]
    return StoredIdentity("".join(_pem(entry.certificate) for entry in chain), key)


def read_certificates(store: str, path: str, password: str) -> str:
    """Return all certificates of a trust store. Raises ConfigError."""
    contents = _load(store, path, password)
    entries = [*([contents.cert] if contents.cert else []), *contents.additional_certs]
    if not entries:
        raise ConfigError(f"{store}.location: {path} holds no certificate: use the trust store with the CA of the brokers")
    return "".join(_pem(entry.certificate) for entry in entries)


def _pem(certificate: Any) -> str:
    from cryptography.hazmat.primitives.serialization import Encoding

    return str(certificate.public_bytes(Encoding.PEM).decode())


def _load(store: str, path: str, password: str) -> Any:
    """Return cryptography's PKCS12KeyAndCertificates."""
    setting = f"{store}.location"
    try:
        raw = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{setting}: cannot read {path}: {error.strerror}") from None
    if raw.startswith(_JKS):
        converted = Path(path).with_suffix(".p12")
        raise ConfigError(
            f"{setting}: {path} is a Java key store (JKS): convert it to PKCS#12: keytool -importkeystore -srckeystore {path} "
            f"-destkeystore {converted} -deststoretype PKCS12"
        )
    if raw.lstrip().startswith(b"-----BEGIN"):
        names = "ssl.certificate.location and ssl.key.location" if store == "ssl.keystore" else "ssl.ca.location"
        raise ConfigError(f"{setting}: {path} is PEM, not PKCS#12: set {names} instead")
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        raise ConfigError(
            f"{setting}: PKCS#12 needs the package cryptography on driver and executors: pip install 'shallow-mirror[keystores]'"
        ) from None
    try:
        return pkcs12.load_pkcs12(raw, password.encode() or None)
    except UnsupportedAlgorithm:
        raise ConfigError(
            f"{setting}: {path} is encrypted by an algorithm that is out of use: convert it to PEM: openssl pkcs12 -legacy -in "
            f"{path} -out {Path(path).with_suffix('.pem')}"
        ) from None
    except ValueError:
        # OpenSSL does not tell a wrong password from damage.
        if raw[:1] != b"\x30":
            raise ConfigError(f"{setting}: {path} is not PKCS#12") from None
        problem = f"{store}.password: does not open {path}" if password else f"{store}.password: is missing for {path}"
        raise ConfigError(f"{problem} (or the file is damaged)") from None
