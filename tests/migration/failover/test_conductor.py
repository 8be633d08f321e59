"""A fail-over and its way back on fakes: a conductor that is killed anywhere is continued by the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.migration.failover.fake_failover import FakeClusters, FakeFailover, FakeReports
from tests.migration.fake_effects import FakeOwner, Kill, KilledError
from tests.migration.stage import FakeHooks

from shallow_mirror.config.failover_config import FailoverConfig
from shallow_mirror.config.hook_settings import FailoverHook
from shallow_mirror.errors import ConfigError, HookFailedError
from shallow_mirror.migration.conductor_ports import Clock
from shallow_mirror.migration.failover import FailoverState, Step, Way
from shallow_mirror.migration.failover.conductor import FailoverConductor
from shallow_mirror.migration.failover.state import ABORTED_OUT, ABORTING, state_of


class Stage:
    def __init__(self, world: FakeClusters | None = None, hooks: Sequence[FailoverHook] = ()) -> None:
        self.config = FailoverConfig(failover="f", mirror="m", tables="t", hooks=list(hooks))
        self.hooks = FakeHooks()
        self.world = FakeClusters() if world is None else world
        self.reports = FakeReports()
        self.owner = FakeOwner([], Kill(), lambda: int(self.world.now_s * 1000))

    def perform(self, way: Way, kill: Kill | None = None) -> FailoverState:
        self.owner.kill = self.hooks.kill = Kill() if kill is None else kill
        effects = FakeFailover(self.world, self.owner.kill)
        clock = Clock(monotonic=lambda: self.world.now_s, sleep=self.world.tick, now_ms=lambda: int(self.world.now_s * 1000))
        return FailoverConductor(self.config, self.owner, effects, self.reports, clock, way, call=self.hooks).run()


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


def test_hooks_of_a_fail_over_that_was_aborted_are_called_again_with_new_ids() -> None:
    owner = FakeOwner([], Kill(), lambda: 0)
    owner.append(event="begun", wave=Way.OUT.value)
    for event in ("hook begun", "hook done"):
        owner.append(event=event, wave=Way.OUT.value, step=Step.CHECK.value, detail={"hook": "gateway"})
    before = state_of(owner.rows_so_far)
    assert (before.hooks.begun, before.hooks.names) == (("gateway",), ("gateway",))
    for event in (ABORTING, ABORTED_OUT):
        owner.append(event=event, wave=Way.OUT.value)
    after = state_of(owner.rows_so_far)
    assert (after.hooks.names, after.hooks.reopenings, after.begun_at) == ((), before.hooks.reopenings + 1, {})


def test_steps_that_were_reopened_are_not_done() -> None:
    stage = Stage(FakeClusters(late_records=1))
    stage.perform(Way.OUT)
    stage.perform(Way.BACK)
    at = next(number for number, row in enumerate(stage.owner.rows_so_far) if row.event == "reopened")
    before, after = (state_of(stage.owner.rows_so_far[:end]) for end in (at, at + 1))
    assert Step.KEEP in before.done
    assert Step.KEEP not in after.done
    assert after.phase == "failing back"


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
