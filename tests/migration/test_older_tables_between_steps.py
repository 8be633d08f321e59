"""Older tables of the mirror are put in place under a conductor, and the newest ones back: what it did in the older ones is lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.migration.fake_effects import PARTITION, FakeEffects, FakeOwner, Kill
from tests.migration.stage import Stage

from shallow_mirror.checkpoints.logs.topics import TopicControls
from shallow_mirror.errors import ConfigError, FencedError
from shallow_mirror.migration import Phase
from shallow_mirror.migration.conductor import WaveConductor
from shallow_mirror.migration.observations import MappedEnd
from shallow_mirror.migration.steps import Direction
from shallow_mirror.types import TopicPartition

OLDER = {PARTITION: MappedEnd(0, 0)}


@pytest.fixture
def stage() -> Stage:
    return Stage()


def begun(stage: Stage) -> tuple[WaveConductor, Any]:
    """Return a conductor that has performed nothing yet, and its effects."""
    conductor = stage.conductor(Direction.MOVE, Kill())
    conductor.begin(Direction.MOVE)
    return conductor, conductor._effects


def reopened(stage: Stage) -> list[str]:
    return [row.step for row in stage.owner.rows_so_far if row.event == "reopened"]


@pytest.fixture
def lost_take_back(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> tuple[WaveConductor, list[None]]:
    """Return a conductor whose first take-back is written to older tables, and the calls: the newest ones keep the hand-over."""
    conductor, effects = begun(stage)
    calls: list[None] = []

    def resume() -> None:
        FakeEffects.resume(effects)
        if not calls:
            stage.world.handed["east"] = "handed over"
        calls.append(None)

    monkeypatch.setattr(effects, "resume", resume)
    return conductor, calls


def test_a_lost_take_back_is_repeated_while_the_rest_is_copied(
    stage: Stage, lost_take_back: tuple[WaveConductor, list[None]]
) -> None:
    conductor, calls = lost_take_back
    conductor.run()
    assert conductor.state().phase is Phase.MOVED
    assert len(calls) == 2
    assert reopened(stage) == []


def test_a_conductor_that_is_fenced_repeats_no_take_back(
    stage: Stage, lost_take_back: tuple[WaveConductor, list[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was suspended, and what is handed over is what the next conductor has handed over."""
    conductor, calls = lost_take_back
    effects: Any = conductor._effects
    is_fenced: list[None] = []

    class Owner(FakeOwner):
        def rows(self) -> Any:
            if is_fenced:
                raise FencedError("conductor 2 has taken over")
            return super().rows()

    owner = Owner(stage.owner.rows_so_far, stage.owner.kill, stage.owner.now_ms)
    monkeypatch.setattr(conductor, "_owner", owner)
    monkeypatch.setattr(conductor._waiting, "_owner", owner)

    def controls() -> TopicControls:
        found = FakeEffects.controls(effects)
        if calls:
            is_fenced.append(None)
        return found

    monkeypatch.setattr(effects, "controls", controls)
    with pytest.raises(FencedError, match="conductor 2"):
        conductor.run()
    assert len(calls) == 1
    assert stage.world.handed == {"east": "handed over"}


def test_a_hand_over_that_the_check_did_not_see_is_an_error_of_the_check(stage: Stage) -> None:
    """An attempt that was aborted has handed over, and its tables are back: the check names the way on."""
    conductor, effects = begun(stage)
    problems = effects.problems

    def put_newest_back() -> list[str]:
        found: list[str] = problems()
        stage.world.handed["east"] = "handed over"
        return found

    effects.problems = put_newest_back
    with pytest.raises(ConfigError, match=r"handed over before"):
        conductor.run()
    assert reopened(stage) == ["check"]


def test_a_topic_that_older_tables_lack_is_waited_for(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    conductor, effects = begun(stage)
    maps: list[Mapping[TopicPartition, MappedEnd]] = [{}]
    mapped = effects.mapped_ends

    def older_once() -> Mapping[TopicPartition, MappedEnd]:
        is_caught_up = stage.owner.rows_so_far[-1].step == "catch up"
        return maps.pop() if maps and is_caught_up else mapped()

    monkeypatch.setattr(effects, "mapped_ends", older_once)
    conductor.run()
    assert conductor.state().phase is Phase.MOVED
    assert reopened(stage) == ["catch up"]
    assert any("orders-0: not in the offset map: new, or" in each for each in stage.operator.sentences)


@pytest.mark.parametrize("method", ["other_log_ends", "compare"])
def test_a_comparison_of_the_rest_with_older_tables_is_repeated(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """It covers less than all that was copied. The older ones are put in place before the comparison, or during it."""
    conductor, effects = begun(stage)
    call, mapped = getattr(effects, method), effects.mapped_ends
    maps: list[Mapping[TopicPartition, MappedEnd]] = []
    puts: list[None] = []

    def put_older(*arguments: Any) -> Any:
        if not puts and stage.owner.rows_so_far[-1].step == "hand over":
            puts.append(None)
            maps.append(OLDER)
        return call(*arguments)

    monkeypatch.setattr(effects, method, put_older)
    monkeypatch.setattr(effects, "mapped_ends", lambda: maps.pop() if maps else mapped())
    conductor.run()
    assert conductor.state().phase is Phase.MOVED
    assert reopened(stage) == ["stop writers"]
    assert any("orders-0: not copied any more" in each for each in stage.operator.sentences)
