"""Findings of sequences: which of them are alike, and what is printed of one."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.operators.scripts import Done

_ALIKE = 40
"""Findings that begin alike are one while a script is shortened."""
_OF_THIS_RUN = re.compile(r"\d+|\([\w-]{6}\)")
"""Offsets and topic ids."""
_EVENT_CHARACTERS = 500


def alike(finding: str) -> Callable[[str], bool]:
    """Return whether another finding is of the same kind."""
    return lambda other: _kind_of(other) == _kind_of(finding)


def _kind_of(finding: str) -> str:
    return _OF_THIS_RUN.sub("", finding)[:_ALIKE]


def told(seed: int, done: Done) -> str:
    return "\n".join([f"seed {seed}: {done.finding}", *(f"    {event[:_EVENT_CHARACTERS]}" for event in done.events)])
