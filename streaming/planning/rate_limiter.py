"""How many bytes a micro-batch may hold so that the mirror keeps to its bytes per second (planner), and had (driver).

Nothing ever sleeps inside a transaction: what may not go yet is not planned. A rate holds over time: a batch larger than what has
gathered still goes, and the next ones wait until it is paid.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from shallow_mirror.sinks import routing
from shallow_mirror.streaming.planning import offset_planning
from shallow_mirror.streaming.planning.offset_planning import Offsets
from shallow_mirror.types import Segment, SegmentKind, SourcePartition

GATHERED_S = 1.0
"""Nothing goes before so much has gathered: micro-batches of a few records would cost more than they bring."""

WHOLE_MIRROR = ""
"""Beside the names of topics in what was copied."""


class CopiedBytes:
    """Driver: since the run began, of limited topics and of the whole mirror; what the planner corrects its estimates by."""

    def __init__(self, of_topics: Mapping[str, int]) -> None:
        self._rules = tuple(of_topics.items())
        self._is_limited: dict[str, bool] = {}
        self.totals: dict[str, int] = {WHOLE_MIRROR: 0}

    def add(self, segments: Iterable[Segment]) -> None:
        for one in segments:
            topic = one.source.topic
            if topic not in self._is_limited:
                self._is_limited[topic] = routing.first_match(topic, self._rules) is not None
            if one.kind is SegmentKind.EXPIRED:
                continue
            for name in (WHOLE_MIRROR, topic) if self._is_limited[topic] else (WHOLE_MIRROR,):
                self.totals[name] = self.totals.get(name, 0) + one.size_bytes


class ByteBudget:
    """Bytes that may go: `rate` more every second, and no more is kept than what gathers from one plan to the next."""

    def __init__(self, rate: int, now: float) -> None:
        self.rate, self._at = rate, now
        self._bytes = rate * GATHERED_S
        self._estimated = 0.0
        self._copied: int | None = None

    def fill(self, now: float, since_last_plan_s: float) -> None:
        most = self.rate * (GATHERED_S + since_last_plan_s)
        self._bytes, self._at = min(self._bytes + self.rate * (now - self._at), most), now

    def correct(self, copied: int) -> None:
        """`copied`: bytes since the run began. They take the place of what was estimated since the last call."""
        if self._copied is not None:
            really = copied - self._copied if copied >= self._copied else copied
            self._bytes += self._estimated - really
        self._copied, self._estimated = copied, 0.0

    @property
    def wait_s(self) -> float:
        """Until something may go; 0 if it may."""
        return max(0.0, GATHERED_S - self._bytes / self.rate)

    @property
    def available(self) -> float:
        return 0.0 if self.wait_s > 0 else self._bytes

    def spend(self, estimated: float) -> None:
        self._bytes -= estimated
        self._estimated += estimated


@dataclass(frozen=True, slots=True)
class RateLimitedPlan:
    """`wait_s`: where nothing may go although there is something, how long it takes until something may; else 0."""

    ends: dict[SourcePartition, int]
    wait_s: float = 0.0


class RateLimiter:
    """Over the life of a query. `of_topics`: patterns and rates, each topic for itself."""

    def __init__(self, bytes_per_second: int | None, of_topics: Sequence[tuple[str, int]], now: float) -> None:
        self._whole = None if bytes_per_second is None else ByteBudget(bytes_per_second, now)
        self._rules, self._planned_at = of_topics, now
        self._topics: dict[str, ByteBudget | None] = {}
        self._served: dict[SourcePartition, int] = {}
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
        """As `planning.plan_ends`. `least_bytes`: about a batch; a partition is not served with less.

        `copied`: bytes of limited topics and of the whole mirror since the run began; None where nobody measures.
        """
        backlog = offset_planning.estimate_bytes(start, ends, bytes_per_offset)
        budgets = self._filled({one.topic for one in backlog}, copied, now)
        waiting = {topic for topic, one in budgets.items() if one.wait_s > 0}
        is_waiting = WHOLE_MIRROR in waiting
        allowed = {one: ends[one] for one in backlog if not is_waiting and one.topic not in waiting}
        for topic in budgets.keys() - waiting - {WHOLE_MIRROR}:
            of_topic = {one: end for one, end in allowed.items() if one.topic == topic}
            allowed |= self._share(start, of_topic, bytes_per_offset, budgets[topic].available, least_bytes)
        if self._whole is not None:
            budget = min(budget, self._whole.available)
        moved = self._share(start, allowed, bytes_per_offset, budget, least_bytes)
        self._plans += 1
        self._served.update(dict.fromkeys(moved, self._plans))
        for one, size in offset_planning.estimate_bytes(start, moved, bytes_per_offset).items():
            for name in (WHOLE_MIRROR, one.topic):
                if name in budgets:
                    budgets[name].spend(size)
        waits = [budgets[topic].wait_s for topic in waiting]
        return RateLimitedPlan({**start, **moved}, 0.0 if moved else min(waits, default=0.0))

    def _share(
        self, start: Offsets, ends: Offsets, bytes_per_offset: Mapping[SourcePartition, float], budget: float, least_bytes: float
    ) -> dict[SourcePartition, int]:
        """Of those that move: where they stop. Whose turn was longest ago comes first where it is not enough for all."""
        if not ends:
            return {}
        count = max(1, int(budget // least_bytes))
        chosen = sorted(ends, key=lambda one: (self._served.get(one, 0), one))[:count]
        return offset_planning.plan_ends({one: start[one] for one in chosen}, ends, bytes_per_offset, budget)

    def _filled(self, topics: Set[str], copied: Mapping[str, int] | None, now: float) -> dict[str, ByteBudget]:
        """Of topics with a rate of their own, and of the whole mirror."""
        since_s, self._planned_at = now - self._planned_at, now
        for topic in topics - self._topics.keys():
            rate = routing.first_match(topic, self._rules)
            self._topics[topic] = None if rate is None else ByteBudget(rate, now)
        known = {WHOLE_MIRROR: self._whole, **{topic: self._topics[topic] for topic in topics}}
        found = {name: one for name, one in known.items() if one is not None}
        for name, one in found.items():
            one.fill(now, since_s)
            if copied is not None:
                one.correct(copied.get(name, 0))
        return found
