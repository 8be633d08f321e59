"""Pure: names that are chosen on the command line."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from shallow_mirror.errors import ConfigError


def known_names(kind: str, names: Sequence[str], known: Collection[str]) -> list[str]:
    """`names`, or all that are known where none is given. Raises ConfigError with every unknown one and what is known."""
    problems = [f"unknown {kind} {name!r}; known: {', '.join(known)}" for name in names if name not in known]
    if problems:
        raise ConfigError(problems)
    return list(dict.fromkeys(names)) or list(known)
