"""Driver: which step of a micro-batch takes longer than is usual, and what it waits for: each has a deadline, but of minutes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.sinks.kafka.protocol import actions

USUAL_S = 10.0
USUAL_SHARE_OF_SLOTS = 0.5
"""Tasks may take this part of the transaction timeout before it is worth telling: they are planned to take a quarter."""

_OF_THE_MAP = {one.__name__ for one in (actions.TakeDecision, actions.Decide, actions.Settle)}


@dataclass(frozen=True, slots=True)
class StalledStep:
    """`seconds`: for how long it has been going on."""

    waits_for: str
    seconds: float


class StallDetector:
    """One thread does the steps, any other may ask."""

    def __init__(
        self, source: ClientConfig, target: ClientConfig, transaction_timeout_ms: int, clock: Callable[[], float]
    ) -> None:
        self._source, self._target, self._clock = _addresses(source), _addresses(target), clock
        self._usual_s_of_slots = transaction_timeout_ms / 1000 * USUAL_SHARE_OF_SLOTS
        self._step: tuple[str, float] | None = None

    @contextmanager
    def doing(self, action: str) -> Iterator[None]:
        """By the name of the protocol's action."""
        self._step = action, self._clock()
        try:
            yield
        finally:
            self._step = None

    def lingering(self) -> StalledStep | None:
        """None where there is nothing to tell."""
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
