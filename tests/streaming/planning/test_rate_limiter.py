"""Bytes per second, kept by what a micro-batch may hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, strategies as st

from shallow_mirror.streaming.planning.rate_limiter import WHOLE_MIRROR, CopiedBytes, RateLimitedPlan, RateLimiter
from shallow_mirror.types import Segment, SegmentKind, SourcePartition, TargetPartition

KB = 1000
A, B = (SourcePartition("orders", "idA", partition) for partition in range(2))
LOG = SourcePartition("logs", "idL", 0)
NO_LIMIT = 1e15


class Mirror:
    """Copies what is planned, `factor` times as much as was estimated, and plans again `every_s` later."""

    def __init__(
        self, whole: int | None, of_topics: Sequence[tuple[str, int]] = (), *, factor: float = 1.0, batch_bytes: float = KB
    ) -> None:
        self.flow, self.factor, self.batch_bytes = RateLimiter(whole, of_topics, 0.0), factor, batch_bytes
        self.now, self.copied = 0.0, dict[str, int]()
        self.positions: dict[SourcePartition, int] = {}
        self.measures = True

    def plan(self, ends: Mapping[SourcePartition, int], every_s: float = 1.0) -> RateLimitedPlan:
        """Plan with an offset as a byte; a partition that is served at all gets a whole batch."""
        self.now += every_s
        start = {end: self.positions.get(end, 0) for end in ends}
        copied = dict(self.copied) if self.measures else None
        plan = self.flow.plan(
            start, ends, dict.fromkeys(ends, 1.0), NO_LIMIT, least_bytes=self.batch_bytes, copied=copied, now=self.now
        )
        for source, end in plan.ends.items():
            if end > start[source]:
                size = round(max(end - start[source], self.batch_bytes) * self.factor)
                self.positions[source] = start[source] + size
                for name in (WHOLE_MIRROR, source.topic):
                    self.copied[name] = self.copied.get(name, 0) + size
        return plan


@pytest.mark.parametrize("every_s", [0.05, 0.3, 1.0, 2.0, 9.0])
@pytest.mark.parametrize("factor", [0.5, 1.0, 3.0])
def test_over_time_the_rate_is_kept_however_often_it_is_planned_and_however_wrong_the_estimate_is(
    every_s: float, factor: float
) -> None:
    mirror, ends = Mirror(10 * KB, factor=factor), dict.fromkeys((A, B, LOG), 10**12)
    while mirror.now < 300:
        mirror.plan(ends, every_s)
    rate = mirror.copied[WHOLE_MIRROR] / mirror.now
    assert 0.85 * 10 * KB <= rate <= 1.15 * 10 * KB


def test_without_measures_the_estimates_count() -> None:
    mirror = Mirror(10 * KB)
    mirror.measures = False
    for _ in range(100):
        mirror.plan({A: 10**12})
    assert 0.9 * 1000 * KB <= mirror.copied[WHOLE_MIRROR] <= 1.1 * 1000 * KB


def test_each_topic_keeps_its_own_rate_and_the_others_theirs() -> None:
    mirror = Mirror(None, [("log.*", 2 * KB), (".*s", 5 * KB)])
    free = SourcePartition("free", "idF", 0)
    for _ in range(100):
        mirror.plan({A: 10**12, B: 10**12, LOG: 10**12, free: 10**6})
    assert mirror.positions[free] == 10**6
    assert mirror.copied["logs"] == pytest.approx(200 * KB, rel=0.05)
    assert mirror.copied["orders"] == pytest.approx(500 * KB, rel=0.05)
    assert mirror.positions[A] == pytest.approx(mirror.positions[B], rel=0.05)


def test_a_batch_larger_than_the_rate_goes_and_is_paid_for() -> None:
    mirror = Mirror(10 * KB, batch_bytes=50 * KB)
    planned = [number for number in range(100) if mirror.plan({A: 10**12}).wait_s == 0.0]
    assert planned[0] == 0
    assert mirror.copied[WHOLE_MIRROR] == pytest.approx(1000 * KB, rel=0.1)


def test_where_it_is_not_enough_for_all_every_partition_has_its_turn() -> None:
    many = {SourcePartition("orders", "idA", number): 10**12 for number in range(40)}
    mirror = Mirror(10 * KB, batch_bytes=5 * KB)
    for _ in range(40):
        before = dict(mirror.positions)
        mirror.plan(many)
        assert sum(mirror.positions[position] > before.get(position, 0) for position in mirror.positions) <= 4
    served = [mirror.positions[source] for source in many]
    assert max(served) <= 2 * min(served)


def test_what_gathers_while_nothing_is_to_be_copied_is_little() -> None:
    mirror = Mirror(10 * KB)
    for _ in range(1000):
        assert mirror.plan({}).ends == {}
    mirror.plan({A: 10**12})
    assert mirror.copied[WHOLE_MIRROR] <= 20 * KB


def test_a_plan_that_keeps_all_back_says_for_how_long() -> None:
    mirror = Mirror(10 * KB)
    assert mirror.plan({A: 10**12}).wait_s == 0.0
    kept = mirror.plan({A: 10**12}, every_s=0.4)
    assert kept.ends == {A: mirror.positions[A]}
    assert kept.wait_s == pytest.approx(0.6)
    assert mirror.plan({A: 10**12}, every_s=kept.wait_s).wait_s == 0.0


@pytest.mark.thorough
@given(st.dictionaries(st.sampled_from([A, B, LOG]), st.integers(0, 10**7)), st.integers(1_024, 10**6))
def test_all_of_a_backlog_goes_in_the_end_and_nothing_beyond(ends: dict[SourcePartition, int], rate: int) -> None:
    mirror, done = Mirror(rate, [("logs", rate)], batch_bytes=1.0), dict[SourcePartition, int]()
    for _ in range(2 + sum(ends.values()) // rate * 2):
        plan = mirror.plan({source: end for source, end in ends.items() if mirror.positions.get(source, 0) < end})
        assert all(end <= ends[source] for source, end in plan.ends.items())
        done |= plan.ends
    assert {source: end for source, end in ends.items() if end} == {source: end for source, end in done.items() if end}


def test_what_was_copied_is_counted_by_limited_topic_and_in_all() -> None:
    target = TargetPartition("t", "idT", 0)

    def segment(source: SourcePartition, kind: SegmentKind = SegmentKind.DATA) -> Segment:
        return Segment(source=source, source_start=0, source_end=9, kind=kind, target=target, size_bytes=100)

    copied = CopiedBytes({"log.*": KB})
    copied.add([segment(A), segment(LOG), segment(LOG, SegmentKind.EXPIRED)])
    copied.add([segment(LOG)])
    assert copied.totals == {WHOLE_MIRROR: 300, "logs": 200}
