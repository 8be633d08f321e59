"""Driver: detection of steps of a micro-batch that take longer than usual: each has a deadline, but of minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.sinks.kafka.protocol import actions

USUAL_S = 10.0
USUAL_SHARE_OF_SLOTS = 0.5
"""Tasks may take this part of the transaction timeout before they are reported: they are planned to take a quarter."""

_OF_THE_MAP = {action.__name__ for action in (actions.TakeDecision, actions.Decide, actions.Settle)}


@dataclass(frozen=True, slots=True)
class StalledStep:
    """A step that has been running for `seconds`."""

    waits_for: str
    seconds: float


class StallDetector:
    """The step that runs. One thread does the steps, any other may read `lingering`."""

    def __init__(
        self, source: ClientConfig | None, target: ClientConfig, transaction_timeout_ms: int, clock: Callable[[], float]
    ) -> None:
        self._source = "the archive" if source is None else _addresses(source)
        self._target = _addresses(target)
        self._clock = clock
        self._usual_s_of_slots = transaction_timeout_ms / 1000 * USUAL_SHARE_OF_SLOTS
        self._step: tuple[str, float] | None = None

    @contextmanager
    def doing(self, action: str) -> Iterator[None]:
        """Record that a step runs, by the name of the protocol's action."""
        self._step = action, self._clock()
        try:
            yield
        finally:
            self._step = None

    def stalled_step(self) -> StalledStep | None:
        """Return the step that takes longer than usual, or None."""
        step = self._step
        if step is None:
            return None
        action, began = step
        seconds = self._clock() - began
        is_of_slots = action == actions.RunSlots.__name__
        if seconds <= (self._usual_s_of_slots if is_of_slots else USUAL_S):
            return None
        if is_of_slots:
            return StalledStep(f"its slots, which read from {self._source} and write to {self._target}", seconds)
        return StalledStep(f"{action} {'in the offset map' if action in _OF_THE_MAP else f'at {self._target}'}", seconds)


def _addresses(client: ClientConfig) -> str:
    return ",".join(f"{host}:{port}" for host, port in client.bootstrap)
