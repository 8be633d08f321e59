"""The product over the model: many schedules, and some that are named."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from tests.model import effects
from tests.model.invariants import Violation
from tests.model.moves import Delivery, Kind, Move
from tests.model.mutations import (
    decide_behind_forgotten_records,
    fence_other_slots_after_the_decision,
    planted,
    take_a_repair_for_done,
)
from tests.model.programs import Library
from tests.model.scenarios import ONE_SLOT, SCENARIOS, TWO_SLOTS
from tests.model.search import Search, begun
from tests.model.source import Scenario
from tests.model.target_cluster import Markers
from tests.model.world import World, run_on

pytestmark = pytest.mark.thorough

SCHEDULES_OF_THE_SMALLEST = 12_000
SCHEDULES_OF_A_SCENARIO = 500


@pytest.mark.thorough
def test_nothing_is_lost_or_repeated_in_the_smallest_mirror(library: Library) -> None:
    tally = Search(library, ONE_SLOT, 2).run(SCHEDULES_OF_THE_SMALLEST)
    assert tally.finding is None, tally.finding
    assert tally.schedules == SCHEDULES_OF_THE_SMALLEST


@pytest.mark.parametrize("name", SCENARIOS)
def test_nothing_is_lost_or_repeated_whatever_the_surroundings(name: str, library: Library) -> None:
    start = begun(library, SCENARIOS[name], 1, random.Random(name))
    tally = Search(library, SCENARIOS[name], len(start[1]) + 2, start=start).run(SCHEDULES_OF_A_SCENARIO)
    assert tally.finding is None, tally.finding


def test_whatever_step_a_retry_of_the_quarantine_crashes_at_nothing_is_lost_or_released_twice(library: Library) -> None:
    tally = Search(library, SCENARIOS["what was refused is released"], 1, allows=lambda move: move.kind is Kind.CRASH).run()
    assert tally.finding is None, tally.finding
    assert tally.schedules > 60


# --- by Hypothesis, which finds its own schedules and makes a failing one short

_LIBRARY = Library()


class Mirror(RuleBasedStateMachine):
    """`pick` chooses among the moves of a kind that are possible."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World(_LIBRARY, TWO_SLOTS)

    def disturb(self, pick: int, is_meant: Callable[[Move], bool]) -> None:
        moves = [move for move in self.world.deviations() if is_meant(move)]
        if moves:
            self.world.take(moves[pick % len(moves)])

    @rule(moves=st.integers(1, 12))
    def go_on(self, moves: int) -> None:
        for _ in range(moves):
            default = self.world.default()
            if default is not None:
                self.world.take(default)

    @precondition(lambda self: self.world.current is not None)
    @rule()
    def crash(self) -> None:
        self.world.take(Move(Kind.CRASH, self.world.current))

    @rule(pick=st.integers(0, 7))
    def another_run(self, pick: int) -> None:
        self.disturb(pick, lambda move: move.kind in (Kind.START, Kind.SWITCH))

    @rule(pick=st.integers(0, 7), delivery=st.sampled_from([one for one in Delivery if one is not Delivery.OK]))
    def lose_or_delay(self, pick: int, delivery: Delivery) -> None:
        self.disturb(pick, lambda move: move.delivery is delivery)

    @rule(pick=st.integers(0, 7))
    def what_was_late_comes(self, pick: int) -> None:
        self.disturb(pick, lambda move: move.kind in (Kind.LETTER, Kind.ZOMBIE, Kind.ZOMBIE_STEP, Kind.RELEASE))

    @rule(pick=st.integers(0, 7))
    def lose_a_task(self, pick: int) -> None:
        self.disturb(pick, lambda move: move.kind is Kind.LOSE_TASK)

    @rule(pick=st.integers(0, 7), markers=st.sampled_from([Markers.WRITTEN, Markers.HELD, Markers.FIRST_HELD]))
    def time_out(self, pick: int, markers: Markers) -> None:
        self.disturb(pick, lambda move: move.kind is Kind.TIME_OUT and move.markers is markers)

    @rule(pick=st.integers(0, 7))
    def evidence_goes(self, pick: int) -> None:
        self.disturb(pick, lambda move: move.kind in (Kind.EXPIRE, Kind.TRUNCATE))

    @rule(pick=st.integers(0, 7))
    def the_checkpoint_goes(self, pick: int) -> None:
        self.disturb(pick, lambda move: move.kind in (Kind.LOSE_CHECKPOINT, Kind.REWIND_CHECKPOINT))

    def teardown(self) -> None:
        run_on(self.world)


TestMirror = Mirror.TestCase
TestMirror.settings = settings(
    max_examples=25,
    stateful_step_count=20,
    derandomize=True,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)


# --- schedules that were found, by what happens in them


def until(world: World, is_there: Callable[[World], bool]) -> None:
    while not is_there(world):
        move = world.default()
        assert move is not None, "it never came to that"
        world.take(move)


def task_asks(kind: type, *, of_run: int) -> Callable[[World], bool]:
    """A task of this run is about to ask for this."""
    return lambda world: any(task.owner == of_run and isinstance(task.node.request, kind) for task in world.tasks.values())


def run_asks(kind: type, *, of_run: int) -> Callable[[World], bool]:
    return lambda world: of_run in world.processes and isinstance(world.processes[of_run].node.request, kind)


def with_a_zombie_that_wrote(library: Library, scenario: Scenario) -> World:
    """The last task of a run that is gone has just written, after the next run has fenced it and before that one's tasks begin."""
    world = World(library, scenario)
    until(world, task_asks(effects.InitProducerId, of_run=0))
    world.take(Move(Kind.CRASH, 0))
    until(world, task_asks(effects.InitProducerId, of_run=1))
    world.take(Move(Kind.ZOMBIE, max(number for number, task in world.tasks.items() if task.owner is None)))
    return world


def zombie_whose_abort_is_forgotten(library: Library) -> World:
    """A task of a run that is gone writes after the next run has looked for what is open; what it wrote is aborted by the
    next task of its slot, and the coordinator is killed before it has written the marker."""
    world = with_a_zombie_that_wrote(library, replace(ONE_SLOT, forgets_aborts=True))
    [task] = world.tasks
    world.take(Move(Kind.TASK, task, markers=Markers.FORGOTTEN))
    run_on(world)
    return world


def test_a_zombie_whose_abort_was_forgotten_is_not_committed_with_the_next_decision(library: Library) -> None:
    assert zombie_whose_abort_is_forgotten(library).is_confirmed
    with planted(decide_behind_forgotten_records), pytest.raises(Violation, match="duplicated"):
        zombie_whose_abort_is_forgotten(Library())


def zombie_under_a_slot_that_moved(library: Library) -> World:
    """As before, but the partition belongs to another slot by now, and the zombie's transaction times out: nothing fences it in
    front of the decision, and readers see nothing behind it."""
    world = with_a_zombie_that_wrote(library, replace(TWO_SLOTS, layouts=((0, 1), (0, 0)), forgets_aborts=True))
    for name in world.target.ongoing():
        world.take(Move(Kind.TIME_OUT, name, markers=Markers.FORGOTTEN))
    run_on(world)
    return world


def test_what_a_zombie_left_open_does_not_hide_a_decision_of_another_slot_for_ever(library: Library) -> None:
    assert zombie_under_a_slot_that_moved(library).is_confirmed
    with planted(fence_other_slots_after_the_decision), pytest.raises(Violation, match="does not end"):
        zombie_under_a_slot_that_moved(Library())


COMMITTED_ELSEWHERE = Scenario(logs=("r", "r"), plan_sizes=(1,), layouts=((0, 0),), forgets_commits=True, has_zombies=False)
COMMITTED_NOWHERE = replace(ONE_SLOT, forgets_commits=True, has_zombies=False)


def repair_that_is_aborted(library: Library, scenario: Scenario) -> World:
    """A coordinator forgets the marker of a commit at the first place, and the run that wants to write it again is killed right
    before it ends its empty transaction, which times out."""
    world = World(library, scenario)
    until(world, run_asks(effects.EndTxn, of_run=0))
    world.take(Move(Kind.PERFORM, 0, markers=Markers.LAST_FORGOTTEN))
    until(world, run_asks(effects.EndTxn, of_run=0))
    world.take(Move(Kind.CRASH, 0))
    for name in world.target.ongoing():
        world.take(Move(Kind.TIME_OUT, name))
    run_on(world)
    return world


@pytest.mark.parametrize("scenario", [COMMITTED_NOWHERE, COMMITTED_ELSEWHERE])
def test_what_ended_as_aborted_because_its_repair_was_aborted_is_copied_again(scenario: Scenario, library: Library) -> None:
    assert repair_that_is_aborted(library, scenario).is_confirmed
    with planted(take_a_repair_for_done), pytest.raises(Violation, match="a settled row says"):
        repair_that_is_aborted(Library(), scenario)


def test_a_run_that_was_taken_over_ends_as_fenced_also_where_the_evidence_is_gone(library: Library) -> None:
    world = World(library, replace(ONE_SLOT, keeps_receipts=False, keeps_logs=False))
    until(world, run_asks(effects.EndTxn, of_run=0))
    world.take(Move(Kind.START))
    until(world, lambda world: 1 not in world.processes)
    assert 0 in world.processes
    run_on(world)
    assert world.is_confirmed
    assert not world.is_stuck
