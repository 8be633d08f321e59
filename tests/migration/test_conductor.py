"""A conductor that is killed before or after any of its effects is continued by the next one, forth and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.migration.fake_effects import DENY, FakeEffects, FakeOwner, Kill, KilledError
from tests.migration.stage import Stage

from shallow_mirror.checkpoints.logs.topics import TopicControls
from shallow_mirror.errors import ConfigError, FencedError, RetriableError
from shallow_mirror.groups.report import GroupsReport, Outcome
from shallow_mirror.migration import Phase, WaitsForOutsideError
from shallow_mirror.migration.steps import Direction, Step
from shallow_mirror.types import TopicPartition


def effect_count(direction: Direction, *, is_denied: bool) -> int:
    stage, kill = Stage(is_denied=is_denied), Kill()
    if direction is Direction.ROLLBACK:
        stage.perform(Direction.MOVE)
    stage.perform(direction, kill)
    return kill.count


CASES = [
    pytest.param(direction, is_denied, id=f"{direction}{' with deny' if is_denied else ''}")
    for direction in Direction
    for is_denied in (False, True)
]


@pytest.mark.slow
@pytest.mark.parametrize(("direction", "is_denied"), CASES)
def test_a_conductor_that_is_killed_at_any_effect_is_continued(direction: Direction, is_denied: bool) -> None:
    count = effect_count(direction, is_denied=is_denied)
    assert count > 25
    for at in range(count):
        stage = Stage(is_denied=is_denied)
        if direction is Direction.ROLLBACK:
            stage.perform(Direction.MOVE)
        stage.world.read_only = {"west" if direction is Direction.MOVE else "east"}
        with pytest.raises(KilledError):
            stage.perform(direction, Kill(at))
        phase = stage.perform(direction)
        world, cluster = stage.world, "west" if direction is Direction.MOVE else "east"
        assert phase is (Phase.MOVED if direction is Direction.MOVE else Phase.RETURNED), at
        assert (world.writers, world.is_reading) == (cluster, cluster), at
        assert world.group[cluster] == 40, at
        assert world.read_only == set(), at
        denied = {"west" if direction is Direction.ROLLBACK else "east"} if is_denied else set()
        assert {side for side, acls in world.denied.items() if acls} == denied, at


def test_a_rollback_compares_nothing_from_before_the_move_where_nothing_was_written_since() -> None:
    stage = Stage()
    stage.operator.says = lambda sentence: None  # type: ignore[method-assign]
    stage.perform(Direction.MOVE)
    assert stage.perform(Direction.ROLLBACK) is Phase.RETURNED


@pytest.mark.slow
@pytest.mark.parametrize("is_denied", [False, True])
def test_an_abort_at_any_effect_before_the_point_of_no_return_leaves_nothing_behind(is_denied: bool) -> None:
    aborted = 0
    for at in range(effect_count(Direction.MOVE, is_denied=is_denied)):
        stage = Stage(is_denied=is_denied)
        with pytest.raises(KilledError):
            stage.perform(Direction.MOVE, Kill(at))
        conductor = stage.conductor(Direction.MOVE, Kill())
        if not conductor.state().can_abort:
            with pytest.raises(ConfigError, match=r"point of no return|nothing is under way"):
                conductor.abort()
            continue
        aborted += 1
        stage.world.read_only = {"west"}
        assert stage.abort() is Phase.AT_SOURCE
        assert stage.world.read_only == {"west"}
        assert stage.world.handed == {}
        assert stage.world.prepared == {}
        assert stage.world.denied == {"east": set(), "west": set()}
        stage.world.writers = stage.world.is_reading = "east"
        assert stage.perform(Direction.MOVE) is Phase.MOVED, at
    assert aborted > 15


def test_an_abort_that_is_killed_at_any_effect_is_finished_by_the_next_one() -> None:
    for at in range(8):
        stage = Stage(is_denied=True)
        with pytest.raises(KilledError):
            stage.perform(Direction.MOVE, Kill(20))
        assert stage.world.denied["east"] == {DENY}
        conductor, kill = stage.conductor(Direction.MOVE, Kill()), Kill(at)
        try:
            stage.abort(kill=kill)
        except KilledError:
            if conductor.state().is_under_way:
                stage.abort()
        assert conductor.state().phase is Phase.AT_SOURCE
        assert (stage.world.denied["east"], stage.world.handed) == (set(), {})


def test_without_waiting_the_conductor_says_who_has_to_act_and_continues_later() -> None:
    stage = Stage()
    stage.world.is_reading = "east"
    stage.operator.waits = lambda outside: None  # type: ignore[method-assign]
    conductor = stage.conductor(Direction.MOVE, Kill(), waits=False)
    conductor.begin(Direction.MOVE)
    with pytest.raises(WaitsForOutsideError) as waiting:
        conductor.run()
    assert waiting.value.outside.step is Step.STOP_WRITERS
    assert waiting.value.outside.request == "stop the writers of orders and the consumers of groups billing at east"
    stage.world.writers = ""
    with pytest.raises(WaitsForOutsideError, match="stop the consumers of groups billing at east"):
        conductor.run()
    stage.world.is_reading = ""
    conductor.run()
    assert conductor.state().phase is Phase.MOVED


def test_records_written_after_the_writers_had_stopped_are_copied_before_the_point_of_no_return(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    conductor, late = stage.conductor(Direction.MOVE, Kill()), [5]
    effects: Any = conductor._effects

    def controls() -> TopicControls:
        found = FakeEffects.controls(effects)
        if found.handed_over and late:
            stage.world.logs["east"] += late.pop()
        return found

    monkeypatch.setattr(effects, "controls", controls)
    conductor.begin(Direction.MOVE)
    conductor.run()
    assert [row.step for row in stage.owner.rows_so_far if row.event == "reopened"] == ["stop writers"]
    assert stage.world.logs["west"] >= stage.world.logs["east"]


def test_a_topic_that_groups_read_since_the_check_is_checked_before_anybody_is_asked_for_its_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    conductor = stage.conductor(Direction.MOVE, Kill())
    effects: Any = conductor._effects
    move_groups, listed = effects.move_groups, list(stage.world.topics)

    def with_later_topic(*, is_applied: bool) -> GroupsReport | None:
        report: GroupsReport = move_groups(is_applied=is_applied)
        if len(stage.world.topics) > len(listed) or any(row.event == "reopened" for row in stage.owner.rows_so_far):
            return report
        stage.world.topics.append("orders.new")
        (group,) = report.groups
        later = group.partitions[0]._replace(topic_partition=TopicPartition("orders.new", 0), outcome=Outcome.WAITS)
        return replace(report, groups=(replace(group, partitions=(*group.partitions, later)),))

    monkeypatch.setattr(effects, "move_groups", with_later_topic)
    conductor.begin(Direction.MOVE)
    conductor.run()
    assert [row.step for row in stage.owner.rows_so_far if row.event == "reopened"] == ["check"]
    assert any("orders.new appeared since the check" in sentence for sentence in stage.operator.sentences)
    assert not any("make these offsets committable" in request for request in stage.operator.requests)


def test_a_conductor_that_is_fenced_commits_no_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    conductor = stage.conductor(Direction.MOVE, Kill())
    effects: Any = conductor._effects
    calls: list[bool] = []

    class Owner(FakeOwner):
        def rows(self) -> Any:
            if calls:
                raise FencedError("conductor 2 has taken over")
            return super().rows()

    def move_groups(*, is_applied: bool) -> GroupsReport | None:
        calls.append(is_applied)
        raise RetriableError("PRODUCER_FENCED", "the transaction of another conductor")

    conductor._owner = Owner(stage.owner.rows_so_far, stage.owner.kill, stage.owner.now_ms)
    monkeypatch.setattr(effects, "move_groups", move_groups)
    conductor.begin(Direction.MOVE)
    with pytest.raises(FencedError):
        conductor.run()
    assert calls == [True], "it would end the transaction of the conductor that has taken over"
