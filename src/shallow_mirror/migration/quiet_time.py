"""Pure: for how long logs have to be at rest before their writers count as stopped: longer than the writers pause."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

PAUSES = 2.0
"""Logs at rest for so many of the longest pauses that were seen are those of stopped writers."""


@dataclass(frozen=True, slots=True)
class QuietTime:
    """`longest_pause_s`: of the writers, as far as it was seen. `is_bounded`: `writers.longest_quiet` makes it shorter."""

    seconds: float
    longest_pause_s: float
    is_bounded: bool

    @classmethod
    def of(cls, shortest_s: float, bound_s: float | None, longest_pause_s: float) -> QuietTime:
        """Return the time. `bound_s` None: pauses do not make it longer than `shortest_s`."""
        if bound_s is None:
            return cls(shortest_s, longest_pause_s, False)
        wanted_s, bound_s = max(shortest_s, PAUSES * longest_pause_s), max(shortest_s, bound_s)
        return cls(min(wanted_s, bound_s), longest_pause_s, wanted_s > bound_s)

    def sentence(self) -> str:
        rest = f"stopped once nothing came for {self.seconds:.0f} s"
        if self.is_bounded:
            return f"{rest} (writers.longest_quiet), although they pause for {self.longest_pause_s:.0f} s at times"
        return rest


@dataclass(frozen=True, slots=True)
class Stamp:
    """When a batch was written. `producer_id`: -1 if its producer is not idempotent."""

    topic: str
    producer_id: int
    timestamp_ms: int


def longest_gap_s(stamps: Iterable[Stamp]) -> float:
    """Return the longest pause between two batches of one producer, or of all without an id, in a topic.

    The partitions of a topic together: a producer goes round them. Producers apart: a busy one does not hide the pauses of
    another one.
    """
    times: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for stamp in stamps:
        times[stamp.topic, stamp.producer_id].append(stamp.timestamp_ms)
    gaps = (later - earlier for of_producer in times.values() for earlier, later in pairwise(sorted(of_producer)))
    return max(gaps, default=0) / 1000
