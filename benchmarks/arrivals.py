"""Pure: what the arrival times of numbered, time-stamped records say: latencies, pauses, catching up, and order."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Arrival:
    """`number` counts the records of a partition from 0. Times are seconds since the epoch."""

    partition: int
    number: int
    sent_at: float
    arrived_at: float

    @property
    def latency_s(self) -> float:
        return self.arrived_at - self.sent_at


@dataclass(frozen=True, slots=True)
class Phase:
    """From `begin` until in front of `end`."""

    name: str
    begin: float
    end: float

    def holds(self, at: float) -> bool:
        return self.begin <= at < self.end


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing arrived of `partitions` partitions, of the one that waited longest for `seconds`."""

    begin: float
    end: float
    seconds: float
    partitions: int


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of the records that were sent in a phase."""

    records: int
    median_s: float
    p95_s: float
    p99_s: float
    max_s: float

    @classmethod
    def of(cls, arrivals: Iterable[Arrival], phase: Phase) -> Latencies:
        """Raise ValueError where no record was sent in the phase."""
        ascending = sorted(arrival.latency_s for arrival in arrivals if phase.holds(arrival.sent_at))
        if not ascending:
            raise ValueError(f"no record that was sent in the phase {phase.name!r} has arrived")
        return cls(
            records=len(ascending),
            median_s=statistics.median(ascending),
            p95_s=quantile(ascending, 0.95),
            p99_s=quantile(ascending, 0.99),
            max_s=ascending[-1],
        )


def quantile(ascending: Sequence[float], share: float) -> float:
    """Return the first value that at least `share` of the values do not exceed, or the largest one."""
    return ascending[min(int(share * len(ascending)), len(ascending) - 1)]


def pauses(arrivals: Iterable[Arrival], longer_than_s: float) -> list[Pause]:
    """Return the times in which nothing arrived of a partition for so long.

    Those of several partitions are one where they have a moment in common. Each is of a partition alone otherwise: slow traffic
    in which one partition waits after the other is no pause of all.
    """
    times: defaultdict[int, list[float]] = defaultdict(list)
    for arrival in arrivals:
        times[arrival.partition].append(arrival.arrived_at)
    gaps = sorted(
        (before, after)
        for arrived in times.values()
        for before, after in pairwise(sorted(arrived))
        if after - before > longer_than_s
    )
    groups: list[list[tuple[float, float]]] = []
    for begin, end in gaps:
        if groups and begin < min(after for _, after in groups[-1]):
            groups[-1].append((begin, end))
        else:
            groups.append([(begin, end)])
    return [
        Pause(group[0][0], max(after for _, after in group), max(after - before for before, after in group), len(group))
        for group in groups
    ]


def caught_up_after_s(arrivals: Iterable[Arrival], back_at: float) -> float:
    """Return how long after `back_at` the last record that was sent before it has arrived; 0 where it had arrived by then."""
    backlog = [arrival.arrived_at for arrival in arrivals if arrival.sent_at < back_at]
    return max(0.0, max(backlog, default=back_at) - back_at)


def order_problems(arrivals: Iterable[Arrival], sent: Mapping[int, int]) -> list[str]:
    """Return a sentence for each partition whose records did not arrive exactly once and in order. `arrivals` as they came;
    `sent` is the number of records of each partition."""
    numbers: defaultdict[int, list[int]] = defaultdict(list)
    for arrival in arrivals:
        numbers[arrival.partition].append(arrival.number)
    problems = []
    for partition in sorted(sent.keys() | numbers.keys()):
        arrived, expected = numbers[partition], range(sent.get(partition, 0))
        distinct = set(arrived)
        counts = {
            "lost": len(set(expected) - distinct),
            "duplicated": len(arrived) - len(distinct),
            "never sent": len(distinct - set(expected)),
            "out of order": sum(after < before for before, after in pairwise(arrived)),
        }
        if any(counts.values()):
            problems.append(f"partition {partition}: " + ", ".join(f"{count} {what}" for what, count in counts.items() if count))
    return problems
