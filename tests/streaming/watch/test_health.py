"""What a probe learns of a run in each of its states, by a clock of the test."""

from __future__ import annotations

import pytest

from shallow_mirror.streaming.watch.health import LEAST_LIVE_S, LEAST_READY_S, HealthLimits, ProbeResult, RunHealth

LIMITS = HealthLimits(live_s=600.0, ready_s=66.0)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def health(clock: Clock) -> RunHealth:
    return RunHealth(LIMITS, clock)


def copying(health: RunHealth) -> RunHealth:
    """Return the health of a run that has taken over its tables and made its first plan."""
    health.on_step("start: starting Spark")
    health.on_take_over()
    health.on_progress()
    return health


def test_a_start_is_live_and_not_ready_until_the_first_plan(health: RunHealth) -> None:
    assert (health.live(), health.ready()) == (ProbeResult(True, "live"), ProbeResult(False, "not ready: waits for: start"))
    health.on_take_over()
    health.on_step("start: waiting for the first plan")
    assert health.ready().text == "not ready: waits for: start: waiting for the first plan"
    health.on_progress()
    assert (health.live(), health.ready()) == (ProbeResult(True, "live"), ProbeResult(True, "ready"))


def test_a_run_that_plans_without_owning_its_tables_is_not_ready(health: RunHealth) -> None:
    health.on_progress()
    assert health.ready().text == "not ready: does not own its tables"


def test_a_run_that_retries_an_unreachable_broker_is_live_and_not_ready_for_as_long_as_it_retries(
    health: RunHealth, clock: Clock
) -> None:
    copying(health)
    for _ in range(100):
        clock.now += 30
        health.on_step("query: cannot connect to kafka.west:9092")
        assert health.live().is_passed
        assert health.ready().text == "not ready: waits for: query: cannot connect to kafka.west:9092"
    health.on_step("start: starting the query")
    assert not health.ready().is_passed
    health.on_progress()
    assert health.ready().is_passed


def test_a_run_with_nothing_to_copy_is_ready_while_its_planner_plans(health: RunHealth, clock: Clock) -> None:
    copying(health)
    for _ in range(1_000):
        clock.now += 60
        health.on_progress()
        health.on_idle_loop(is_progress=False)
        assert health.ready().is_passed
    clock.now += LIMITS.ready_s + 1
    health.on_idle_loop(is_progress=False)
    assert health.live().is_passed
    assert health.ready().text == "not ready: neither a plan nor a decision for 67 s, the limit is 66 s"


def test_the_loop_counts_as_a_plan_where_the_planner_leaves_no_state(health: RunHealth, clock: Clock) -> None:
    copying(health)
    clock.now += 10_000
    health.on_idle_loop(is_progress=True)
    assert (health.live().is_passed, health.ready().is_passed) == (True, True)


def test_a_planner_that_waits_for_the_source_makes_the_run_not_ready_until_it_plans(health: RunHealth) -> None:
    copying(health).on_wait("ListOffsets at kafka.east:9092")
    assert health.ready().text == "not ready: waits for: ListOffsets at kafka.east:9092"
    health.on_progress()
    assert health.ready().is_passed


def test_a_micro_batch_that_hangs_is_first_not_ready_and_then_not_live_although_the_loop_beside_it_turns(
    health: RunHealth, clock: Clock
) -> None:
    copying(health)
    with health.micro_batch():
        clock.now += LIMITS.ready_s + 1
        health.on_idle_loop(is_progress=True)
        assert (health.live().is_passed, health.ready().is_passed) == (True, False)
        clock.now += LIMITS.live_s
        health.on_idle_loop(is_progress=True)
        health.on_wait("EndTxn at kafka.west:9092")
        assert health.live() == ProbeResult(
            False, "not live: the run has not moved for 667 s, the limit is 600 s: in a micro-batch"
        )
    assert health.live().is_passed


def test_a_decision_in_a_long_micro_batch_keeps_the_run_live_and_ready(health: RunHealth, clock: Clock) -> None:
    copying(health)
    with health.micro_batch():
        for _ in range(100):
            clock.now += LIMITS.ready_s
            health.on_progress()
            assert (health.live().is_passed, health.ready().is_passed) == (True, True)


@pytest.mark.parametrize(
    ("step", "where"), [("start: starting Spark", "start: starting Spark"), (None, "between two micro-batches")]
)
def test_a_loop_that_stands_outside_of_a_micro_batch_is_not_live(
    health: RunHealth, clock: Clock, step: str | None, where: str
) -> None:
    copying(health)
    if step is not None:
        health.on_step(step)
    clock.now += LIMITS.live_s
    assert health.live().is_passed
    clock.now += 1
    assert health.live().text.endswith(f"the limit is 600 s: {where}")


def test_a_run_that_has_ended_is_not_ready(health: RunHealth) -> None:
    copying(health).on_end()
    assert (health.live().is_passed, health.ready().text) == (True, "not ready: waits for: end of the process")


@pytest.mark.parametrize(
    ("trigger_s", "commit_interval_s", "round_timeout_ms", "limits"),
    [
        (2.0, 20.0, 300_000, HealthLimits(live_s=600.0, ready_s=66.0)),
        (0.0, 1.0, 10_000, HealthLimits(live_s=LEAST_LIVE_S, ready_s=LEAST_READY_S)),
        (3600.0, 20.0, 900_000, HealthLimits(live_s=1800.0, ready_s=10_860.0)),
    ],
)
def test_limits_follow_the_trigger_the_commit_interval_and_the_transaction_timeout(
    trigger_s: float, commit_interval_s: float, round_timeout_ms: int, limits: HealthLimits
) -> None:
    assert (
        HealthLimits.of_run(trigger_s=trigger_s, commit_interval_s=commit_interval_s, round_timeout_ms=round_timeout_ms) == limits
    )
