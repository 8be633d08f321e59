"""Pure: Java's properties files, and the JSON of a Kafka Connect connector, as names and values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from shallow_mirror.errors import ConfigError

_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_BLANKS = " \t\f"
_UNICODE_DIGITS = 4
_HEXADECIMAL = re.compile(r"[0-9A-Fa-f]{4}")


def parse(text: str, where: str) -> dict[str, str]:
    """Return the properties of a file in the order of their lines; the last line of a name counts, as in Java.

    A file that begins with `{` is the JSON of a connector: its `config`, or the object itself. `where`: the file, in messages.
    Raises ConfigError with the number of the line.
    """
    return _parse_json(text, where) if text.lstrip().startswith("{") else _parse_properties(text, where)


def _parse_json(text: str, where: str) -> dict[str, str]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{where} begins as JSON, and is not: {error}") from None
    config = document.get("config", document)
    if not isinstance(config, dict) or any(isinstance(value, (dict, list)) for value in config.values()):
        raise ConfigError(f"{where} is no configuration of a connector: an object of names and plain values")
    given = {name: value for name, value in config.items() if value is not None}
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in given.items()}


def _parse_properties(text: str, where: str) -> dict[str, str]:
    properties: dict[str, str] = {}
    for number, line in _logical_lines(text):
        end = _end_of_name(line)
        value = line[end:].lstrip(_BLANKS)
        if value[:1] in ("=", ":"):
            value = value[1:].lstrip(_BLANKS)
        name, value = (_unescaped(part, f"{where}, line {number}") for part in (line[:end], value))
        properties.pop(name, None)
        properties[name] = value
    return properties


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield lines without comments and blank ones, continued lines as one, with the number of the first."""
    begun: tuple[int, str] | None = None
    for number, natural in enumerate(re.split(r"\r\n|\r|\n", text), 1):
        line = natural.lstrip(_BLANKS)
        if begun is None and (not line or line[0] in "#!"):
            continue
        first, before = begun or (number, "")
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            begun = first, before + line[:-1]
        else:
            begun = None
            yield first, before + line
    if begun is not None:
        yield begun


def _end_of_name(line: str) -> int:
    at = 0
    while at < len(line) and line[at] not in "=:" + _BLANKS:
        at += 2 if line[at] == "\\" else 1
    return min(at, len(line))


def _unescaped(text: str, where: str) -> str:
    parts, at = [], 0
    while at < len(text):
        if text[at] != "\\":
            parts.append(text[at])
            at += 1
        elif text[at + 1 : at + 2] == "u":
            digits = text[at + 2 : at + 2 + _UNICODE_DIGITS]
            if not _HEXADECIMAL.fullmatch(digits):
                raise ConfigError(f"{where}: \\u needs four hexadecimal digits: correct the line")
            parts.append(chr(int(digits, 16)))
            at += 2 + _UNICODE_DIGITS
        else:
            escaped = text[at + 1 : at + 2]
            parts.append(_ESCAPES.get(escaped, escaped))
            at += 2
    return "".join(parts)
