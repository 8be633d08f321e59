"""Everywhere: how fast one broker's answers to Fetch arrive, and so how much the next Fetch asks for.

An answer that takes longer than a slot may wait brings nothing, however often it is requested. So a Fetch asks for about
what the link carries in `REQUEST_S`, as a Produce request holds as much (send_pace.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable

from shallow_mirror.broker.cluster.send_pace import FIRST_BYTES, REQUEST_S

GROWTH = 4
"""An answer justifies a next one of this many times its size at most: little that arrives in a burst says little."""

GROWING_SHARE = 0.25
"""Part of `request.timeout.ms`: a Fetch whose answer took longer than this in all is not followed by a larger one."""


class FetchPace:
    """What one broker answered, one Fetch at a time: `sent`, `began`, `received`, or `failed`.

    The time between `began` and `received` is the link's, and only that makes the next Fetch smaller: not the latency of the
    broker, nor the time that the reader spent on the answer before. Where the reader is the slower one, bytes have arrived
    before it waits for them, and that time shows nothing; the time since `sent` then bounds the growth.
    """

    def __init__(self, request_timeout_ms: float, clock: Callable[[], float]) -> None:
        self._growing_s, self._clock = request_timeout_ms / 1000 * GROWING_SHARE, clock
        self._bytes, self._bytes_per_s = float(FIRST_BYTES), math.inf
        self._sent_at = self._began_at = 0.0

    def request_bytes(self, most_bytes: int, within_s: float = math.inf) -> int:
        """Return how many bytes to ask for, of an answer that is waited for during `within_s`.

        A broker returns the first batch also where it is larger (KIP-74).
        """
        return int(min(most_bytes, self._bytes, max(FIRST_BYTES, self._bytes_per_s * within_s)))

    def may_begin(self, within_s: float) -> bool:
        """Return whether an answer may arrive within that time, so that the link does not carry it in vain."""
        return within_s > 0 and self._bytes_per_s * within_s >= FIRST_BYTES

    def sent(self) -> None:
        """Note that a Fetch was handed to the connection."""
        self._sent_at = self._clock()

    def began(self) -> None:
        """Note that the first bytes of the answer are there, and that the others are waited for."""
        self._began_at = self._clock()

    def received(self, size_bytes: int) -> None:
        """Take over how long an answer with so many bytes of batches took."""
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
        """Forget the pace: a Fetch was not answered, and what the link carries now is not known."""
        self._bytes, self._bytes_per_s = float(FIRST_BYTES), math.inf
