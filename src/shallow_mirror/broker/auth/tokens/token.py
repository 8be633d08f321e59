"""Everywhere: a bearer token, and its claims where it is a JWT. Pure."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PUBLIC_ERROR = re.compile(r"[a-z_]{1,40}")
"""The form of OAuth's error codes. Other text in a response may hold a secret, and is not shown."""


TOKEN_TIMEOUT_S = 10.0
"""Of a request to a token endpoint, and of a connection that waits for a token, unless its deadline is earlier."""


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token. `expires_at_s`: since the epoch."""

    value: str = field(repr=False)
    expires_at_s: float
    extensions: Mapping[str, str] = field(default_factory=dict, repr=False)


def extensions_of(text: str) -> dict[str, str]:
    """Parse `name=value,name=value`."""
    pairs = (pair.partition("=") for pair in text.split(",") if pair.strip())
    return {name.strip(): value.strip() for name, _, value in pairs}


def claims_of(token: str) -> dict[str, Any]:
    """Return the claims of a JWT, not verified. Raises ValueError where the token is none."""
    parts = token.split(".")
    if len(parts) != 3:
        raise ValueError
    claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    if not isinstance(claims, dict):
        raise ValueError
    return claims


def is_sendable(value: object) -> bool:
    """Return whether a value can be a bearer token (RFC 6750): visible ASCII characters."""
    return isinstance(value, str) and bool(value) and all("!" <= character <= "~" for character in value)


def url64(raw: bytes) -> str:
    """Return base64url without padding."""
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
