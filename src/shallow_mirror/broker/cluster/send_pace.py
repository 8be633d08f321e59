"""Everywhere: how fast one leader acknowledges batches, and so how much may be sent to it before a limit."""

from __future__ import annotations

import math

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


class SendPace:
    """What one leader acknowledged in the transaction of one pipeline.

    `until`: when sending has to stop; `deadline`: when everything has to be acknowledged, or it is lost. `known_bytes_per_s`:
    what the path carried in earlier transactions; None: not known.
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
        """Stop the clock: nothing is in flight, and what comes next is the reader's time, not the link's.

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
        """Return the rate of the link; infinite where it took no time that the clock shows."""
        return self._remembered_bytes / self._remembered_s if self._remembered_s > 0 else math.inf

    def request_bytes(self, most_bytes: int) -> int:
        """Return how many bytes a request should hold."""
        if not self.has_answered:
            return min(most_bytes, self._first_bytes)
        return int(max(FIRST_BYTES, min(most_bytes, self.bytes_per_s() * REQUEST_S)))

    def most_in_flight(self) -> float:
        """Return how many bytes may be in flight together: what will be acknowledged before `until`, at the speed seen so far."""
        if self._until.is_over():
            return 0
        if not self.has_answered:
            return self._first_bytes
        return max(FIRST_BYTES, self.bytes_per_s() * self._until.remaining_ms() / 1000)

    def may_begin(self, size_bytes: int) -> bool:
        """Return whether a request may be sent while nothing is in flight.

        The first one always may. Later ones may end behind `until`: small requests show the latency of a link rather than what
        it carries, and a large one would wait for a better rate forever. But not behind `deadline`, where the rate is known.
        """
        if not self.has_sent:
            return True
        if self._until.is_over():
            return False
        is_known = self._acknowledged_bytes >= FIRST_BYTES
        return not is_known or size_bytes <= self.bytes_per_s() * self._deadline.remaining_ms() / 1000
