"""Everywhere: JWT assertions that identify a client to a token endpoint (RFC 7523), signed here or read from a file."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shallow_mirror.broker.auth.client_config import ClientConfig, pem_text
from shallow_mirror.broker.auth.oauth_properties import ALGORITHMS, ASSERTION_FILE, KEY_FILE, KEY_PEM, PREFIX
from shallow_mirror.broker.auth.tokens.token import url64
from shallow_mirror.broker.auth.tokens.token_file import read_token
from shallow_mirror.errors import ConfigError

_ASSERTION = PREFIX + "assertion."
_TEMPLATE = _ASSERTION + "jwt.template.file"
_PASSPHRASE = _ASSERTION + "private.key.passphrase"

# librdkafka's defaults.
_EXPIRES_AFTER_S = "300"
_VALID_BEFORE_S = "60"


def assertion_of(config: ClientConfig, defaults: Mapping[str, Any]) -> str:
    """Return an assertion. Keys and files are read now. Raises ConfigError.

    `defaults`: claims that neither the template nor a property sets.
    """
    path = config.value(ASSERTION_FILE)
    if path:
        return read_token(ASSERTION_FILE, Path(path))[0]
    algorithm = config.value(_ASSERTION + "algorithm").upper() or ALGORITHMS[0]
    header, claims = _template(config.value(_TEMPLATE))
    header = {"typ": "JWT"} | header | {"alg": algorithm}
    claims = {**defaults, **claims, **_claims(config, int(time.time()))}
    signed = f"{_section(header)}.{_section(claims)}"
    return f"{signed}.{url64(_sign(config, algorithm, signed.encode()))}"


def _section(values: Mapping[str, Any]) -> str:
    return url64(json.dumps(values, separators=(",", ":")).encode())


def _claims(config: ClientConfig, now_s: int) -> dict[str, Any]:
    claims: dict[str, Any] = {
        "iat": now_s,
        "exp": now_s + int(config.value(_ASSERTION + "claim.exp.seconds") or _EXPIRES_AFTER_S),
        "nbf": now_s - int(config.value(_ASSERTION + "claim.nbf.seconds") or _VALID_BEFORE_S),
    }
    given = {name: config.value(f"{_ASSERTION}claim.{name}") for name in ("aud", "iss", "sub")}
    claims |= {name: value for name, value in given.items() if value}
    if config.value(_ASSERTION + "claim.jti.include") == "true":
        claims["jti"] = str(uuid.uuid4())
    return claims


def _template(path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return `header` and `payload` of a template; both empty without one."""
    if not path:
        return {}, {}
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        header, payload = document["header"], document["payload"]
        if not (isinstance(header, dict) and isinstance(payload, dict)):
            raise TypeError
    except OSError as error:
        raise ConfigError(f"{_TEMPLATE}: cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f'{_TEMPLATE}: {path} is not {{"header": {{...}}, "payload": {{...}}}} in JSON') from None
    return header, payload


def _sign(config: ClientConfig, algorithm: str, message: bytes) -> bytes:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils
    except ImportError:
        raise ConfigError(
            f"{_ASSERTION}private.key.*: signing needs the package cryptography: pip install 'shallow-mirror[oauth]'"
        ) from None
    origin, pem = _private_key(config)
    passphrase = config.value(_PASSPHRASE)
    try:
        key = serialization.load_pem_private_key(pem, passphrase.encode() or None)
    except TypeError:
        # Raised both for an encrypted key without a passphrase, and for a passphrase of a key that is not encrypted.
        remedy = "is not encrypted: remove" if passphrase else "is encrypted: set"
        raise ConfigError(f"{origin}: the private key {remedy} {_PASSPHRASE}") from None
    except (ValueError, UnsupportedAlgorithm):
        if passphrase and b"ENCRYPTED" in pem:
            raise ConfigError(f"{_PASSPHRASE}: does not open the private key in {origin}") from None
        raise ConfigError(f"{origin}: holds no private key in PEM format (-----BEGIN PRIVATE KEY-----)") from None
    if algorithm == "RS256" and isinstance(key, rsa.RSAPrivateKey):
        return key.sign(message, padding.PKCS1v15(), hashes.SHA256())
    if algorithm == "ES256" and isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
        r, s = utils.decode_dss_signature(key.sign(message, ec.ECDSA(hashes.SHA256())))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")
    needed = "an RSA key" if algorithm == "RS256" else "an EC key on the curve P-256"
    raise ConfigError(f"{origin}: {algorithm} needs {needed}: set {_ASSERTION}algorithm, or another key")


def _private_key(config: ClientConfig) -> tuple[str, bytes]:
    """Return the origin of the key, and its PEM."""
    pem = config.value(KEY_PEM)
    if pem:
        return KEY_PEM, pem_text(pem).encode()
    path = config.value(KEY_FILE)
    try:
        return f"{KEY_FILE}: {path}", Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{KEY_FILE}: cannot read {path}: {error.strerror}") from None
