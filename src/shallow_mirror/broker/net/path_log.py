"""Everywhere: what the path to one broker does, measured by the time that requests wait for their responses.

Only time in which this process was blocked by the connection counts: a response that was there long before it was read says
nothing about the path. A path is stalled where nothing has passed for `STALLED_S`, and slow where a response took `SLOWER` times
what the same bytes in flight took before. Brokers that are slow themselves look the same from here.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from shallow_mirror.logging_setup import fields

_log = logging.getLogger(__name__)

STALLED_S = 10.0
"""A broker that sends and takes nothing for so long is reported."""

SLOW_S = 2.0
"""Responses that take less are never reported as slow."""

SLOWER = 4
"""A response is slow where it takes so many times what the best of the path so far let expect."""

REPORTED_EVERY_S = 60.0
"""A path that becomes slow or stalls again and again is reported once in this time."""

REMEMBERED_S = 300.0
"""The best round trip and throughput are those of the last so many seconds, or of twice as many."""

_MEASURED_BYTES = 64 << 10
_MEASURED_S = 0.001
"""Fewer bytes in flight, or less time, say nothing about the throughput."""


@dataclass(slots=True)
class _Write:
    """Requests that were sent together. `ahead_bytes`: in flight then, theirs included."""

    left: int
    size_bytes: int
    ahead_bytes: int
    sent_at: float
    waited_s: float


@dataclass(frozen=True, slots=True)
class _Best:
    """The best of the path: seconds of a round trip, and bytes per second, 0 if it was not measured."""

    round_trip_s: float = math.inf
    bytes_per_s: float = 0.0

    def better(self, other: _Best) -> _Best:
        return _Best(min(self.round_trip_s, other.round_trip_s), max(self.bytes_per_s, other.bytes_per_s))

    def expected_s(self, size_bytes: int) -> float:
        """Return how long a response should take behind so many bytes; infinite if that is not known."""
        if size_bytes < _MEASURED_BYTES:
            return self.round_trip_s
        return self.round_trip_s + size_bytes / self.bytes_per_s if self.bytes_per_s else math.inf


class PathLog:
    """The path of the connections to one broker for one purpose, one after another. Logs a line when it changes."""

    def __init__(self, peer: str, purpose: str, clock: Callable[[], float]) -> None:
        self._peer = peer
        self._purpose = purpose
        self._clock = clock
        self._writes: deque[_Write] = deque()
        self._in_flight_bytes = 0
        self._waited_s = 0.0
        self._waiting_since: float | None = None
        self._best = self._best_before = _Best()
        self._best_since = clock()
        self._trouble_since: float | None = None
        self._trouble_bytes = 0
        self._events = set[str]()
        """Of the present trouble, those that were met; `_reported`: those that were logged."""
        self._reported = set[str]()
        self._reported_at: dict[str, float] = {}
        self._unreported = 0

    # --- what the connection does ---

    def sent(self, count: int, size_bytes: int) -> None:
        """Note that so many requests are about to be sent in one write."""
        self._in_flight_bytes += size_bytes
        self._writes.append(_Write(count, size_bytes, self._in_flight_bytes, self._clock(), self._waited_s))

    def responded(self, size_bytes: int, count: int = 1) -> None:
        """Note that the oldest requests, `count` of them, got responses of so many bytes each."""
        while count and self._writes:  # an earlier connection of the path may have been closed, which ended what was noted
            write = self._writes[0]
            responses = min(count, write.left)
            write.left -= responses
            count -= responses
            if not write.left:
                self._writes.popleft()
                self._in_flight_bytes -= write.size_bytes
                self._evaluate(write, write.ahead_bytes + size_bytes)

    def closed(self) -> None:
        """Note that the connection ended: nothing is in flight any more. The caller raises an error for pending responses."""
        self._writes.clear()
        self._in_flight_bytes = 0

    # --- what the transport does ---

    def begin_wait(self) -> None:
        """Note that the process is blocked until the connection takes or has bytes."""
        self._waiting_since = self._clock()

    def still_waiting(self) -> None:
        """Report the path as stalled if nothing has passed for long. Called now and then within a wait."""
        if self._waiting_since is None or not self._writes or "stalled" in self._events:
            return
        quiet_s = self._clock() - self._waiting_since
        # What a slow path is known to need for the bytes in flight is not a stall.
        known_s = self._best.better(self._best_before).expected_s(self._in_flight_bytes)
        if quiet_s >= max(STALLED_S, SLOWER * known_s if known_s < math.inf else 0.0):
            what = f"has sent and taken nothing for {quiet_s:.0f} s, and {{in_flight}}; {self._usual()}"
            self._enter_trouble("stalled", self._waiting_since, self._in_flight_bytes, what)

    def end_wait(self) -> None:
        """Note that the wait ended, by whatever passed or by an error."""
        if self._waiting_since is not None:
            self._waited_s += self._clock() - self._waiting_since
            self._waiting_since = None

    # --- what that means ---

    def _evaluate(self, write: _Write, carried_bytes: int) -> None:
        took_s = self._waited_s - write.waited_s
        expected_s = self._best.better(self._best_before).expected_s(carried_bytes)
        if "stalled" in self._events:
            self._leave_trouble("responds again", took_s, carried_bytes)
        elif took_s > SLOW_S and took_s > SLOWER * expected_s:
            if not self._events:
                what = f"became slow: a response took {took_s:.1f} s, {carried_bytes / took_s / 1e6:.2f} MB/s"
                self._enter_trouble("slow", write.sent_at, carried_bytes, f"{what}, and {{in_flight}}; {self._usual()}")
        elif self._trouble_since is None:
            self._learn(took_s, carried_bytes)
        # A small response on a path without bandwidth is as quick as before: what was slow has to become quick.
        elif carried_bytes * 2 >= self._trouble_bytes or self._clock() - self._trouble_since > REPORTED_EVERY_S:
            self._leave_trouble("is no longer slow", took_s, carried_bytes)

    def _learn(self, took_s: float, carried_bytes: int) -> None:
        if took_s < _MEASURED_S:
            return
        now = self._clock()
        if now - self._best_since > REMEMBERED_S:
            self._best_before, self._best, self._best_since = self._best, _Best(), now
        speed = carried_bytes / took_s if carried_bytes >= _MEASURED_BYTES else 0.0
        self._best = self._best.better(_Best(took_s, speed))

    def _usual(self) -> str:
        best = self._best.better(self._best_before)
        if best.round_trip_s == math.inf:
            return "nothing is known of the path before"
        speed = f", {best.bytes_per_s / 1e6:.1f} MB/s" if best.bytes_per_s else ""
        return f"at its best: round trip {best.round_trip_s * 1000:.0f} ms{speed}"

    def _enter_trouble(self, event: str, since: float, size_bytes: int, what: str) -> None:
        """Log `what`, in which `{in_flight}` stands for the bytes in flight, unless the same was logged a moment ago."""
        if self._trouble_since is None:
            self._trouble_since = since
        self._trouble_bytes = size_bytes
        self._events.add(event)
        now = self._clock()
        if now - self._reported_at.get(event, -math.inf) < REPORTED_EVERY_S:
            self._unreported += 1
            return
        requests = sum(write.left for write in self._writes)
        in_flight = f"{requests} requests with {self._in_flight_bytes / 1e6:.2f} MB are in flight"
        again = f"; {self._unreported} more times since the last report" if self._unreported else ""
        self._log_event(event, what.format(in_flight=in_flight) + again, requests=requests, bytes_in_flight=self._in_flight_bytes)
        self._reported.add(event)
        self._reported_at[event] = now
        self._unreported = 0

    def _leave_trouble(self, what: str, took_s: float, carried_bytes: int) -> None:
        assert self._trouble_since is not None
        seconds = self._clock() - self._trouble_since
        if self._reported:
            last = f"the last response, with {carried_bytes / 1e6:.2f} MB in flight, took {took_s:.2f} s"
            self._log_event("recovered", f"{what}, {seconds:.0f} s after that began: {last}", seconds=round(seconds, 3))
        self._trouble_since = None
        self._events.clear()
        self._reported.clear()

    def _log_event(self, event: str, what: str, **values: object) -> None:
        # A warning also where it is a recovery: worker processes log nothing below.
        extra = fields(event=event, broker=self._peer, purpose=self._purpose, **values)
        _log.warning("broker %s (%s) %s", self._peer, self._purpose, what, extra=extra)
