"""Life of the one process that the generator runs: it counts its effects, and is killed in front of or behind one of them."""

from __future__ import annotations

from dataclasses import dataclass


class KilledError(BaseException):
    """SIGKILL: nothing of the process runs on. No `except Exception` of the package sees it."""


@dataclass(slots=True)
class Life:
    """`kill_at`: number of the effect at which the process dies, from 1; None: it does not. `is_behind`: it had its effect."""

    kill_at: int | None = None
    is_behind: bool = False
    effects: int = 0
    is_over: bool = False

    def before_effect(self) -> None:
        """Count a request or a commit. Raise KilledError where the process is dead, or dies in front of it."""
        self.effects += 1
        if self.is_over or (self.effects == self.kill_at and not self.is_behind):
            self._die()

    def after_effect(self) -> None:
        """Raise KilledError where the process dies behind this effect: nobody hears what became of it."""
        if self.effects == self.kill_at and self.is_behind:
            self._die()

    def _die(self) -> None:
        self.is_over = True
        raise KilledError


class Lives:
    """Whose life it is now: one process at a time."""

    def __init__(self) -> None:
        self.current = Life()

    def before_effect(self) -> None:
        self.current.before_effect()

    def after_effect(self) -> None:
        self.current.after_effect()
