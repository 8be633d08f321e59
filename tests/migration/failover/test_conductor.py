"""A fail-over and its way back on fakes: a conductor that is killed anywhere is continued by the next one."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest
from tests.migration.failover.fake_failover import FakeClusters, FakeFailover, FakeReports
from tests.migration.fake_effects import FakeOwner, Kill, KilledError
from tests.migration.stage import FakeHooks

from shallow_mirror.config.failover_config import FailoverConfig
from shallow_mirror.config.hook_settings import FailoverHook, HookCall
from shallow_mirror.errors import ConfigError, HookFailedError
from shallow_mirror.migration.conductor_ports import Clock
from shallow_mirror.migration.failover import FailoverState, Step, Way
from shallow_mirror.migration.failover.conductor import FailoverConductor
from shallow_mirror.migration.failover.state import state_of


class Stage:
    def __init__(self, world: FakeClusters | None = None, hooks: Sequence[FailoverHook] = ()) -> None:
        self.config = FailoverConfig(failover="f", mirror="m", tables="t", hooks=list(hooks))
        self.hooks = FakeHooks()
        self.world = FakeClusters() if world is None else world
        self.reports = FakeReports()
        self.owner = FakeOwner([], Kill(), lambda: int(self.world.now_s * 1000))

    def conductor(self, way: Way, kill: Kill | None = None, skipped_hooks: Collection[str] = ()) -> FailoverConductor:
        self.owner.kill = self.hooks.kill = Kill() if kill is None else kill
        effects = FakeFailover(self.world, self.owner.kill)
        clock = Clock(monotonic=lambda: self.world.now_s, sleep=self.world.tick, now_ms=lambda: int(self.world.now_s * 1000))
        return FailoverConductor(
            self.config, self.owner, effects, self.reports, clock, way, skipped_hooks=skipped_hooks, call=self.hooks
        )

    def perform(self, way: Way, kill: Kill | None = None) -> FailoverState:
        return self.conductor(way, kill).run()

    def abort(self, kill: Kill | None = None, skipped_hooks: Collection[str] = ()) -> FailoverState:
        conductor = self.conductor(Way.OUT, kill, skipped_hooks)
        conductor.abort()
        return conductor.state()


def test_what_only_the_old_source_has_is_kept_before_its_topic_is_deleted() -> None:
    stage = Stage()
    assert stage.perform(Way.OUT).phase == "failed over"
    stage.world.target_end += 50
    assert stage.perform(Way.BACK).phase == "failed back"
    assert stage.world.kept == [(90, 100)]
    assert stage.world.is_handed_back


def effects_of(way: Way) -> int:
    stage = Stage()
    if way is Way.BACK:
        stage.perform(Way.OUT)
    kill = Kill()
    stage.perform(way, kill)
    return kill.count


@pytest.mark.parametrize("way", Way)
def test_a_conductor_that_is_killed_at_any_effect_is_continued(way: Way) -> None:
    for at in range(effects_of(way)):
        stage = Stage()
        if way is Way.BACK:
            stage.perform(Way.OUT)
        with pytest.raises(KilledError):
            stage.perform(way, Kill(at))
        state = stage.perform(way)
        assert state.next_step(way) is None
        assert stage.world.is_fenced
        assert stage.world.kept == ([] if way is Way.OUT else [(90, 100)])


def test_records_that_come_to_the_old_source_meanwhile_are_kept_as_well() -> None:
    stage = Stage(FakeClusters(late_records=7))
    stage.perform(Way.OUT)
    stage.perform(Way.BACK)
    assert stage.world.kept == [(90, 100), (100, 107)]
    assert [line for line in stage.reports.lines if "meanwhile" in line] != []


def test_nothing_is_deleted_if_a_kept_record_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    stage.perform(Way.OUT)
    monkeypatch.setattr(FakeFailover, "compare_kept", lambda _self, _writes: ["orders-0 offsets 90 to 99 in kept-0: 1 lost"])
    with pytest.raises(ConfigError, match="nothing was deleted at east"):
        stage.perform(Way.BACK)
    assert stage.world.topic_id == "old"


def test_steps_that_were_reopened_are_not_done() -> None:
    stage = Stage(FakeClusters(late_records=1))
    stage.perform(Way.OUT)
    stage.perform(Way.BACK)
    at = next(number for number, row in enumerate(stage.owner.rows_so_far) if row.event == "reopened")
    before, after = (state_of(stage.owner.rows_so_far[:end]) for end in (at, at + 1))
    assert Step.KEEP in before.done
    assert Step.KEEP not in after.done
    assert after.phase == "failing back"


def stuck() -> Stage:
    """Return a way back in the middle of which somebody has deleted the topic that is filled."""
    stage = Stage()
    stage.perform(Way.OUT)
    stage.world.stuck = stage.world.back
    for _ in range(2):
        with pytest.raises(ConfigError, match="orders was deleted at east"):
            stage.perform(Way.BACK)
    stage.world.back = "back-2"
    return stage


def test_a_conductor_that_is_killed_while_another_mirror_fills_a_deleted_topic_is_continued() -> None:
    stage, kill = stuck(), Kill()
    assert stage.perform(Way.BACK, kill).phase == "failed back"
    for at in range(kill.count):
        stage = stuck()
        with pytest.raises(KilledError):
            stage.perform(Way.BACK, Kill(at))
        state = stage.perform(Way.BACK)
        assert [filled["mirror"] for filled in state.filled_by] == ["back", "back-2"], at
        assert stage.world.is_handed_back
        assert stage.world.kept == [(90, 100)]


def test_a_way_back_that_an_earlier_release_has_begun_notes_which_mirror_fills() -> None:
    stage = Stage()
    stage.perform(Way.OUT)
    with pytest.raises(KilledError):
        stage.perform(Way.BACK, Kill(effects_of(Way.BACK) - 3))
    assert stage.owner.rows_so_far[-1].step == Step.FILL
    stage.owner.rows_so_far[:] = [row for row in stage.owner.rows_so_far if row.event != "filling"]
    assert stage.perform(Way.BACK).filling == {"mirror": "back", "tables": "back"}


def hook(name: str, **place: Any) -> FailoverHook:
    return FailoverHook(name=name, command=["switch"], **place)


HOOKS = [
    hook("announce", before=Step.CHECK),
    hook("switch", after=Step.MOVE_GROUPS),
    hook("told", after=Step.REPORT),
    hook("empty", before=Step.DELETE),
    hook("back", after=Step.HAND_BACK),
]


def test_hooks_are_called_at_their_steps_with_where_the_topics_go() -> None:
    stage = Stage(hooks=HOOKS)
    stage.perform(Way.OUT)
    assert [name for name, _ in stage.hooks.calls] == ["announce", "switch", "told"]
    (document, *_) = stage.hooks.documents
    assert document == {
        "id": "f/fail-over/0/announce/do",
        "hook": "announce",
        "action": "do",
        "when": "before",
        "step": "check",
        "failover": "f",
        "direction": "fail-over",
        "from": "east",
        "to": "west",
        "topics": ["orders"],
    }
    stage.perform(Way.BACK)
    assert [name for name, _ in stage.hooks.calls][3:] == ["empty", "back"]
    assert [(each["from"], each["to"]) for each in stage.hooks.documents[3:]] == [("west", "east")] * 2


@pytest.mark.parametrize("way", Way)
def test_a_conductor_that_is_killed_at_any_effect_or_hook_is_continued_and_calls_every_hook(way: Way) -> None:
    stage = Stage(hooks=HOOKS)
    names = {Way.OUT: {"announce", "switch", "told"}, Way.BACK: {"empty", "back"}}[way]
    if way is Way.BACK:
        stage.perform(Way.OUT)
    kill = Kill()
    stage.perform(way, kill)
    for at in range(kill.count):
        stage = Stage(hooks=HOOKS)
        if way is Way.BACK:
            stage.perform(Way.OUT)
        with pytest.raises(KilledError):
            stage.perform(way, Kill(at))
        state = stage.perform(way)
        assert state.next_step(way) is None
        assert names <= stage.hooks.effects.keys(), at
        assert names <= state.hooks.done.keys(), at


def test_a_hook_that_fails_ends_the_command_before_the_mirror_is_fenced_and_is_called_again_behind_that() -> None:
    stage = Stage(hooks=HOOKS)
    stage.hooks.failing = {"announce": 1, "switch": 2}
    with pytest.raises(
        HookFailedError, match=r"hook announce \(before check\): exit code 3.*failover run FILE.*--skip-hook announce"
    ):
        stage.perform(Way.OUT)
    assert not stage.world.is_fenced
    stage.perform(Way.OUT)
    assert [name for name, _ in stage.hooks.calls] == ["announce"] * 2 + ["switch"] * 3 + ["told"]


def test_a_fail_over_of_a_release_without_a_step_is_done_once_its_last_step_is() -> None:
    stage = Stage()
    stage.perform(Way.OUT)
    rows = [row for row in stage.owner.rows_so_far if row.step != Step.ADMIT_WRITERS]
    assert state_of(rows).next_step(Way.OUT) is None
    assert state_of(row for row in rows if row.step != Step.REPORT).next_step(Way.OUT) is not None


UNDO = HookCall(command=["switch-back"])
UNDOABLE = [
    hook("announce", before=Step.CHECK),
    hook("close", before=Step.FENCE, undo=UNDO),
    hook("switch", after=Step.MOVE_GROUPS, undo=UNDO),
    hook("told", after=Step.REPORT),
]


def test_an_abort_undoes_hooks_the_last_one_first_and_the_next_fail_over_calls_all_with_other_ids() -> None:
    stage = Stage(hooks=UNDOABLE)
    stage.perform(Way.OUT)
    state = stage.abort()
    assert (state.phase, state.is_aborting, state.hooks.names) == ("at the source", False, ())
    assert not stage.world.is_fenced
    assert stage.hooks.calls[4:] == [("switch", "undo"), ("close", "undo")]
    named = [line for line in stage.reports.lines if "take back" in line]
    assert named == [
        f"fail-over: hook {name} was called, and has no undo: take back what it changed" for name in ("announce", "told")
    ]
    assert stage.hooks.documents[4]["id"] == "f/fail-over/0/switch/undo"
    assert stage.perform(Way.OUT).phase == "failed over"
    assert stage.hooks.calls[6:] == [(each.name, "do") for each in UNDOABLE]
    assert [document["id"] for document in stage.hooks.documents[6:]] == [f"f/fail-over/1/{each.name}/do" for each in UNDOABLE]
    stage.abort()
    assert stage.hooks.calls[10:] == [("switch", "undo"), ("close", "undo")]


def test_an_abort_of_a_fail_over_that_was_killed_at_any_effect_undoes_every_hook_that_may_have_had_an_effect() -> None:
    kill, undone = Kill(), set[tuple[str, ...]]()
    Stage(hooks=UNDOABLE).perform(Way.OUT, kill)
    for at in range(1, kill.count):
        stage = Stage(hooks=UNDOABLE)
        with pytest.raises(KilledError):
            stage.perform(Way.OUT, Kill(at))
        called = [name for name, _ in stage.hooks.calls if name in ("close", "switch")]
        stage.abort()
        after = tuple(name for name, action in stage.hooks.calls if action == "undo")
        assert [name for name in after if name in called] == called[::-1], at
        assert not any(stage.hooks.effects.get(name) for name in ("close", "switch")), at
        undone.add(after)
        assert stage.perform(Way.OUT).phase == "failed over", at
    assert undone == {(), ("close",), ("switch", "close")}


def test_an_abort_that_is_killed_anywhere_is_finished_by_the_next_one_with_the_same_ids() -> None:
    def failed_over() -> Stage:
        stage = Stage(hooks=UNDOABLE)
        stage.perform(Way.OUT)
        return stage

    kill = Kill()
    failed_over().abort(kill)
    for at in range(kill.count):
        stage = failed_over()
        with pytest.raises(KilledError):
            stage.abort(Kill(at))
        assert stage.world.is_fenced or not any(stage.hooks.effects[name] for name in ("close", "switch")), at
        if state_of(stage.owner.rows_so_far).begun_at:
            stage.abort()
        undone = [document["id"] for document in stage.hooks.documents if document["action"] == "undo"]
        assert list(dict.fromkeys(undone)) == ["f/fail-over/0/switch/undo", "f/fail-over/0/close/undo"], at
        assert len(undone) <= 3, "only the one that was killed is called again"
        assert not stage.world.is_fenced, at


def test_an_abort_of_a_target_that_was_used_meanwhile_is_withdrawn_and_may_be_tried_again() -> None:
    stage = Stage()
    stage.perform(Way.OUT)
    stage.world.is_target_used = True
    with pytest.raises(ConfigError, match="the abort is withdrawn, its hooks are undone: records were written to west since"):
        stage.abort()
    state = state_of(stage.owner.rows_so_far)
    assert (state.phase, state.is_aborting, stage.world.is_fenced) == ("failed over", False, True)
    stage.world.is_target_used = False
    assert stage.abort().phase == "at the source"


def test_an_undo_that_fails_ends_the_abort_with_the_mirror_still_fenced() -> None:
    stage = Stage(hooks=UNDOABLE)
    stage.perform(Way.OUT)
    stage.hooks.failing = {"close": 2}
    for _ in range(2):
        with pytest.raises(
            HookFailedError, match=r"hook close \(undo\): .*failover abort FILE` calls it again; .*--skip-hook close"
        ):
            stage.abort()
        assert stage.world.is_fenced
        assert state_of(stage.owner.rows_so_far).is_aborting
    assert stage.abort().phase == "at the source"
    assert stage.hooks.calls[4:] == [("switch", "undo"), *[("close", "undo")] * 3]


def test_an_undo_that_was_done_by_hand_is_skipped_and_not_owed_by_the_next_abort() -> None:
    stage = Stage(hooks=UNDOABLE)
    stage.perform(Way.OUT)
    stage.abort(skipped_hooks={"switch"})
    assert stage.hooks.calls[4:] == [("close", "undo")]
    with pytest.raises(KilledError):
        stage.perform(Way.OUT, Kill(1))
    stage.abort()
    assert stage.hooks.calls[5:] == []
