"""Everywhere: how fast one broker's responses to Fetch arrive, and so how much the next Fetch requests.

A response that takes longer than a slot may wait is useless, however often it is requested. So a Fetch requests about what
the link carries in `REQUEST_S`, as a Produce request holds as much (send_pace.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from shallow_mirror.broker.cluster.cluster_metadata import FAR_S, FetchSpeed
from shallow_mirror.broker.cluster.send_pace import FIRST_BYTES, REQUEST_S

GROWTH = 4
"""A response justifies a next one of at most this many times its size: a few bytes in a burst say little about the link."""

GROWING_SHARE = 0.25
"""Part of `request.timeout.ms`: a Fetch whose response took longer than this in all is not followed by a larger one."""


class FetchPace:
    """The pace of one broker's responses, one Fetch at a time: `sent`, `began`, `received`, or `failed`.

    Only the time between `began` and `received`, which is the link's, makes the next Fetch smaller: not the latency of the
    broker, nor the time that the reader spent on the response before. If the reader is slower than the link, bytes have
    arrived before it waits for them, and that time shows nothing; the time since `sent` then bounds the growth.
    """

    def __init__(self, request_timeout_ms: float, clock: Callable[[], float]) -> None:
        self._growing_s = request_timeout_ms / 1000 * GROWING_SHARE
        self._clock = clock
        self._bytes = float(FIRST_BYTES)
        self._bytes_per_s = math.inf
        self._sent_at = self._began_at = 0.0
        self._least_wait_s = math.inf

    def speed(self) -> FetchSpeed | None:
        """Return the measured speed of the path; None before the first response."""
        if self._least_wait_s == math.inf:
            return None
        return FetchSpeed(self._bytes, self._bytes_per_s, self._least_wait_s)

    def learn(self, speed: FetchSpeed) -> None:
        """Take the measurement of another process, if nothing is known yet: requests need not grow from the smallest one."""
        if self._least_wait_s == math.inf:
            self._bytes, self._bytes_per_s, self._least_wait_s = speed

    @property
    def is_far(self) -> bool:
        """Say whether no response has come at once: that is the round trip, whatever the reader did meanwhile."""
        return FAR_S <= self._least_wait_s < math.inf

    @property
    def round_trip_s(self) -> float:
        """Return the shortest time that a response took to begin; infinite before the first one."""
        return self._least_wait_s

    def request_bytes(self, most_bytes: int, within_s: float = math.inf) -> int:
        """Return how many bytes to request in a response that may take `within_s`.

        A broker returns the first batch also if it is larger (KIP-74).
        """
        return int(min(most_bytes, self._bytes, max(FIRST_BYTES, self._bytes_per_s * within_s)))

    def may_begin(self, within_s: float) -> bool:
        """Return whether a response may arrive within that time, so that the link does not carry bytes that are not used."""
        return within_s > 0 and self._bytes_per_s * within_s >= FIRST_BYTES

    def sent(self) -> None:
        """Note that a Fetch was handed to the connection."""
        self._sent_at = self._clock()

    def began(self) -> None:
        """Note that the first bytes of the response were received, and that the others are waited for."""
        self._began_at = self._clock()
        self._least_wait_s = min(self._least_wait_s, self._began_at - self._sent_at)

    def received(self, size_bytes: int) -> None:
        """Learn from a response with so many bytes of batches."""
        now = self._clock()
        transfer_s = now - self._began_at
        carried_bytes = size_bytes / transfer_s * REQUEST_S if transfer_s > 0 else math.inf
        if size_bytes >= FIRST_BYTES or transfer_s > REQUEST_S:
            self._bytes_per_s = carried_bytes / REQUEST_S
        if transfer_s > REQUEST_S:
            self._bytes = max(float(FIRST_BYTES), carried_bytes)
        elif now - self._sent_at < self._growing_s:
            self._bytes = max(self._bytes, min(float(size_bytes * GROWTH), carried_bytes))

    def failed(self) -> None:
        """Forget the pace: a Fetch was not answered, and the speed of the link is unknown."""
        self._bytes = float(FIRST_BYTES)
        self._bytes_per_s = math.inf
