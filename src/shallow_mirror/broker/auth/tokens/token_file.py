"""Everywhere: bearer tokens and assertions in files that another process renews, as Kubernetes does with service accounts."""

from __future__ import annotations

import time
import urllib.parse
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

from shallow_mirror.broker.auth.oauth_properties import URL
from shallow_mirror.broker.auth.tokens.token import Token, claims_of, is_sendable
from shallow_mirror.errors import ConfigError

OPAQUE_LIVES_FOR_S = 60.0
"""Life of a token that names no expiry. Each connection reads the file again."""

_MAX_BYTES = 1 << 20


def token_of_file(url: str) -> Token:
    """Return the token of a `file:` URL, as it is now. Raises ConfigError."""
    parts = urllib.parse.urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ConfigError(f"{URL}: {url} is not the URL of a file on this machine: write file:///PATH")
    return Token(*read_token(URL, Path(urllib.request.url2pathname(parts.path))))


def read_token(setting: str, path: Path) -> tuple[str, float]:
    """Return a token of a file, and its expiry in seconds since the epoch. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_BYTES)
    except OSError as error:
        raise ConfigError(f"{setting}: cannot read {path}: {error.strerror}") from None
    value = raw.decode("latin-1").strip()
    if not is_sendable(value):
        found = "is empty" if not value else "holds more than one token in ASCII"
        raise ConfigError(f"{setting}: {path} {found}: let it contain the token only")
    now = time.time()
    try:
        expires_at_s = float(claims_of(value)["exp"])
    except (ValueError, KeyError, TypeError):
        return value, now + OPAQUE_LIVES_FOR_S
    if expires_at_s <= now:
        ended = datetime.fromtimestamp(expires_at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        raise ConfigError(
            f"{setting}: the token in {path} expired at {ended}: renew it (Kubernetes renews projected tokens; copies are not "
            "renewed), or correct the clock of this machine"
        )
    return value, expires_at_s
