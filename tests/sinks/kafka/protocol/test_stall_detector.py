from __future__ import annotations

import pytest
from tests.fakes.clients import SleepingClock

from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.sinks.kafka.protocol import actions
from shallow_mirror.sinks.kafka.protocol.stall_detector import USUAL_S, StallDetector

TIMEOUT_MS = 300_000


@pytest.fixture
def watch(clock: SleepingClock) -> StallDetector:
    source, target = (ClientConfig.from_properties({"bootstrap.servers": where}) for where in ("east:1", "west:2,west:3"))
    return StallDetector(source, target, TIMEOUT_MS, clock)


def test_there_is_nothing_to_report_between_steps_and_while_they_are_young(watch: StallDetector, clock: SleepingClock) -> None:
    assert watch.stalled_step() is None
    with watch.doing(actions.EndTxn.__name__):
        clock.sleep(USUAL_S)
        assert watch.stalled_step() is None
    clock.sleep(1000)
    assert watch.stalled_step() is None


@pytest.mark.parametrize(
    ("action", "seconds", "waits_for"),
    [
        (actions.EndTxn, 11, "EndTxn at west:2,west:3"),
        (actions.AwaitVisible, 11, "AwaitVisible at west:2,west:3"),
        (actions.Decide, 11, "Decide in the offset map"),
        (actions.RunSlots, 151, "its slots, which read from east:1 and write to west:2,west:3"),
    ],
)
def test_a_step_that_lingers_says_for_how_long_and_whom_it_waits_for(
    watch: StallDetector, clock: SleepingClock, action: type, seconds: float, waits_for: str
) -> None:
    with watch.doing(action.__name__):
        clock.sleep(seconds)
        reported = watch.stalled_step()
    assert reported is not None
    assert (reported.waits_for, reported.seconds) == (waits_for, seconds)


def test_slots_that_copy_for_as_long_as_they_are_planned_to_do_not_linger(watch: StallDetector, clock: SleepingClock) -> None:
    with watch.doing(actions.RunSlots.__name__):
        clock.sleep(TIMEOUT_MS / 1000 / 4)
        assert watch.stalled_step() is None


def test_a_step_that_failed_is_over(watch: StallDetector, clock: SleepingClock) -> None:
    with pytest.raises(ZeroDivisionError), watch.doing(actions.EndTxn.__name__):
        clock.sleep(1 / 0)
    clock.sleep(1000)
    assert watch.stalled_step() is None
