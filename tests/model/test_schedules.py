"""The product over the model: many schedules, and some that are named."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from tests.model import effects
from tests.model.invariants import ViolationError
from tests.model.moves import Delivery, Kind, Move
from tests.model.mutations import (
    Patch,
    abort_what_is_pending,
    decide_behind_forgotten_records,
    fence_other_slots_after_the_decision,
    forget_what_is_pending,
    let_a_receipt_outweigh_the_log,
    planted,
    refuse_only_what_the_writing_producer_forgot,
    remove_before_settling,
    take_a_repair_for_done,
    trust_the_response_to_end_txn_at_a_start,
)
from tests.model.programs import Library
from tests.model.scenarios import ONE_SLOT, SCENARIOS, TWO_PARTITIONS_IN_A_SLOT, TWO_SLOTS
from tests.model.search import Search, begun
from tests.model.source import Scenario
from tests.model.target_cluster import Markers
from tests.model.world import World, run_on

pytestmark = pytest.mark.thorough

SCHEDULES_OF_THE_SMALLEST = 4_000
SCHEDULES_OF_A_SCENARIO = 150


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

    @rule(pick=st.integers(0, 7), delivery=st.sampled_from([delivery for delivery in Delivery if delivery is not Delivery.OK]))
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
    """Return whether a task of this run is about to send such a request."""
    return lambda world: any(task.owner == of_run and isinstance(task.node.request, kind) for task in world.tasks.values())


def run_asks(kind: type, *, of_run: int) -> Callable[[World], bool]:
    return lambda world: of_run in world.processes and isinstance(world.processes[of_run].node.request, kind)


def with_a_zombie_that_wrote(library: Library, scenario: Scenario) -> World:
    """Let the last task of an ended run write after the next run has fenced it, before the tasks of that run begin."""
    world = World(library, scenario)
    until(world, task_asks(effects.InitProducerId, of_run=0))
    world.take(Move(Kind.CRASH, 0))
    until(world, task_asks(effects.InitProducerId, of_run=1))
    world.take(Move(Kind.ZOMBIE, max(number for number, task in world.tasks.items() if task.owner is None)))
    return world


def zombie_whose_abort_is_forgotten(library: Library) -> World:
    """Let a task of an ended run write after the next run has looked for what is open; what it wrote is aborted by the
    next task of its slot, and the coordinator is killed before it has written the marker."""
    world = with_a_zombie_that_wrote(library, replace(ONE_SLOT, forgets_aborts=True))
    [task] = world.tasks
    world.take(Move(Kind.TASK, task, markers=Markers.FORGOTTEN))
    run_on(world)
    return world


def test_a_zombie_whose_abort_was_forgotten_is_not_committed_with_the_next_decision(library: Library) -> None:
    assert zombie_whose_abort_is_forgotten(library).is_confirmed
    with planted(decide_behind_forgotten_records), pytest.raises(ViolationError, match="duplicated"):
        zombie_whose_abort_is_forgotten(Library())


def zombie_under_a_slot_that_moved(library: Library) -> World:
    """As before, but the partition belongs to another slot by now, and the zombie's transaction times out: nothing fences it in
    front of the decision, and readers see nothing behind it."""
    world = with_a_zombie_that_wrote(library, replace(TWO_SLOTS, layouts=((0, 1), (0, 0)), forgets_aborts=True))
    for name in world.target.ongoing():
        world.take(Move(Kind.TIME_OUT, name, markers=Markers.FORGOTTEN))
    run_on(world)
    return world


@pytest.mark.parametrize(
    "second",
    [Move(Kind.TIME_OUT, "m-1", markers=Markers.LAST_FORGOTTEN), Move(Kind.PERFORM, 2, markers=Markers.LAST_FORGOTTEN)],
    ids=["it times out", "its markers are forgotten"],
)
def test_an_abort_that_comes_to_nothing_while_it_is_repeated_is_repeated_again(second: Move, library: Library) -> None:
    deviations = {23: Move(Kind.START), 92: Move(Kind.TIME_OUT, "m-1", markers=Markers.LAST_FORGOTTEN), 115: second}
    world = World(library, SCENARIOS["slots move, markers of aborts are forgotten"])
    while (move := deviations.pop(world.steps, None) or world.default()) is not None:
        world.take(move)
    assert deviations == {}


@pytest.mark.parametrize(
    "first",
    [{14: Move(Kind.CRASH, 0)}, {9: Move(Kind.PERFORM, 0, Delivery.LATE)}, {3: Move(Kind.PERFORM, 0, Delivery.LOST)}],
    ids=str,
)
def test_receipts_of_all_slots_whose_markers_are_forgotten_do_not_use_up_the_time_of_every_start(
    first: dict[int, Move], library: Library
) -> None:
    """A coordinator that was killed forgets the markers of every slot: receipts that stay pending are waited for once, together."""
    begin = {14: 54, 9: 43, 3: 42}[next(iter(first))]
    deviations = {
        **first,
        begin: Move(Kind.TIME_OUT, "m-1", markers=Markers.FORGOTTEN),
        begin + 1: Move(Kind.TIME_OUT, "m-0", markers=Markers.FIRST_FORGOTTEN),
    }
    world = World(library, SCENARIOS["markers are forgotten"])
    while (move := deviations.pop(world.steps, None) or world.default()) is not None:
        world.take(move)
    assert deviations == {}
    assert world.is_confirmed


def test_what_a_zombie_left_open_does_not_hide_a_decision_of_another_slot_for_ever(library: Library) -> None:
    """Two rules keep it from that: all ids are fenced in front of the first decision, and nothing is decided behind open records
    of another id of the mirror. Either is enough here, so the planted bug is that both are missing."""
    assert zombie_under_a_slot_that_moved(library).is_confirmed
    with (
        planted(fence_other_slots_after_the_decision),
        planted(refuse_only_what_the_writing_producer_forgot),
        pytest.raises(ViolationError, match="does not end"),
    ):
        zombie_under_a_slot_that_moved(Library())


COMMITTED_ELSEWHERE = Scenario(logs=("r", "r"), plan_sizes=(1,), layouts=((0, 0),), forgets_commits=True, has_zombies=False)
COMMITTED_NOWHERE = replace(ONE_SLOT, forgets_commits=True, has_zombies=False)


def repair_that_is_aborted(library: Library, scenario: Scenario) -> World:
    """Let a coordinator forget the marker of a commit to the first partition, and the run that wants to write it again is killed right
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
    with planted(take_a_repair_for_done), pytest.raises(ViolationError, match="a settled row says"):
        repair_that_is_aborted(Library(), scenario)


RECEIPTS_ELSEWHERE = replace(TWO_PARTITIONS_IN_A_SLOT, forgets_commits=True, has_zombies=False)
EARLIER_RECEIPT_THERE = replace(RECEIPTS_ELSEWHERE, logs=("rr", "rr"))


def second_transaction_repaired_in_vain(library: Library, scenario: Scenario, markers: Markers) -> World:
    """Let the coordinator forget some markers of the second transaction's commit, and the empty commit that was to write them
    again times out."""
    world = World(library, scenario)
    until(world, run_asks(effects.EndTxn, of_run=0))
    world.take(default_of(world))
    until(world, run_asks(effects.EndTxn, of_run=0))
    world.take(Move(Kind.PERFORM, 0, markers=markers))
    until(world, run_asks(effects.EndTxn, of_run=0))
    world.take(Move(Kind.CRASH, 0))
    for name in world.target.ongoing():
        world.take(Move(Kind.TIME_OUT, name))
    return world


def default_of(world: World) -> Move:
    move = world.default()
    assert move is not None
    return move


def removes_rows(world: World) -> bool:
    process = world.processes.get(1)
    return process is not None and isinstance(process.node.request, effects.Commit) and process.node.request.removed is not None


def crash_at_the_removal(library: Library) -> World:
    """Commit a transaction in one partition and abort it in the other; the start that finds this out is killed right
    behind the commit that removes rows, and retention deletes the evidence in the log."""
    world = second_transaction_repaired_in_vain(library, RECEIPTS_ELSEWHERE, Markers.LAST_FORGOTTEN)
    until(world, removes_rows)
    world.take(default_of(world))
    world.take(Move(Kind.CRASH, 1))
    world.take(Move(Kind.TRUNCATE))
    run_on(world)
    return world


def lost_response_to_the_removal(library: Library, asked: type, delivery: Delivery) -> World:
    """Do the same without a second crash: what the commit, or the look that follows it, answers does not arrive."""
    world = second_transaction_repaired_in_vain(library, RECEIPTS_ELSEWHERE, Markers.LAST_FORGOTTEN)
    until(world, removes_rows)
    if asked is effects.Look:
        world.take(default_of(world))
        until(world, run_asks(effects.Look, of_run=1))
    world.take(Move(Kind.PERFORM, 1, delivery=delivery))
    run_on(world)
    return world


def test_what_is_left_of_a_transaction_is_never_judged_by_the_receipt_of_another(library: Library) -> None:
    assert crash_at_the_removal(library).is_confirmed
    with planted(remove_before_settling), pytest.raises(ViolationError, match="not decided"):
        crash_at_the_removal(Library())


@pytest.mark.parametrize(
    ("asked", "delivery"),
    [(effects.Look, Delivery.LOST), (effects.Commit, Delivery.LOST), (effects.Commit, Delivery.LATE)],
)
def test_a_removal_whose_response_is_lost_is_made_once(asked: type, delivery: Delivery, library: Library) -> None:
    assert lost_response_to_the_removal(library, asked, delivery).is_confirmed


@pytest.mark.parametrize("markers", [Markers.FORGOTTEN, Markers.FIRST_FORGOTTEN, Markers.LAST_FORGOTTEN])
def test_a_receipt_whose_own_marker_became_an_abort_does_not_outweigh_a_commit_marker_in_the_log(
    markers: Markers, library: Library
) -> None:
    world = second_transaction_repaired_in_vain(library, EARLIER_RECEIPT_THERE, markers)
    run_on(world)
    assert world.is_confirmed


def test_a_receipt_alone_would_have_copied_committed_records_again() -> None:
    world = second_transaction_repaired_in_vain(Library(), EARLIER_RECEIPT_THERE, Markers.FIRST_FORGOTTEN)
    with planted(let_a_receipt_outweigh_the_log), pytest.raises(ViolationError, match="not decided"):
        run_on(world)


def operator_aborts_a_partition(library: Library) -> World:
    """Between the decision and the next start an operator aborts the decided transaction in one of its partitions."""
    world = World(library, SCENARIOS["an operator aborts partitions"])
    until(world, run_asks(effects.EndTxn, of_run=0))
    world.take(default_of(world))
    until(world, run_asks(effects.EndTxn, of_run=0))
    world.take(Move(Kind.CRASH, 0))
    world.take(Move(Kind.ABORT_PARTITION, world.target.open_partitions()[0]))
    run_on(world)
    return world


def test_a_partition_that_an_operator_aborted_while_the_mirror_was_down_is_copied_again(library: Library) -> None:
    assert operator_aborts_a_partition(library).is_confirmed
    with planted(trust_the_response_to_end_txn_at_a_start), pytest.raises(ViolationError, match="a settled row says"):
        operator_aborts_a_partition(Library())


LOST_LEADER = Scenario(
    logs=("rrr", "rrr"), plan_sizes=(1,), layouts=((0, 0),), loses_leaders=True, forgets_aborts=True, forgets_commits=True,
    has_zombies=False,
)  # fmt: skip


def copied_of(world: World, partition: int) -> int:
    """Up to where the map covers a partition."""
    return 0 if world.table is None else max((row[4] for row in world.table.rows if row[2] == partition), default=0)


def leader_lost_at_the_commit(
    library: Library, markers: Markers, *, crashes: bool = False, forgets: bool = False, until_others_end: bool = True
) -> World:
    """Take the leader of the second partition away right before EndTxn; the first one is copied on while it has none.

    `forgets`: the coordinator that waits to write the marker is killed, and takes the transaction for complete.
    """
    world = World(library, LOST_LEADER)
    until(world, run_asks(effects.EndTxn, of_run=0))
    world.take(Move(Kind.LOSE_LEADER, LOST_LEADER.topic_partitions[1]))
    world.take(Move(Kind.PERFORM, 0, markers=markers))
    until(
        world, lambda world: world.table is not None and world.table.record is not None and world.table.record.pending_txns != ()
    )
    world.waits_for_leaders = 0
    if crashes:
        world.take(Move(Kind.CRASH, 0))
    if forgets:
        for name in [name for name, txn in world.target.txns.items() if txn.held]:
            world.target.release(name, is_forgotten=True)
    if until_others_end:
        until(world, lambda world: copied_of(world, 0) >= 2)
        assert world.target.leaderless, "the others were copied only after all had leaders again"
    run_on(world)
    return world


@pytest.mark.parametrize("crashes", [False, True])
@pytest.mark.parametrize(
    ("markers", "forgets"),
    [(Markers.WRITTEN, False), (Markers.WRITTEN, True), (Markers.FIRST_FORGOTTEN, False), (Markers.FORGOTTEN, False)],
)
def test_a_committed_transaction_whose_partition_has_no_leader_does_not_stop_the_others(
    markers: Markers, forgets: bool, crashes: bool, library: Library
) -> None:
    assert leader_lost_at_the_commit(library, markers, crashes=crashes, forgets=forgets).is_confirmed


@pytest.mark.parametrize(
    ("bug", "leads_to", "crashes"),
    [
        (forget_what_is_pending, "a settled row says", True),
        (abort_what_is_pending, "does not end", False),
    ],
)
def test_what_is_pending_is_recorded_and_left_alone(bug: Patch, leads_to: str, crashes: bool) -> None:
    with planted(bug), pytest.raises(ViolationError, match=leads_to):
        leader_lost_at_the_commit(Library(), Markers.FIRST_FORGOTTEN, crashes=crashes, until_others_end=False)


def test_an_undecided_transaction_whose_partition_has_no_leader_leaves_its_id_to_itself(library: Library) -> None:
    world = World(library, LOST_LEADER)
    until(world, task_asks(effects.WriteReceipt, of_run=0))
    world.take(Move(Kind.LOSE_LEADER, LOST_LEADER.topic_partitions[1]))
    [task] = world.tasks
    world.take(Move(Kind.TASK, task))
    until(world, run_asks(effects.Commit, of_run=0))
    world.take(Move(Kind.CRASH, 0))
    until(world, lambda world: copied_of(world, 0) >= 1)
    assert world.target.leaderless
    run_on(world)
    assert world.is_confirmed


def test_a_run_that_was_taken_over_ends_as_fenced_also_where_the_evidence_is_gone(library: Library) -> None:
    world = World(library, replace(ONE_SLOT, keeps_receipts=False, keeps_logs=False))
    until(world, run_asks(effects.EndTxn, of_run=0))
    world.take(Move(Kind.START))
    until(world, lambda world: 1 not in world.processes)
    assert 0 in world.processes
    run_on(world)
    assert world.is_confirmed
    assert not world.is_stuck
