"""No wait of a conductor is silent: it says what it waits for and since when, and `status` shows it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.migration.fake_effects import FakeWorld
from tests.migration.stage import Stage

from shallow_mirror.errors import ConfigError, FencedError, RetriableError
from shallow_mirror.migration import Phase, WaitsForOutsideError, view
from shallow_mirror.migration.conductor_ports import Clock
from shallow_mirror.migration.state import state_of
from shallow_mirror.migration.steps import Direction, Step
from shallow_mirror.migration.waiting import Waiting

LONG_S = 65.0


class EndsWaitError(Exception):
    pass


def wait_long(stage: Stage, obstacle: Callable[[FakeWorld], None]) -> None:
    """Let a conductor meet an obstacle, until it has waited LONG_S at one step."""
    obstacle(stage.world)
    give_up_at_s = stage.world.now_s + LONG_S
    tick = stage.world.tick

    def ticking(seconds: float) -> None:
        tick(seconds)
        if stage.world.now_s > give_up_at_s:
            raise EndsWaitError

    stage.world.tick = ticking  # type: ignore[method-assign]
    with pytest.raises(EndsWaitError):
        stage.perform(Direction.MOVE)


def stop_mirror(world: FakeWorld) -> None:
    world.is_mirror_running = False


def pause(world: FakeWorld) -> None:
    world.paused.add("orders")


def leave_open_at_source(world: FakeWorld) -> None:
    world.open_from["east"] = 95


def leave_open_at_copies(world: FakeWorld) -> None:
    world.open_from["west"] = 80


def leave_hand_over_unconfirmed(world: FakeWorld) -> None:
    world.is_hand_over_answered = False


@pytest.mark.parametrize(
    ("obstacle", "step", "awaited"),
    [
        (stop_mirror, Step.CATCH_UP, "start the mirror m"),
        (pause, Step.CATCH_UP, "resume what was paused: `shallow-mirror resume mirror.yaml orders`"),
        (
            leave_open_at_source,
            Step.CATCH_UP,
            "end the transactions that are open at east: the mirror copies what lies in front of them",
        ),
        (
            leave_open_at_copies,
            Step.CATCH_UP,
            "keep the mirror m running, and end the transactions of others that are open at west: its copies become visible "
            "behind them",
        ),
        (leave_hand_over_unconfirmed, Step.POINT_OF_NO_RETURN, "the mirror m to confirm the hand-over"),
    ],
)
def test_each_wait_is_said_at_intervals_logged_and_shown_by_status(
    obstacle: Callable[[FakeWorld], None], step: Step, awaited: str, caplog: pytest.LogCaptureFixture
) -> None:
    stage = Stage()
    with caplog.at_level(logging.INFO, logger="shallow_mirror.migration.waiting"):
        wait_long(stage, obstacle)
    said = [text for text in (*stage.operator.requests, *stage.operator.sentences) if awaited in text]
    assert 4 <= len(said) <= 7, said
    assert sum(awaited in record.message for record in caplog.records) == len(said)
    rows = [row for row in stage.owner.rows_so_far if row.event == "waiting" and row.detail["for"] == awaited]
    assert [row.step for row in rows] == [step], "one row for each wait"
    state = state_of(stage.owner.rows(), ["all"])
    assert f": {awaited} (" in view.state_text(state, "m")
    assert view.state_document(state, "m")["waves"][0]["waiting"]["since_ms"] < stage.world.now_s * 1000 - 40_000


@pytest.mark.parametrize("obstacle", [stop_mirror, leave_hand_over_unconfirmed], ids=["catch up", "hand-over"])
def test_a_conductor_that_waits_for_copies_that_somebody_has_deleted_checks_the_wave_again(
    obstacle: Callable[[FakeWorld], None],
) -> None:
    stage = Stage()
    obstacle(stage.world)
    tick = stage.world.tick

    def ticking(seconds: float) -> None:
        tick(seconds)
        if stage.world.now_s > 30:
            stage.world.lost = frozenset({"orders"})

    stage.world.tick = ticking  # type: ignore[method-assign]
    with pytest.raises(ConfigError) as error:
        stage.perform(Direction.MOVE)
    assert error.value.problems == ("orders was deleted",), "nothing is handed over any more"
    assert stage.operator.sentences[-1] == "orders: deleted at west: the wave is checked again"
    assert stage.world.now_s < 50


def test_a_cluster_that_does_not_answer_is_named_while_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    conductor = stage.conductor(Direction.MOVE, stage.owner.kill)

    def log_ends() -> Any:
        if stage.world.now_s < 30:
            raise RetriableError("LEADER_NOT_AVAILABLE", "orders-0 has no leader")
        return look()

    look = conductor._effects.log_ends
    monkeypatch.setattr(conductor._effects, "log_ends", log_ends)
    conductor.begin(Direction.MOVE)
    conductor.run()
    assert conductor.state().phase is Phase.MOVED
    said = [sentence for sentence in stage.operator.sentences if "waits for clusters and tables to answer" in sentence]
    assert len(said) == 2
    assert "orders-0 has no leader" in said[0]
    rows = [row.detail["for"] for row in stage.owner.rows_so_far if row.event == "waiting"]
    assert rows.count("clusters and tables to answer") == 1


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "--no-wait"])
def test_somebody_is_asked_to_start_a_reverse_mirror_that_has_ended_as_soon_as_the_conductor_has_started_it(waits: bool) -> None:
    stage = Stage()
    stage.world.can_reverse_start = False
    tick = stage.world.tick

    def ticking(seconds: float) -> None:
        tick(seconds)
        stage.world.is_reverse_running = any("as a service" in request for request in stage.operator.requests)

    stage.world.tick = ticking  # type: ignore[method-assign]
    request = "run `shallow-mirror run reverse.yaml` as a service"
    if waits:
        assert stage.perform(Direction.MOVE) is Phase.MOVED
        assert stage.operator.requests[-1] == request
    else:
        stage.world.writers = stage.world.is_reading = ""
        conductor = stage.conductor(Direction.MOVE, stage.owner.kill, waits=False)
        conductor.begin(Direction.MOVE)
        with pytest.raises(WaitsForOutsideError, match=request) as waiting:
            conductor.run()
        assert "and has ended" in waiting.value.outside.seen


def test_a_wait_that_is_over_is_not_shown_any_more() -> None:
    stage = Stage()
    stage.perform(Direction.MOVE)
    assert any(row.event == "waiting" for row in stage.owner.rows_so_far)
    state = state_of(stage.owner.rows(), ["all"])
    assert state.waves["all"].waiting is None
    assert "waits since" not in view.state_text(state, "m")


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "--no-wait"])
def test_nothing_is_asked_for_that_was_seen_before_another_conductor_took_over(
    waits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    asked: list[Any] = []
    owner, reports = SimpleNamespace(rows=raise_fenced, append=raise_fenced), SimpleNamespace(waits=asked.append)
    given: Any = (owner, reports, Clock(monotonic=lambda: 0.0, sleep=lambda _: None, now_ms=lambda: 0))
    waiting = Waiting("all", *given, waits=waits)
    with pytest.raises(FencedError):
        waiting.for_somebody("make these offsets committable at west", "delete that offset", 1.0)
    assert (asked, "delete that offset" in caplog.text) == ([], False)


def test_no_effect_is_repeated_once_another_conductor_has_taken_over() -> None:
    """It would deny the writers, or hand topics over, behind an abort, which nothing takes back any more."""
    now_s, tries = [0.0], list[float]()
    owner, reports = SimpleNamespace(rows=raise_fenced, append=raise_fenced), SimpleNamespace(says=lambda _: None)
    clock = Clock(monotonic=lambda: now_s[0], sleep=lambda s: now_s.append(now_s.pop() + s), now_ms=lambda: 0)
    waiting = Waiting("all", *(owner, reports, clock), waits=True)

    def effect() -> None:
        tries.append(now_s[0])
        raise RetriableError("COORDINATOR_NOT_AVAILABLE", "the cluster does not answer")

    with pytest.raises(FencedError):
        waiting.retried(effect)
    assert tries == [0.0]


def raise_fenced(**_: object) -> None:
    raise FencedError("conductor 2 has taken over")
