"""Writers count as stopped when their topics are at rest for longer than they pause."""

from __future__ import annotations

from typing import Any

import pytest
from tests.migration.fake_effects import FakeWorld
from tests.migration.stage import Stage

from shallow_mirror.config.conductor_config import WriterSettings
from shallow_mirror.migration import Phase
from shallow_mirror.migration.observations import LogEnd, Standstill
from shallow_mirror.migration.quiet_time import QuietTime, Stamp, longest_gap_s
from shallow_mirror.migration.steps import Direction, Step
from shallow_mirror.types import TopicPartition


@pytest.mark.parametrize(
    ("bound_s", "pause_s", "seconds", "is_bounded"),
    [
        (60.0, 0.1, 2.0, False),
        (60.0, 12.0, 24.0, False),
        (60.0, 45.0, 60.0, True),
        (None, 45.0, 2.0, False),
        (1.0, 5.0, 2.0, True),
    ],
)
def test_the_quiet_time_is_twice_the_longest_pause_within_its_bounds(
    bound_s: float | None, pause_s: float, seconds: float, is_bounded: bool
) -> None:
    found = QuietTime.of(2.0, bound_s, pause_s)
    assert (found.seconds, found.is_bounded) == (seconds, is_bounded)
    assert ("writers.longest_quiet" in found.sentence()) is is_bounded


def test_only_a_measured_quiet_time_has_a_bound() -> None:
    assert WriterSettings().longest_quiet_s == 60.0
    assert WriterSettings(longest_quiet="10 minutes").longest_quiet_s == 600.0
    assert WriterSettings(quiet="5 seconds").longest_quiet_s is None
    assert WriterSettings(stop="deny").longest_quiet_s is None
    assert (WriterSettings().quiet_s, WriterSettings(quiet="5 seconds").quiet_s) == (2.0, 5.0)


def test_a_busy_producer_does_not_hide_the_pauses_of_another_one() -> None:
    busy = [Stamp("orders", 7, second * 1000) for second in range(60)]
    slow = [Stamp("orders", 8, second * 1000) for second in (50, 0, 20)]
    assert longest_gap_s(busy) == 1.0
    assert longest_gap_s([*slow, *busy]) == 30.0
    assert longest_gap_s([Stamp("orders", 7, 0), Stamp("audit", 7, 9000), Stamp("orders", 9, 9000)]) == 0.0
    assert longest_gap_s([]) == 0.0


def test_a_rest_that_an_append_ends_is_a_pause() -> None:
    standstill, name = Standstill(), TopicPartition("orders", 0)
    for now_s, end in ((0.0, 5), (30.0, 6), (31.0, 6), (42.0, 7), (50.0, 7)):
        quiet_s = standstill.look({name: LogEnd(end, end)}, now_s)
    assert quiet_s == 8.0
    assert standstill.longest_pause_s == 12.0, "what came before the first append is no pause between two"


class Pausing(FakeWorld):
    """Its writer pauses longer than a fixed quiet time, and stops after a few records, whatever it is told."""

    def __init__(self, pause_s: float, records: int) -> None:
        super().__init__(writers="")
        self.gap_s, self._left, self._next_s = pause_s, records, 0.0

    def tick(self, seconds: float) -> None:
        super().tick(seconds)
        if self._left and self.now_s >= self._next_s:
            self.logs["east"] += 1
            self._left -= 1
            self._next_s = self.now_s + self.gap_s


@pytest.mark.parametrize(("measured_s", "appends"), [(8.0, 3), (8.0, 1)])
def test_writers_that_pause_are_waited_for(measured_s: float, appends: int) -> None:
    stage = Stage()
    stage.world = Pausing(8.0, appends)
    stage.operator._world = stage.world
    stage.world.pause_s = measured_s
    assert stage.perform(Direction.MOVE) is Phase.MOVED
    stopped: Any = next(row.detail for row in stage.owner.rows_so_far if row.step == Step.STOP_WRITERS and row.event == "done")
    assert stopped["ends"]["orders"]["0"] == 100 + appends
    assert stopped["quiet_s"] >= 16.0
    assert [row for row in stage.owner.rows_so_far if row.event == "reopened"] == []
    assert any(
        "stopped once nothing came for 16 s" in row.detail["seen"] for row in stage.owner.rows_so_far if row.event == "waiting"
    )
