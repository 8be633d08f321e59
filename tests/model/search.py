"""The search for a schedule that breaks an invariant: all schedules with few deviations from the default moves."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.model.invariants import ViolationError
from tests.model.moves import Move
from tests.model.programs import Library
from tests.model.source import Scenario
from tests.model.world import World


class Deviation(NamedTuple):
    """After `step` moves this one instead of the default."""

    step: int
    move: Move

    def __str__(self) -> str:
        return f"after {self.step} moves: {self.move}"


Schedule = tuple[Deviation, ...]

BEGINNING_RATE = 0.04


@dataclass(frozen=True, slots=True)
class Finding:
    scenario: Scenario
    schedule: Schedule
    violation: str

    def __str__(self) -> str:
        return "\n  ".join([self.violation, str(self.scenario), *map(str, self.schedule)])


@dataclass(slots=True)
class Tally:
    """`schedules` were followed to their end, or to a state from which all that can follow had been followed before."""

    schedules: int = 0
    moves: int = 0
    stuck: int = 0
    states: set[int] = field(default_factory=set)
    finding: Finding | None = None

    def __str__(self) -> str:
        return (
            f"{self.schedules} schedules, {self.moves} moves, {len(self.states)} distinct states, "
            f"{self.stuck} rightly asked for the operator: {self.finding or 'nothing found'}"
        )


class Search:
    """Every schedule with up to so many deviations, until one breaks an invariant; with `start` those that begin with it.

    `allows` narrows the deviations. Where a state was reached before with as many deviations left, all that can follow is known. With `chance` the order is
    drawn, so that the beginning of a search that is cut short is no corner of it.
    """

    def __init__(
        self,
        library: Library,
        scenario: Scenario,
        deviations: int,
        *,
        allows: Callable[[Move], bool] = lambda _move: True,
        chance: random.Random | None = None,
        start: tuple[World, Schedule] | None = None,
    ) -> None:
        self.scenario, self.deviations, self._allows, self._chance = scenario, deviations, allows, chance
        self.tally = Tally()
        self._left: dict[int, int] = {}
        self._pending: list[tuple[World, Schedule]] = []
        self._pending.append(start or (World(library, scenario), ()))

    def run(self, most_schedules: int | None = None) -> Tally:
        tally = self.tally
        while self._pending and tally.finding is None and (most_schedules is None or tally.schedules < most_schedules):
            if self._chance is not None:
                at = self._chance.randrange(len(self._pending))
                self._pending[at], self._pending[-1] = self._pending[-1], self._pending[at]
            world, schedule = self._pending.pop()
            self._try(world.fork(), schedule)
        tally.states = set(self._left)
        return tally

    def _try(self, world: World, schedule: Schedule) -> None:
        before = world.steps
        try:
            if schedule and world.steps == schedule[-1].step:
                world.take(schedule[-1].move)
            self._follow(world, schedule)
        except ViolationError as violation:
            self.tally.finding = Finding(self.scenario, schedule, str(violation))
        self.tally.schedules += 1
        self.tally.moves += world.steps - before
        self.tally.stuck += world.is_stuck

    def _follow(self, world: World, schedule: Schedule) -> None:
        left = self.deviations - len(schedule)
        while self._left.get(key := world.key(), -1) < left:
            self._left[key] = left
            default = world.default()
            if default is None:
                return
            if left:
                here = world.fork()
                moves = filter(self._allows, world.deviations())
                self._pending += [(here, (*schedule, Deviation(here.steps, move))) for move in moves]
            world.take(default)


def begun(library: Library, scenario: Scenario, deviations: int, chance: random.Random) -> tuple[World, Schedule]:
    """Return a world that has come to so many deviations, or to its end. Raises Violation, with the finding as its text."""
    world = World(library, scenario)
    schedule: list[Deviation] = []
    while len(schedule) < deviations and (move := world.default()) is not None:
        moves = world.deviations() if chance.random() < BEGINNING_RATE else []
        if moves:
            move = chance.choice(moves)
            schedule.append(Deviation(world.steps, move))
        try:
            world.take(move)
        except ViolationError as violation:
            raise ViolationError(str(Finding(scenario, tuple(schedule), str(violation)))) from violation
    return world, tuple(schedule)
