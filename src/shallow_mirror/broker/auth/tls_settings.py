"""Everywhere: the `ssl.*` properties as a context of Python's ssl, made again when files or references change."""

from __future__ import annotations

import contextlib
import os
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from shallow_mirror.broker.auth import key_stores
from shallow_mirror.broker.auth.client_config import ClientConfig, pem_text
from shallow_mirror.errors import ConfigError

_KEY_STORE, _TRUST_STORE = "ssl.keystore", "ssl.truststore"


@dataclass(frozen=True, slots=True)
class _Pem:
    """PEM text. `origin`: the property it came from, and the file if it is one."""

    origin: str
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Resolved settings, with the private key. Equal as long as nothing changed. Never pickled, never shown."""

    ca: _Pem | None
    certificate: _Pem | None = None
    key: _Pem | None = None
    key_password: str = field(default="", repr=False)
    verifies: bool = True
    checks_host_name: bool = True

    @classmethod
    def of(cls, config: ClientConfig) -> TlsSettings:
        """Read the files. Raises ConfigError with every problem."""
        problems: list[str] = []
        pems: dict[str, _Pem | None] = {}
        for part in ("ca", "certificate", "key"):
            try:
                pems[part] = _read_pem(config, f"ssl.{part}")
            except ConfigError as error:
                problems += error.problems
        try:
            pems |= _read_stores(config)
        except ConfigError as error:
            problems += error.problems
        if problems:
            raise ConfigError(problems)
        return cls(
            **pems,
            key_password=config.value("ssl.key.password"),
            verifies=config.value("enable.ssl.certificate.verification") != "false",
            checks_host_name=config.value("ssl.endpoint.identification.algorithm") != "none",
        )

    def context(self) -> ssl.SSLContext:
        """Return a context. Raises ConfigError for files that are not PEM, and if key and certificate do not match."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.check_hostname = self.verifies and self.checks_host_name
        context.verify_mode = ssl.CERT_REQUIRED if self.verifies else ssl.CERT_NONE
        trust(context, self.ca)
        if self.certificate is not None and self.key is not None:
            _identify(context, self.certificate, self.key, self.key_password)
        return context


def ca_context(config: ClientConfig, prefix: str) -> ssl.SSLContext:
    """Return a context for a token endpoint: with `<prefix>.ca.location` or `<prefix>.ca.pem`, else the system's CAs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    trust(context, _read_pem(config, f"{prefix}.ca"))
    return context


def ca_file_context(setting: str, path: str) -> ssl.SSLContext:
    """Return a context for an HTTPS server: with the CA of a file, which `setting` names, else with the system's CAs."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    trust(context, _read_file(setting, path) if path else None)
    return context


def trust(context: ssl.SSLContext, ca: _Pem | None) -> None:
    """Trust a CA. None: the certificate authorities of the system."""
    if ca is None:
        context.load_default_certs()
        return
    try:
        context.load_verify_locations(cadata=ca.text)
    except (ssl.SSLError, ValueError):
        raise ConfigError(f"{ca.origin}: holds no certificate in PEM format (-----BEGIN CERTIFICATE-----)") from None


def _read_pem(config: ClientConfig, what: str) -> _Pem | None:
    location, pem = config.value(f"{what}.location"), config.value(f"{what}.pem")
    if pem:
        return _Pem(f"{what}.pem", pem_text(pem))
    return _read_file(f"{what}.location", location) if location else None


def _read_file(setting: str, location: str) -> _Pem:
    try:
        return _Pem(f"{setting}: {location}", Path(location).read_text(encoding="ascii"))
    except OSError as error:
        raise ConfigError(f"{setting}: cannot read {location}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(
            f"{setting}: {location} is not PEM, which is text (convert by `openssl x509 -inform der` or `openssl pkcs12`)"
        ) from None


def trust_store_pem(config: ClientConfig) -> str:
    """Return the certificates of `ssl.truststore.location` as PEM; empty without it. Raises ConfigError."""
    path = config.value(f"{_TRUST_STORE}.location")
    return key_stores.read_certificates(_TRUST_STORE, path, config.value(f"{_TRUST_STORE}.password")) if path else ""


def _read_stores(config: ClientConfig) -> dict[str, _Pem | None]:
    pems: dict[str, _Pem | None] = {}
    trusted = trust_store_pem(config)
    if trusted:
        pems["ca"] = _Pem(f"{_TRUST_STORE}.location: {config.value(f'{_TRUST_STORE}.location')}", trusted)
    path = config.value(f"{_KEY_STORE}.location")
    if path:
        identity = key_stores.read_identity(_KEY_STORE, path, config.value(f"{_KEY_STORE}.password"))
        origin = f"{_KEY_STORE}.location: {path}"
        pems |= {"certificate": _Pem(origin, identity.certificates), "key": _Pem(origin, identity.key)}
    return pems


class _PasswordRequiredError(Exception):
    """The private key is encrypted. Without it OpenSSL would ask for the password on the terminal."""


def _identify(context: ssl.SSLContext, certificate: _Pem, key: _Pem, password: str) -> None:
    is_password_requested = False

    def answer() -> bytes:
        nonlocal is_password_requested
        is_password_requested = True
        if not password:
            raise _PasswordRequiredError
        return password.encode()

    if "-----BEGIN CERTIFICATE-----" not in certificate.text:
        raise ConfigError(f"{certificate.origin}: holds no certificate in PEM format (-----BEGIN CERTIFICATE-----)")
    if "PRIVATE KEY-----" not in key.text:
        raise ConfigError(f"{key.origin}: holds no private key in PEM format (-----BEGIN PRIVATE KEY-----)")
    try:
        with _as_file(certificate.text) as certificate_path, _as_file(key.text) as key_path:
            context.load_cert_chain(certificate_path, key_path, answer)
    except _PasswordRequiredError:
        raise ConfigError(f"{key.origin}: the private key is encrypted: set ssl.key.password") from None
    except (ssl.SSLError, ValueError) as error:
        if isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"{key.origin}: is not the private key of the certificate in {certificate.origin}") from None
        if is_password_requested:
            raise ConfigError("ssl.key.password: does not open the private key") from None
        raise ConfigError(f"{key.origin}: or the certificate in {certificate.origin}, cannot be read: damaged PEM") from None


@contextlib.contextmanager
def _as_file(text: str) -> Iterator[str]:
    """Yield a path to the text, because OpenSSL reads private keys by path only: in memory (Linux), else a private file."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("pem"), "w", encoding="ascii") as file:
            file.write(text)
            file.flush()
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        with tempfile.NamedTemporaryFile("w", encoding="ascii", prefix="shallow-mirror-") as named:
            named.write(text)
            named.flush()
            yield named.name
