"""Retries of a run: what is retried, what ends it, and what is reported."""

from __future__ import annotations

import threading

import pytest

from shallow_mirror.errors import ConfigError, MirrorError, OutcomeUnknownError, RetriableError, StoppedError
from shallow_mirror.streaming.runs.supervisor import BACK_OFF_S, Supervisor


class Reporter:
    """Records the pauses, and requests a stop at the last of `until` retries."""

    def __init__(self, stop: threading.Event, until: int) -> None:
        self._stop = stop
        self._until = until
        self.pauses: list[tuple[str, float]] = []

    def on_retry(self, step: str, error: MirrorError, since_ms: int, pause_s: float) -> None:
        assert since_ms > 0
        self.pauses.append((step, pause_s))
        if len(self.pauses) == self._until:
            self._stop.set()


def test_a_stop_during_the_pause_ends_the_retries_with_the_last_error() -> None:
    stop = threading.Event()
    reporter = Reporter(stop, until=1)

    def attempt() -> None:
        raise RetriableError("NETWORK_EXCEPTION", "cannot connect")

    with pytest.raises(StoppedError, match="query: NETWORK_EXCEPTION: cannot connect"):
        Supervisor(stop, None, reporter).retry_forever("query", attempt)
    assert reporter.pauses == [("query", BACK_OFF_S[0])]
    assert stop.is_set()


def test_when_the_time_of_the_run_is_over_the_last_error_is_raised() -> None:
    stop = threading.Event()
    reporter = Reporter(stop, until=99)
    supervisor = Supervisor(stop, 0.0, reporter)

    def attempt() -> None:
        raise OutcomeUnknownError("the commit was sent, the answer is lost")

    with pytest.raises(OutcomeUnknownError, match="the answer is lost"):
        supervisor.retry_forever("tables", attempt)
    assert supervisor.is_over()
    assert not stop.is_set()


def test_a_definite_error_is_raised_at_once() -> None:
    reporter = Reporter(threading.Event(), until=99)

    def attempt() -> None:
        raise ConfigError("no such topic")

    with pytest.raises(ConfigError):
        Supervisor(threading.Event(), None, reporter).retry_forever("query", attempt)
    assert reporter.pauses == []


def test_a_deadline_is_over_once_a_stop_is_requested() -> None:
    stop = threading.Event()
    deadline = Supervisor(stop, None, Reporter(stop, until=99)).deadline()
    assert not deadline.is_over()
    stop.set()
    assert deadline.is_over()
