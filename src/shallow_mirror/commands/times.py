"""Parsing of times in options."""

from __future__ import annotations

from datetime import UTC, datetime

from shallow_mirror.errors import ConfigError


def parse_time(text: str | None) -> datetime | None:
    """Return the time of --as-of; None without one. Raises ConfigError."""
    if text is None:
        return None
    if text == "now":
        return datetime.now(UTC)
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"--as-of: {text!r} is not an ISO-8601 time") from error
    if at.tzinfo is None:
        raise ConfigError(f"--as-of: {text!r} has no time zone: write {text}Z for UTC")
    return at.astimezone(UTC)
