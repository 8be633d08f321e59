"""Deadlines on the clock of this machine."""

from __future__ import annotations

import time
from collections.abc import Callable

from shallow_mirror.deadline import Deadline


def deadline(ms: float = 10_000) -> Deadline:
    """Return a deadline that begins now."""
    return Deadline.after_ms(ms, time.monotonic)


def wait_until(condition: Callable[[], bool], patience_s: float = 20, pause_s: float = 0.002) -> None:
    """Return when `condition` holds. Fails the test when it does not hold within `patience_s`."""
    give_up_at = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < give_up_at, f"not true within {patience_s} s"
        time.sleep(pause_s)
