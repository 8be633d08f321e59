"""What a sink is."""

from __future__ import annotations

from collections.abc import Callable

Observer = Callable[[str], None]
"""Called with the name of each point a task passes; tests use it to kill processes at that point."""


def observe_nothing(_point: str) -> None:
    """The observer of every run that is not a test."""
