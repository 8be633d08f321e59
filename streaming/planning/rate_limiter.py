"""How many bytes a micro-batch may hold under a limit of bytes per second (planner process), and how many it held (driver).

Nothing ever sleeps inside a transaction: ranges that may not be copied yet are not planned. A limit holds over time: a batch
larger than the available bytes is still copied, and the next plans wait until its bytes are paid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from shallow_mirror import routing
from shallow_mirror.streaming.planning import offset_planning
from shallow_mirror.streaming.planning.offset_planning import Offsets
from shallow_mirror.types import Segment, SegmentKind, SourcePartition

MIN_BUDGET_S = 1.0
"""Nothing is planned below the bytes of so many seconds: micro-batches of a few records would cost more than they copy."""

WHOLE_MIRROR = ""
"""The key of the whole mirror among the names of topics."""


class CopiedBytes:
    """Driver: bytes since the run began, of limited topics and of the whole mirror; they correct the planner's estimates."""

    def __init__(self, topic_rates: Mapping[str, int]) -> None:
        self._rules = tuple(topic_rates.items())
        self._is_limited: dict[str, bool] = {}
        self.totals: dict[str, int] = {WHOLE_MIRROR: 0}

    def add(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            topic = segment.source.topic
            if topic not in self._is_limited:
                self._is_limited[topic] = routing.first_match(topic, self._rules) is not None
            if segment.kind is SegmentKind.EXPIRED:
                continue
            for name in (WHOLE_MIRROR, topic) if self._is_limited[topic] else (WHOLE_MIRROR,):
                self.totals[name] = self.totals.get(name, 0) + segment.size_bytes


class ByteBudget:
    """Available bytes: `rate` more every second, and at most the amount that accumulates from one plan to the next."""

    def __init__(self, rate: int, now: float) -> None:
        self.rate = rate
        self._at = now
        self._bytes = rate * MIN_BUDGET_S
        self._estimated = 0.0
        self._copied: int | None = None

    def fill(self, now: float, since_last_plan_s: float) -> None:
        most = self.rate * (MIN_BUDGET_S + since_last_plan_s)
        self._bytes, self._at = min(self._bytes + self.rate * (now - self._at), most), now

    def correct(self, copied: int) -> None:
        """Replace the estimates since the last call. `copied`: bytes since the run began."""
        if self._copied is not None:
            # A smaller total is that of another run of the driver, which counts from zero.
            actual = copied - self._copied if copied >= self._copied else copied
            self._bytes += self._estimated - actual
        self._copied, self._estimated = copied, 0.0

    @property
    def wait_s(self) -> float:
        """Return the seconds until something may be planned; 0 if it may now."""
        return max(0.0, MIN_BUDGET_S - self._bytes / self.rate)

    @property
    def available(self) -> float:
        return 0.0 if self.wait_s > 0 else self._bytes

    def spend(self, estimated: float) -> None:
        self._bytes -= estimated
        self._estimated += estimated


@dataclass(frozen=True, slots=True)
class RateLimitedPlan:
    """`wait_s`: seconds until something may be planned if there is a backlog and nothing of it may; else 0."""

    ends: dict[SourcePartition, int]
    wait_s: float = 0.0


class RateLimiter:
    """Over the life of a query. `topic_rates`: patterns and rates, each topic on its own."""

    def __init__(self, bytes_per_second: int | None, topic_rates: Sequence[tuple[str, int]], now: float) -> None:
        self._whole = None if bytes_per_second is None else ByteBudget(bytes_per_second, now)
        self._rules = topic_rates
        self._planned_at = now
        self._topics: dict[str, ByteBudget | None] = {}
        self._last_served: dict[SourcePartition, int] = {}
        self._plans = 0

    @property
    def is_limited(self) -> bool:
        return self._whole is not None or bool(self._rules)

    def plan(
        self,
        start: Offsets,
        ends: Offsets,
        bytes_per_offset: Mapping[SourcePartition, float],
        budget: float,
        *,
        least_bytes: float,
        copied: Mapping[str, int] | None,
        now: float,
    ) -> RateLimitedPlan:
        """Return ends as `offset_planning.plan_ends`, within the limits.

        `least_bytes`: about a batch; a partition is not served with less. `copied`: bytes of limited topics and of the whole
        mirror since the run began; None without measurements.
        """
        backlog = offset_planning.estimate_bytes(start, ends, bytes_per_offset)
        budgets = self._fill_budgets({source.topic for source in backlog}, copied, now)
        waiting = {topic for topic, byte_budget in budgets.items() if byte_budget.wait_s > 0}
        is_waiting = WHOLE_MIRROR in waiting
        allowed = {source: ends[source] for source in backlog if not is_waiting and source.topic not in waiting}
        for topic in budgets.keys() - waiting - {WHOLE_MIRROR}:
            of_topic = {source: end for source, end in allowed.items() if source.topic == topic}
            allowed |= self._share(start, of_topic, bytes_per_offset, budgets[topic].available, least_bytes)
        if self._whole is not None:
            budget = min(budget, self._whole.available)
        served = self._share(start, allowed, bytes_per_offset, budget, least_bytes)
        self._plans += 1
        self._last_served.update(dict.fromkeys(served, self._plans))
        for source, size in offset_planning.estimate_bytes(start, served, bytes_per_offset).items():
            for name in (WHOLE_MIRROR, source.topic):
                if name in budgets:
                    budgets[name].spend(size)
        waits = [budgets[topic].wait_s for topic in waiting]
        return RateLimitedPlan({**start, **served}, 0.0 if served else min(waits, default=0.0))

    def _share(
        self, start: Offsets, ends: Offsets, bytes_per_offset: Mapping[SourcePartition, float], budget: float, least_bytes: float
    ) -> dict[SourcePartition, int]:
        """Return the ends of partitions that move; if the budget is too small for all, of the least recently served."""
        if not ends:
            return {}
        count = max(1, int(budget // least_bytes))
        chosen = sorted(ends, key=lambda source: (self._last_served.get(source, 0), source))[:count]
        return offset_planning.plan_ends({source: start[source] for source in chosen}, ends, bytes_per_offset, budget)

    def _fill_budgets(self, topics: Set[str], copied: Mapping[str, int] | None, now: float) -> dict[str, ByteBudget]:
        """Return the budgets of topics with a rate of their own, and of the whole mirror, filled up to now."""
        since_s, self._planned_at = now - self._planned_at, now
        for topic in topics - self._topics.keys():
            rate = routing.first_match(topic, self._rules)
            self._topics[topic] = None if rate is None else ByteBudget(rate, now)
        candidates = {WHOLE_MIRROR: self._whole, **{topic: self._topics[topic] for topic in topics}}
        budgets = {name: byte_budget for name, byte_budget in candidates.items() if byte_budget is not None}
        for name, byte_budget in budgets.items():
            byte_budget.fill(now, since_s)
            if copied is not None:
                byte_budget.correct(copied.get(name, 0))
        return budgets
