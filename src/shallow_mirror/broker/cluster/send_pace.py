"""Everywhere: how fast one leader acknowledges batches: what should be in flight to it, and what is sent before a limit."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from shallow_mirror.broker.cluster.cluster_metadata import SendSpeed
from shallow_mirror.deadline import Deadline

FIRST_BYTES = 64 << 10
"""May be in flight before the first acknowledgement has shown how fast the link is, and however slow it is."""

_FIRST_S = 0.25
"""Before the first acknowledgement of a transaction, what an earlier one saw the path carry in this time may be in flight."""

REQUEST_S = 2.0
"""A request holds about as much as the link carries in this time, so that little is in flight when the limit passes."""

SLOWEST_BYTES_PER_S = 16 << 10
"""A request may take the usual time, and what its bytes take on a link of this speed."""

_REMEMBERED_S = 4.0
"""The rate is about that of so many seconds: longer, and it would not follow the link; shorter, and it would follow bursts."""

LEAST_BYTES = 16 << 20
"""May be in flight on any path: a broker that is near needs no more, and what is measured needs something to go by."""

GAIN = 2
"""In flight is this many times bandwidth x round trip: a path that carries more shows it, and the window grows."""

REMEMBERED_S = 30.0
"""The speed and the round trip are the best of the last so many seconds, or of twice as many. Longer than a transaction: only the
first requests of one find the path empty, and show its round trip without what waits in front of them."""


class SendPace:
    """The acknowledgements of one leader in the transaction of one pipeline.

    `until`: when sending has to stop; `deadline`: when everything has to be acknowledged, or it is lost. `known_bytes_per_s`:
    the speed of the path in earlier transactions; None: not known.
    """

    def __init__(self, until: Deadline, deadline: Deadline, known_bytes_per_s: float | None = None) -> None:
        self._until = until
        self._deadline = deadline
        self._first_bytes = max(FIRST_BYTES, int(_FIRST_S * (known_bytes_per_s or 0)))
        self._clock = until.clock
        self._remembered_bytes = self._remembered_s = 0.0
        self._acknowledged_bytes = 0
        self._counted_at: float | None = None
        self.busy_s = 0.0
        self.has_sent = self.has_answered = False

    def sent(self) -> None:
        """Note that a request was handed to the connection."""
        self.has_sent = True
        if self._counted_at is None:
            self._counted_at = self._clock()

    def acknowledged(self, size_bytes: int) -> None:
        self._count_time()
        self.has_answered = True
        self._acknowledged_bytes += size_bytes
        self._remembered_bytes += size_bytes
        if self._remembered_s > _REMEMBERED_S:
            self._remembered_bytes, self._remembered_s = self._remembered_bytes / 2, self._remembered_s / 2

    def drained(self) -> None:
        """Stop the clock: nothing is in flight, and the time from now on is the reader's, not the link's.

        While something is, the reader's time counts as well: on a slow link both run at once, and which of them it was is not
        known. A rate that is too low makes a slot end early; one that is too high lets the transaction time out.
        """
        self._count_time()
        self._counted_at = None

    def _count_time(self) -> None:
        if self._counted_at is not None:
            now = self._clock()
            self._remembered_s += now - self._counted_at
            self.busy_s += now - self._counted_at
            self._counted_at = now

    def bytes_per_s(self) -> float:
        """Return the rate of the link; infinite if it took no time that the clock shows."""
        return self._remembered_bytes / self._remembered_s if self._remembered_s > 0 else math.inf

    def request_bytes(self, most_bytes: int) -> int:
        """Return how many bytes a request should hold."""
        if not self.has_answered:
            return min(most_bytes, self._first_bytes)
        return int(max(FIRST_BYTES, min(most_bytes, self.bytes_per_s() * REQUEST_S)))

    def most_in_flight(self) -> float:
        """Return how many bytes may be in flight together, to be acknowledged before `until` at the speed seen so far."""
        if self._until.is_over():
            return 0
        if not self.has_answered:
            return self._first_bytes
        return max(FIRST_BYTES, self.bytes_per_s() * self._until.remaining_ms() / 1000)

    def may_begin(self, size_bytes: int) -> bool:
        """Return whether a request may be sent while nothing is in flight.

        The first one always may. Later ones may end behind `until`: small requests show the latency of a link rather than its
        speed, and a large one would wait for a better rate forever. But not behind `deadline`, if the rate is known.
        """
        if not self.has_sent:
            return True
        if self._until.is_over():
            return False
        is_known = self._acknowledged_bytes >= FIRST_BYTES
        return not is_known or size_bytes <= self.bytes_per_s() * self._deadline.remaining_ms() / 1000


class Flight(NamedTuple):
    """One write: when it was made, and how much had been acknowledged before."""

    at: float
    acknowledged_bytes: int


class SendWindow:
    """The capacity of the path to one leader, over all transactions of a process.

    The speed of a write is the bytes acknowledged from it to its own acknowledgement, by the time between. A write that the
    caller was slow to follow up shows a lower speed, and one that waited behind others a longer round trip; therefore the best
    count.
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
        """Return the measurements of the path."""
        best = self._path()
        return None if best is None else SendSpeed(*best)

    def learn(self, speed: SendSpeed) -> None:
        """Take the measurements of another process, if nothing is known yet: the first requests need not find them out."""
        if self._path() is None:
            self._best, self._since = (speed.bytes_per_s, speed.round_trip_s), self._clock()

    def begin(self) -> Flight:
        """Note that bytes are written."""
        return Flight(self._clock(), self._acknowledged_bytes)

    def acknowledge(self, size_bytes: int, flight: Flight) -> None:
        """Note that a write was acknowledged; `size_bytes`: acknowledged since the last call."""
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
        """Return the speed of the path; None if it is not known."""
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
