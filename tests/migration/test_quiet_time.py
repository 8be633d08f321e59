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


def stamps(producer_id: int, *seconds: float, partition: int = 0, topic: str = "orders") -> list[Stamp]:
    return [Stamp(TopicPartition(topic, partition), producer_id, int(second * 1000)) for second in seconds]


def test_a_busy_producer_does_not_hide_the_pauses_of_another_one() -> None:
    busy, slow = stamps(7, *range(60)), stamps(8, 50, 0, 20)
    assert longest_gap_s(busy) == 1.0
    assert longest_gap_s([*slow, *busy]) == 30.0
    assert longest_gap_s([*stamps(7, 0), *stamps(7, 9, topic="audit"), *stamps(9, 0)]) == 0.0
    assert longest_gap_s([]) == 0.0


@pytest.mark.parametrize("partitions", [1, 3])
@pytest.mark.parametrize("turn_s", [(0.0,), (0.0, 1.0, 2.0), (0.0, 20.0, 40.0)])
def test_a_writer_that_opens_a_producer_for_each_turn_pauses_between_them(turn_s: tuple[float, ...], partitions: int) -> None:
    def turn(number: int) -> list[Stamp]:
        began_s = number * (turn_s[-1] + 20)
        return stamps(100 + number, *(began_s + second for second in turn_s), partition=number % partitions)

    turns = [stamp for number in range(8) for stamp in turn(number)]
    assert longest_gap_s(turns) == 20.0
    assert longest_gap_s(reversed(turns)) == 20.0, "partitions are read in any order"
    seconds = range(8 * (int(turn_s[-1]) + 20))
    assert longest_gap_s([*turns, *stamps(7, *seconds, partition=partitions)]) == 20.0, "a busy one does not hide them"
    assert longest_gap_s([*turns, *stamps(-1, *seconds)]) == 20.0


def test_two_turns_show_a_pause_that_is_longer_than_they() -> None:
    assert longest_gap_s([*stamps(1, 0), *stamps(2, 20)]) == 20.0
    assert longest_gap_s([*stamps(1, 0, 1), *stamps(2, 21, 22)]) == 20.0
    assert longest_gap_s([*stamps(-1, 0, 1), *stamps(2, 21, 22)]) == 20.0
    day_s = 86_400.0
    assert longest_gap_s([*stamps(1, 0), *stamps(2, day_s), *stamps(3, 2 * day_s)]) == day_s


@pytest.mark.parametrize("restarts", [1, 3])
def test_a_restart_is_no_pause_between_turns(restarts: int) -> None:
    """Each producer writes once a second for ten minutes, and the next one begins 30 s later."""
    written = [
        stamp
        for number in range(restarts + 1)
        for stamp in stamps(number, *(number * 630 + second for second in range(601)), partition=number % 2)
    ]
    assert longest_gap_s(written) == 1.0
    young = stamps(50, (restarts + 1) * 630)
    assert longest_gap_s([*written, *young]) == 1.0, "a producer that has just been started again"


def test_instances_that_begin_after_one_pause_do_not_make_it_a_rhythm() -> None:
    """A service whose two instances start again, 100 s after the start of the one before."""
    assert longest_gap_s([*stamps(1, *range(101)), *stamps(2, *range(130, 200)), *stamps(3, *range(132, 200))]) == 1.0


def test_a_pause_that_did_not_come_again_is_forgotten() -> None:
    """A trial with a producer of its own, 40 s before the application began; or a job that runs no more."""
    trials = [*stamps(1, 0), *stamps(2, 40), *stamps(3, 80)]
    assert longest_gap_s([*trials, *stamps(4, *range(120, 150))]) == 40.0
    assert longest_gap_s([*trials, *stamps(4, *range(120, 600))]) == 1.0
    assert longest_gap_s([*trials, *stamps(-1, *range(600))]) == 1.0


def test_a_producer_that_may_have_written_before_what_was_read_ends_no_pause() -> None:
    """The last batches of a busy partition begin 10 s ago, those of another one are from an hour ago."""
    read = [*stamps(1, 0), *stamps(2, *range(3600, 3610), partition=1), *stamps(3, *range(3601, 3610), partition=1)]
    assert longest_gap_s(read) == 3601.0
    assert longest_gap_s(read, {TopicPartition("orders", 1)}) == 1.0


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
