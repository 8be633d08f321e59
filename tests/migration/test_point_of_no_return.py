"""What changes between a step and the point of no return is seen there: the step is done again, or the move is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.migration.fake_effects import PARTITION, FakeWorld, Kill
from tests.migration.stage import Stage

from shallow_mirror.errors import ConfigError, CopiesDifferError, FencedError, LateWritesError
from shallow_mirror.migration import Phase
from shallow_mirror.migration.point_of_no_return import PointOfNoReturn
from shallow_mirror.migration.steps import Direction, Step

Change = Callable[[FakeWorld], None]


def after(stage: Stage, step: Step, change: Change) -> None:
    """Let `change` happen once, right after the row of `step` was written."""
    changes = [change]

    def done(wave: str, done_step: Step, detail: Mapping[str, Any]) -> None:
        if done_step is step and changes:
            changes.pop()(stage.world)

    stage.operator.done = done  # type: ignore[method-assign,assignment]


def reopened(stage: Stage) -> list[str]:
    return [row.step for row in stage.owner.rows_so_far if row.event == "reopened"]


def passed_on(stage: Stage) -> Mapping[str, Any]:
    """Return what the row of the point of no return has recorded."""
    return next(row.detail for row in stage.owner.rows_so_far if row.step == Step.POINT_OF_NO_RETURN and row.event == "done")


def write_late(world: FakeWorld) -> None:
    world.logs["east"] += 5


def write_and_copy(world: FakeWorld) -> None:
    world.logs["east"] += 5
    world.logs["west"] += 5


def commit_more(world: FakeWorld) -> None:
    world.group["east"] = 100


def start_member(world: FakeWorld) -> None:
    world.is_reading = "east"


def create_topic(world: FakeWorld) -> None:
    world.topics.append("orders-eu")


def delete_denies(world: FakeWorld) -> None:
    world.denied["east"].clear()


LATE = [
    pytest.param(change, step, again, id=f"{change.__name__} after {step}")
    for change, again, steps in (
        (write_late, Step.STOP_WRITERS, (Step.COPY_REST, Step.HAND_OVER, Step.VERIFY_REST, Step.COMMIT_GROUPS)),
        (write_and_copy, Step.STOP_WRITERS, (Step.COPY_REST, Step.COMMIT_GROUPS)),
        (commit_more, Step.COMMIT_GROUPS, (Step.COMMIT_GROUPS,)),
        (start_member, Step.STOP_GROUPS, (Step.COMMIT_GROUPS,)),
        (create_topic, Step.CHECK, (Step.CHECK, Step.VERIFY, Step.COMMIT_GROUPS)),
    )
    for step in steps
]


@pytest.mark.parametrize(("change", "step", "again"), LATE)
def test_a_step_whose_result_does_not_hold_any_more_is_done_again(change: Change, step: Step, again: Step) -> None:
    stage = Stage()
    after(stage, step, change)
    assert stage.perform(Direction.MOVE) is Phase.MOVED
    assert again in reopened(stage)
    world, found = stage.world, passed_on(stage)
    assert world.group["west"] == world.group["east"]
    assert found["origin_ends"]["orders"]["0"] == world.copied_before_move
    assert found["group_offsets"] == {"billing": {"orders-0": world.group["east"]}}
    assert found["topics"] == world.topics


def test_deny_acls_that_somebody_deletes_are_created_again_before_the_point_of_no_return() -> None:
    stage = Stage(is_denied=True)
    after(stage, Step.VERIFY_REST, delete_denies)
    assert stage.perform(Direction.MOVE) is Phase.MOVED
    assert reopened(stage) == [Step.STOP_WRITERS]
    assert stage.world.denied["east"]


def write_foreign(side: str) -> Change:
    def write(world: FakeWorld) -> None:
        world.logs[side] += 5
        world.foreign[side] += 5

    return write


@pytest.mark.parametrize("step", [Step.VERIFY_REST, Step.COMMIT_GROUPS])
def test_records_that_somebody_writes_to_the_copies_after_their_comparison_end_the_move(step: Step) -> None:
    stage = Stage()
    after(stage, step, write_foreign("west"))
    with pytest.raises(CopiesDifferError, match="5 records are not in the map") as differing:
        stage.perform(Direction.MOVE)
    assert "(source is east here, target is west)" in str(differing.value)
    assert "`shallow-mirror verify mirror.yaml`" in str(differing.value)
    assert reopened(stage) == [Step.VERIFY_REST]
    assert stage.conductor(Direction.MOVE, stage.owner.kill).state().can_abort


@pytest.mark.parametrize("step", [Step.CHECK, Step.VERIFY, Step.VERIFY_REST, Step.COMMIT_GROUPS])
def test_late_writes_end_a_rollback_with_the_command_that_settles_them_and_then_it_goes_on(step: Step) -> None:
    stage = Stage()
    stage.perform(Direction.MOVE)
    after(stage, step, write_foreign("east"))
    with pytest.raises(LateWritesError) as late:
        stage.perform(Direction.ROLLBACK)
    assert "a client wrote to east after the point of no return" in str(late.value)
    assert "(5 records)" in str(late.value)
    assert "`shallow-mirror migrate late-writes FILE --wave all --carry`" in str(late.value)
    stage.world.settled["east"] += range(5)
    assert stage.perform(Direction.ROLLBACK) is Phase.RETURNED


@pytest.mark.parametrize("direction", list(Direction))
def test_the_report_of_a_wave_names_its_late_writes(direction: Direction) -> None:
    stage = Stage()
    if direction is Direction.ROLLBACK:
        stage.perform(Direction.MOVE)
    left = "east" if direction is Direction.MOVE else "west"
    after(stage, Step.POINT_OF_NO_RETURN, write_foreign(left))
    stage.perform(direction)
    report = next(row.detail for row in reversed(stage.owner.rows_so_far) if row.step == Step.REPORT)
    assert [write["record_count"] for write in report["late_writes"]] == [5]
    assert any(f"a client wrote to {left} after the point of no return" in sentence for sentence in stage.operator.sentences)


def test_an_open_transaction_of_somebody_at_the_copies_is_waited_for_and_named() -> None:
    stage = Stage()
    after(stage, Step.VERIFY_REST, lambda world: world.open_from.update(west=world.logs["west"] - 1))
    wait = stage.operator.waits

    def waits(outside: Any) -> None:
        wait(outside)
        if outside.step is Step.VERIFY_REST:
            stage.world.open_from.clear()

    stage.operator.waits = waits  # type: ignore[method-assign]
    assert stage.perform(Direction.MOVE) is Phase.MOVED
    assert "end the transactions that are open at west: the mirror has none" in stage.operator.requests


def test_what_changes_between_two_looks_is_no_evidence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit between the look at the groups and the look at the logs would pass where each is looked at once."""
    stage, changes = Stage(), [commit_more]
    conductor = stage.conductor(Direction.MOVE, stage.owner.kill)
    effects = conductor._effects
    look = effects.mapped_ends

    def mapped_ends() -> Any:
        if Step.COMMIT_GROUPS in conductor.state().done and changes:
            changes.pop()(stage.world)
        return look()

    monkeypatch.setattr(effects, "mapped_ends", mapped_ends)
    conductor.begin(Direction.MOVE)
    conductor.run()
    assert stage.world.group["west"] == stage.world.group["east"] == 100
    assert passed_on(stage)["group_offsets"] == {"billing": {str(PARTITION): 100}}


def pause(world: FakeWorld) -> None:
    world.paused.add("orders")


@pytest.mark.parametrize("step", [Step.CHECK, Step.VERIFY, Step.STOP_WRITERS, Step.COMMIT_GROUPS])
def test_topics_that_are_paused_on_the_way_are_named_with_the_command_that_resumes_them(step: Step) -> None:
    stage = Stage()
    stage.world.logs["west"] = 0
    after(stage, step, pause)
    wait = stage.operator.waits

    def waits(outside: Any) -> None:
        wait(outside)
        if "shallow-mirror resume mirror.yaml orders" in outside.request:
            stage.world.paused.clear()

    stage.operator.waits = waits  # type: ignore[method-assign]
    assert stage.perform(Direction.MOVE) is Phase.MOVED
    assert "resume what was paused: `shallow-mirror resume mirror.yaml orders`" in stage.operator.requests


@pytest.mark.parametrize("step", [Step.CHECK, Step.VERIFY, Step.COPY_REST, Step.COMMIT_GROUPS])
def test_partitions_added_to_the_copies_on_the_way_are_refused_while_the_way_back_can_still_be_opened(step: Step) -> None:
    stage = Stage()
    after(stage, step, lambda world: world.grown.add("west"))
    with pytest.raises(ConfigError, match="fewer partitions"):
        stage.perform(Direction.MOVE)
    assert "orders-1 were added to the copies since the check" in "".join(stage.operator.sentences)
    assert stage.world.handed == {}, "the mirror copies again"
    assert stage.conductor(Direction.MOVE, stage.owner.kill).state().can_abort
    stage.world.grown.add("east")
    assert stage.perform(Direction.MOVE) is Phase.MOVED
    assert passed_on(stage)["other_ends"]["orders"].keys() == {"0", "1"}
    assert stage.perform(Direction.ROLLBACK) is Phase.RETURNED


def test_writers_are_not_stopped_before_the_mirror_has_seen_new_partitions() -> None:
    """Empty ones have no lag. The rest could not be copied before the mirror has found them, within `topics.discovery`."""
    stage = Stage()
    stage.world.grown |= {"east", "west"}
    stage.world.is_growth_registered = False
    request = stage.operator.waits

    def waits(outside: Any) -> None:
        if outside.step is Step.CATCH_UP:
            assert "not registered yet: orders-1" in outside.seen
            stage.world.is_growth_registered = True
        request(outside)

    stage.operator.waits = waits  # type: ignore[method-assign]
    assert stage.perform(Direction.MOVE) is Phase.MOVED
    assert stage.operator.stopped_at[0] is Step.CATCH_UP


def test_nobody_is_asked_to_end_a_transaction_of_a_mirror_that_has_not_confirmed_the_hand_over() -> None:
    """One that was killed has it open until its next start: whoever ended it would lose what it has decided."""
    stage = Stage()
    after(stage, Step.HAND_OVER, lambda world: world.open_from.update(west=world.logs["west"] - 1))
    wait = stage.operator.waits

    def waits(outside: Any) -> None:
        wait(outside)
        if "the mirror has none" in outside.request:
            stage.world.open_from.clear()

    stage.operator.waits = waits  # type: ignore[method-assign]
    assert stage.perform(Direction.MOVE) is Phase.MOVED
    asked = [request for request in stage.operator.requests if "transactions" in request]
    assert asked == [
        "keep the mirror m running, and end the transactions of others that are open at west",
        "end the transactions that are open at west: the mirror has none",
    ]


@pytest.mark.parametrize("what", ["a topic appeared", "a copy was deleted"])
def test_a_conductor_that_was_suspended_takes_nothing_back_that_another_one_has_handed_over(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """The mirror would copy the topics again, and deny their writers at the other cluster."""
    stage = Stage()
    conductor = stage.conductor(Direction.MOVE, Kill())

    def taken_over(world: FakeWorld) -> None:
        def fenced(*_: object, **__: object) -> None:
            raise FencedError("conductor 2 has taken over")

        for method in ("rows", "append"):
            monkeypatch.setattr(type(stage.owner), method, fenced)
        if what == "a topic appeared":
            world.topics.append("orders.new")
        else:
            world.lost, world.is_hand_over_answered = frozenset({"orders"}), False
            world.handed["east"] = "requested"

    when_the_hand_over_is_awaited(monkeypatch, stage, taken_over)
    conductor.begin(Direction.MOVE)
    with pytest.raises(FencedError):
        conductor.run()
    assert stage.world.handed["east"]


def when_the_hand_over_is_awaited(monkeypatch: pytest.MonkeyPatch, stage: Stage, change: Change) -> None:
    """Let `change` happen at the first look of the point of no return at the hand-over."""
    await_hand_over = PointOfNoReturn._await_hand_over

    def awaited(step: PointOfNoReturn) -> Step | None:
        change(stage.world)
        return await_hand_over(step)

    monkeypatch.setattr(PointOfNoReturn, "_await_hand_over", awaited)
