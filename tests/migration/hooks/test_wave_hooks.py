"""Hooks of a migration on fakes: called at their steps, again after a crash, and undone by an abort."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.migration.fake_effects import Kill, KilledError
from tests.migration.stage import Stage

from shallow_mirror.config.hook_settings import HookCall, MigrationHook
from shallow_mirror.errors import HookFailedError
from shallow_mirror.groups.report import GroupsReport
from shallow_mirror.migration import Phase, WaitsForOutsideError, view
from shallow_mirror.migration.state import state_of
from shallow_mirror.migration.steps import Direction, Step

BACK = HookCall(command=["back"])


def hook(name: str, **settings: Any) -> MigrationHook:
    return MigrationHook(name=name, command=["switch"], **settings)


HOOKS = [
    hook("told", after=Step.REPORT),
    hook("open", after=Step.ADMIT_WRITERS),
    hook("close", before=Step.STOP_WRITERS, undo=BACK),
    hook("cache", after=Step.COMMIT_GROUPS, undo=BACK, direction="move"),
    hook("announce", before=Step.CHECK),
    hook("home", before=Step.POINT_OF_NO_RETURN, direction="rollback"),
]
OF_MOVE = ["announce", "close", "cache", "open", "told"]
OF_ROLLBACK = ["announce", "close", "home", "open", "told"]


def names(stage: Stage) -> list[str]:
    return [name for name, _ in stage.hooks.calls]


def test_hooks_are_called_at_their_steps_in_both_directions() -> None:
    stage = Stage(hooks=HOOKS)
    assert stage.perform(Direction.MOVE) is Phase.MOVED
    assert names(stage) == OF_MOVE
    assert stage.perform(Direction.ROLLBACK) is Phase.RETURNED
    assert names(stage)[len(OF_MOVE) :] == OF_ROLLBACK
    move, rollback = stage.hooks.documents[1], stage.hooks.documents[len(OF_MOVE) + 1]
    assert move == {
        "id": "m/all/move/1.0/close/do",
        "hook": "close",
        "action": "do",
        "when": "before",
        "step": "stop writers",
        "migration": "m",
        "wave": "all",
        "direction": "move",
        "from": "east",
        "to": "west",
        "topics": ["orders"],
        "groups": ["billing"],
    }
    assert (rollback["id"], rollback["from"], rollback["to"]) == ("m/all/rollback/2.0/close/do", "west", "east")


def test_clients_are_told_to_start_once_the_hooks_behind_the_admission_are_done() -> None:
    stage = Stage(hooks=HOOKS)
    stage.perform(Direction.MOVE)
    said = stage.operator.sentences
    (opened,) = [number for number, line in enumerate(said) if line.startswith("all: hook open: done")]
    (started,) = [number for number, line in enumerate(said) if "NOW: point the writers" in line]
    assert opened < started


@pytest.mark.slow
@pytest.mark.parametrize("direction", Direction)
def test_a_conductor_that_is_killed_at_any_effect_or_hook_calls_every_hook_and_with_the_same_id(direction: Direction) -> None:
    def prepared() -> Stage:
        stage = Stage(hooks=HOOKS)
        if direction is Direction.ROLLBACK:
            stage.perform(Direction.MOVE)
        return stage

    expected = OF_MOVE if direction is Direction.MOVE else OF_ROLLBACK
    kill = Kill()
    prepared().perform(direction, kill)
    for at in range(kill.count):
        stage = prepared()
        before = len(stage.hooks.calls)
        with pytest.raises(KilledError):
            stage.perform(direction, Kill(at))
        assert stage.perform(direction) is (Phase.MOVED if direction is Direction.MOVE else Phase.RETURNED), at
        called = names(stage)[before:]
        assert list(dict.fromkeys(called)) == expected, at
        assert len(called) <= len(expected) + 1, "only the one that was killed is called again"
        assert len({document["id"] for document in stage.hooks.documents[before:]}) == len(expected), at


@pytest.mark.slow
def test_an_abort_at_any_effect_undoes_every_hook_that_may_have_had_an_effect() -> None:
    kill, aborted = Kill(), 0
    Stage(hooks=HOOKS).perform(Direction.MOVE, kill)
    for at in range(kill.count):
        stage = Stage(hooks=HOOKS)
        with pytest.raises(KilledError):
            stage.perform(Direction.MOVE, Kill(at))
        if not stage.conductor(Direction.MOVE, Kill()).state().can_abort:
            continue
        aborted += 1
        done = [name for name in names(stage) if name in ("close", "cache")]
        assert stage.abort() is Phase.AT_SOURCE
        undone = [name for name, action in stage.hooks.calls if action == "undo"]
        assert [name for name in undone if name in done] == done[::-1], at
        assert not any(stage.hooks.effects.get(name) for name in ("close", "cache")), at
        stage.world.writers = stage.world.is_reading = "east"
        assert stage.perform(Direction.MOVE) is Phase.MOVED
    assert aborted > 30


def killed_in_downtime() -> Stage:
    """Return a migration whose conductor was killed behind the hook `close`."""
    stage, kill = Stage(hooks=HOOKS), Kill()
    done = stage.operator.done

    def end(wave: str, step: Step, detail: Mapping[str, Any]) -> None:
        done(wave, step, detail)
        if step is Step.STOP_WRITERS:
            kill.at = kill.count

    stage.operator.done = end  # type: ignore[method-assign]
    with pytest.raises(KilledError):
        stage.perform(Direction.MOVE, kill)
    assert stage.hooks.effects == {"announce": 1, "close": 1}
    return stage


def test_an_abort_that_is_killed_is_finished_by_the_next_one() -> None:
    for at in range(8):
        stage = killed_in_downtime()
        try:
            stage.abort(kill=Kill(at))
        except KilledError:
            if stage.conductor(Direction.MOVE, Kill()).state().is_under_way:
                stage.abort()
        assert stage.hooks.effects["close"] == 0


def test_an_abort_whose_undo_fails_is_finished_by_the_next_one() -> None:
    stage = killed_in_downtime()
    stage.hooks.failing = {"close": 1}
    with pytest.raises(
        HookFailedError, match=r"hook close \(undo\): exit code 3.*`shallow-mirror migrate abort FILE` calls it again"
    ):
        stage.abort()
    assert stage.conductor(Direction.MOVE, Kill()).state().is_under_way
    assert stage.abort() is Phase.AT_SOURCE
    assert stage.hooks.effects["close"] == 0


def test_a_hook_that_fails_before_the_point_of_no_return_ends_the_attempt_which_continues_or_aborts() -> None:
    stage = Stage(hooks=HOOKS)
    stage.hooks.failing = {"close": 1}
    with pytest.raises(HookFailedError) as failed:
        stage.perform(Direction.MOVE)
    assert str(failed.value) == (
        "hook close (before stop writers): exit code 3: no such gateway. Mend it; `shallow-mirror migrate run FILE` calls it again; "
        "with `--skip-hook close` it counts as done by hand"
    )
    assert stage.world.writers == "east"
    assert stage.perform(Direction.MOVE) is Phase.MOVED
    ids = [document["id"] for document in stage.hooks.documents if document["hook"] == "close"]
    assert ids == ["m/all/move/1.0/close/do"] * 2


def test_a_hook_that_fails_behind_the_point_of_no_return_is_waited_for_and_called_again() -> None:
    stage = Stage(hooks=HOOKS)
    stage.hooks.failing = {"open": 3}
    assert stage.perform(Direction.MOVE) is Phase.MOVED
    assert names(stage).count("open") == 4
    (row, *others) = [row for row in stage.owner.rows_so_far if row.event == "waiting" and "hook open" in row.detail["for"]]
    assert not others
    assert row.detail["seen"] == "exit code 3: no such gateway"
    assert row.step == "prepare reverse mirror"


def test_without_waiting_it_ends_the_command_and_can_be_skipped() -> None:
    stage = Stage(hooks=HOOKS)
    stage.hooks.failing = {"open": 100}
    stage.world.writers = stage.world.is_reading = ""
    conductor = stage.conductor(Direction.MOVE, Kill(), waits=False)
    conductor.begin(Direction.MOVE)
    for _ in range(2):
        with pytest.raises(
            WaitsForOutsideError, match="make hook open succeed: `shallow-mirror migrate run FILE` calls it again"
        ):
            conductor.run()
    assert not [line for line in stage.operator.sentences if "NOW" in line]
    assert "hook open: called, not done" in view.state_text(state_of(stage.owner.rows(), ["all"]), "m")
    stage.conductor(Direction.MOVE, Kill(), waits=False, skipped_hooks={"open"}).run()
    assert conductor.state().phase is Phase.MOVED
    assert names(stage).count("open") == 2


def test_hooks_of_steps_that_are_done_again_are_called_again_with_new_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(hooks=HOOKS)
    conductor, late = stage.conductor(Direction.MOVE, Kill()), [5]
    effects: Any = conductor._effects
    move_groups = effects.move_groups

    def moving_groups(*, is_applied: bool) -> GroupsReport | None:
        report: GroupsReport | None = move_groups(is_applied=is_applied)
        if late:
            stage.world.logs["east"] += late.pop()
        return report

    monkeypatch.setattr(effects, "move_groups", moving_groups)
    conductor.begin(Direction.MOVE)
    conductor.run()
    assert [row.step for row in stage.owner.rows_so_far if row.event == "reopened"] == ["stop writers"]
    assert names(stage) == ["announce", "close", "cache", "close", "cache", "open", "told"]
    ids = [document["id"] for document in stage.hooks.documents if document["hook"] == "close"]
    assert ids == ["m/all/move/1.0/close/do", "m/all/move/1.1/close/do"]
