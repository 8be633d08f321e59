"""The steps of a run in their order, and what is recorded and closed whichever of them raises."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.support.inline_session import InlineSession
from tests.support.mirror_runs import config

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints.ledger import LedgerOwner
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError, FencedError, RetriableError
from shallow_mirror.operations.status import read_run
from shallow_mirror.sinks import observe_nothing
from shallow_mirror.streaming.runs import ClusterIds, take_over_offset_map
from shallow_mirror.streaming.runs.run import Run
from shallow_mirror.streaming.runs.supervisor import Supervisor
from shallow_mirror.streaming.spark.spark_session import RunSession
from shallow_mirror.streaming.watch.reported_run import ReportedRun


class _Run(Run[MirrorConfig]):
    """Keeps its steps, and raises in one of them."""

    def __init__(self, settings: MirrorConfig, *, failing: str = "", error: Exception | None = None) -> None:
        self.stop = threading.Event()
        super().__init__(settings, ReportedRun.of_mirror(settings), observe_nothing, self.stop, may_stream=False, secrets_of=())
        self.steps: list[str] = []
        self.failures = [error] if error is not None else []
        self.failing = failing
        self.cluster = self.connected(settings.source.client)

    def step(self, name: str) -> None:
        self.steps.append(name)
        if name == self.failing and self.failures:
            raise self.failures.pop()

    def connect(self) -> None:
        self.step("connect")

    def check(self) -> None:
        self.storage.require_conditional_writes()  # there is a storage
        self.step("check")

    def on_session(self, session: RunSession) -> None:
        self.step("on_session")

    def take_over(self) -> LedgerOwner:
        self.step("take_over")
        return take_over_offset_map(self.config, self.storage, ClusterIds(source="S", target="T"), self.identity)

    def copy(self, spark: Any) -> bool:
        return self.repeat("query", self.attempt)

    def attempt(self) -> bool:
        self.owner.settle()
        self.step("attempt")
        return not self.stop.is_set()

    def on_done(self) -> str:
        self.step("on_done")
        return "done"


STEPS = ["connect", "check", "on_session", "take_over", "attempt", "on_done"]


@pytest.fixture
def settings(tmp_path: Path) -> MirrorConfig:
    return config(tmp_path, "localhost:1", "localhost:1", ["orders"])


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[Cluster]:
    clusters: list[Cluster] = []
    monkeypatch.setattr(Cluster, "close", lambda cluster: clusters.append(cluster))
    return clusters


def outcome(settings: MirrorConfig) -> str | None:
    run = read_run(settings)
    return None if run is None else run.outcome


def test_the_steps_come_in_order_and_the_end_is_recorded(settings: MirrorConfig, closed: list[Cluster]) -> None:
    run = _Run(settings)
    run.run(InlineSession())
    assert (run.steps, outcome(settings), closed) == (STEPS, "done", [run.cluster])


@pytest.mark.parametrize("failing", STEPS)
def test_whichever_step_raises_connections_are_closed_and_an_owner_records_its_end(
    settings: MirrorConfig, closed: list[Cluster], failing: str
) -> None:
    run = _Run(settings, failing=failing, error=ConfigError("refused"))
    with pytest.raises(ConfigError, match="refused"):
        run.run(InlineSession())
    assert run.steps == STEPS[: STEPS.index(failing) + 1]
    assert closed == [run.cluster]
    has_owner = STEPS.index(failing) > STEPS.index("take_over")
    if has_owner:
        assert outcome(settings) == "ConfigError"
    else:
        with pytest.raises(ConfigError, match="there is no offset map"):
            outcome(settings)


def test_a_failed_attempt_is_repeated_and_the_take_over_is_not(
    settings: MirrorConfig, closed: list[Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Supervisor, "wait", lambda *_: False)
    run = _Run(settings, failing="attempt", error=RetriableError("NETWORK_EXCEPTION", "east"))
    run.run(InlineSession())
    assert run.steps == [*STEPS[:5], "attempt", "on_done"]
    assert closed == [run.cluster]


def test_an_attempt_begins_with_the_ownership(settings: MirrorConfig, closed: list[Cluster]) -> None:
    run = _Run(settings)

    class Later(_Run):
        """Lets another run take over between the take-over and the attempt."""

        def copy(self, spark: Any) -> bool:
            run.run(InlineSession())
            return super().copy(spark)

    fenced = Later(settings)
    with pytest.raises(FencedError):
        fenced.run(InlineSession())
    assert (fenced.steps, run.steps) == (STEPS[:4], STEPS)


def test_a_stop_is_recorded_and_is_no_error(
    settings: MirrorConfig, closed: list[Cluster], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = _Run(settings)
    run.stop.set()
    run.run(InlineSession())
    assert (run.steps, outcome(settings)) == (STEPS[:5], "stopped")

    caplog.set_level(logging.WARNING)
    waiting = _Run(settings, failing="attempt", error=RetriableError("NETWORK_EXCEPTION", "east"))

    def stop(*_: object) -> bool:
        waiting.stop.set()
        return True

    monkeypatch.setattr(Supervisor, "wait", stop)
    waiting.run(InlineSession())
    assert "stopped while waiting: query: " in caplog.text
    assert (outcome(settings), closed) == ("stopped", [run.cluster, waiting.cluster])
