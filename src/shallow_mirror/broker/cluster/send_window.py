"""Everywhere: how many bytes should be in flight to one leader, by what its path was seen to carry."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from shallow_mirror.broker.cluster.cluster_metadata import SendSpeed

LEAST_BYTES = 16 << 20
"""May be in flight on any path: a broker that is near needs no more, and what is measured needs something to go by."""

GAIN = 2
"""In flight is this many times bandwidth x round trip: a path that carries more shows it, and the window grows."""

REMEMBERED_S = 30.0
"""The speed and the round trip are the best of the last so many seconds, or of twice as many. Longer than a transaction: only the
first requests of one find the path empty, and show its round trip without what waits in front of them."""


class Flight(NamedTuple):
    """One write: when it was made, and how much had been acknowledged before."""

    at: float
    acknowledged_bytes: int


class SendWindow:
    """What the path to one leader carries, over all transactions of a process.

    The speed of a write is what was acknowledged from it to its own acknowledgement, by the time between. A write that the caller
    was slow to follow up shows a lower speed, and one that waited behind others a longer round trip; therefore the best count.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._acknowledged_bytes = 0
        self.forget()

    def forget(self) -> None:
        """Forget the path: a request was not answered."""
        self._best: tuple[float, float] | None = None
        self._best_before: tuple[float, float] | None = None
        self._since = self._clock()

    def speed(self) -> SendSpeed | None:
        """Return what is known of the path."""
        best = self._path()
        return None if best is None else SendSpeed(*best)

    def learn(self, speed: SendSpeed) -> None:
        """Take what another process has measured, where nothing is known yet: the first requests need not find it out."""
        if self._path() is None:
            self._best, self._since = (speed.bytes_per_s, speed.round_trip_s), self._clock()

    def begin(self) -> Flight:
        """Note that bytes are written."""
        return Flight(self._clock(), self._acknowledged_bytes)

    def acknowledge(self, size_bytes: int, flight: Flight) -> None:
        """Note that a write was acknowledged; `size_bytes`: what was acknowledged since the last call."""
        self._acknowledged_bytes += size_bytes
        now = self._clock()
        round_trip_s = now - flight.at
        if round_trip_s <= 0:
            return
        if now - self._since > REMEMBERED_S:
            self._best_before, self._best, self._since = self._best, None, now
        speed = (self._acknowledged_bytes - flight.acknowledged_bytes) / round_trip_s
        self._best = _better(self._best, (speed, round_trip_s))

    def bytes_per_s(self) -> float | None:
        """Return the speed of the path; None where it is not known."""
        best = self._path()
        return None if best is None else best[0]

    def size_bytes(self, most_bytes: int) -> int:
        """Return how much may be in flight. `most_bytes`: whatever the path carries."""
        best = self._path()
        wanted = 0 if best is None else int(GAIN * best[0] * best[1])
        return min(most_bytes, max(LEAST_BYTES, wanted))

    def _path(self) -> tuple[float, float] | None:
        return self._best if self._best_before is None else _better(self._best_before, self._best)


def _better(one: tuple[float, float] | None, other: tuple[float, float] | None) -> tuple[float, float] | None:
    if one is None or other is None:
        return one or other
    return max(one[0], other[0]), min(one[1], other[1])
