"""Pure: whether include and exclude patterns select every name that begins with a prefix.

A sufficient condition: patterns of literal characters, dots and escaped punctuation, with or without `.*` at the end, are
understood. Of any other pattern the answer is the cautious one: it includes no whole prefix and may exclude part of any.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_UNDERSTOOD = re.compile(r"(?P<body>(?:[A-Za-z0-9_-]|\.(?![*+?{])|\\[^A-Za-z0-9])*)(?P<tail>(?:\.\*)?)")
_CHARACTER = re.compile(r"\\(?P<escaped>.)|(?P<plain>.)")


def covers_prefix(prefix: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Return whether every name that begins with `prefix` is selected; an empty prefix: every name at all."""
    return any(_includes_all(pattern, prefix) for pattern in include) and not any(
        _may_match_some(pattern, prefix) for pattern in exclude
    )


def _includes_all(pattern: str, prefix: str) -> bool:
    parsed = _parse(pattern)
    if parsed is None:
        return False
    characters, is_open = parsed
    return is_open and len(characters) <= len(prefix) and _agree(characters, prefix)


def _may_match_some(pattern: str, prefix: str) -> bool:
    parsed = _parse(pattern)
    if parsed is None:
        return True
    characters, is_open = parsed
    return _agree(characters, prefix) and (is_open or len(characters) >= len(prefix))


def _agree(characters: Sequence[str | None], prefix: str) -> bool:
    """Compare as far as both reach."""
    return all(expected in (None, actual) for expected, actual in zip(characters, prefix, strict=False))


def _parse(pattern: str) -> tuple[list[str | None], bool] | None:
    """Return the characters, None for a dot, and whether anything may follow; None where the pattern is not understood."""
    match = _UNDERSTOOD.fullmatch(pattern)
    if match is None:
        return None
    characters: list[str | None] = []
    for character in _CHARACTER.finditer(match["body"]):
        plain = character["plain"]
        characters.append(character["escaped"] if plain is None else None if plain == "." else plain)
    return characters, bool(match["tail"])
