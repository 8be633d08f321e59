"""Renewal of tokens and tickets, with a clock of the test and calls that end when the test says so."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest
from tests.support.deadlines import deadline

from shallow_mirror.broker.auth.renewed_credential import Lease, RenewedCredential
from shallow_mirror.errors import ConfigError, RetriableError

RENEWED_AT, LIFE = 60.0, 100.0


class Provider:
    """Credentials that are numbered. `error`: of the next calls. Calls that were begun wait in `begun`, as those that hang."""

    def __init__(self) -> None:
        self.now, self.calls, self.life = 0.0, 0, LIFE
        self.error: BaseException | None = None
        self.hangs = False
        self.begun: list[Callable[[], None]] = []
        self.credential = RenewedCredential(
            "the token", self._fetch, late=lambda: RetriableError("LATE", "no token"), clock=lambda: self.now, start=self._start
        )

    def _start(self, run: Callable[[], None]) -> None:
        self.begun.append(run)
        if not self.hangs:
            self.end_calls()

    def end_calls(self) -> None:
        begun, self.begun[:] = list(self.begun), []
        for run in begun:
            run()

    def _fetch(self) -> Lease[int]:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return Lease(self.calls, self.now + RENEWED_AT, self.now + self.life)

    def get(self, now: float) -> int:
        self.now = now
        return self.credential.get(deadline(0))


def test_a_credential_is_renewed_before_it_ends_and_the_last_one_is_used_until_the_next_has_arrived() -> None:
    provider = Provider()
    assert [provider.get(now) for now in (0.0, 59.0)] == [1, 1]
    provider.hangs = True
    assert [provider.get(now) for now in (60.0, 70.0, 99.0)] == [1, 1, 1]
    assert len(provider.begun) == 1
    provider.end_calls()
    assert [provider.get(now) for now in (99.0, 158.0)] == [2, 2]
    assert provider.calls == 2


def test_a_provider_that_hangs_until_the_end_gets_one_call_which_later_callers_wait_for() -> None:
    provider = Provider()
    provider.get(0.0)
    provider.hangs = True
    provider.get(60.0)
    for now in (100.0, 110.0):
        with pytest.raises(RetriableError, match="LATE"):
            provider.get(now)
    assert len(provider.begun) == 1
    provider.end_calls()
    assert provider.get(110.0) == 2
    assert provider.calls == 2


def test_a_provider_that_does_not_respond_is_reported_once_and_asked_again_and_no_caller_sees_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    provider = Provider()
    provider.get(0.0)
    provider.error = RetriableError("AWAY", "nothing listens")
    assert {provider.get(60.0 + step) for step in range(40)} == {1}
    assert provider.calls == 1 + 4  # a pause is a quarter of the time between renewal and end
    assert caplog.messages == ["the token was not renewed and is used until it ends in 40 s: AWAY: nothing listens"]
    with pytest.raises(RetriableError, match="AWAY"):
        provider.get(100.0)
    provider.error = None
    assert provider.get(101.0) == 7
    assert caplog.messages[1:] == ["the token was renewed"]


def test_refused_credentials_are_sent_once_while_the_last_one_is_valid_and_end_nothing_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    provider = Provider()
    provider.get(0.0)
    provider.error = ConfigError("refused: correct the secret")
    assert {provider.get(60.0 + step) for step in range(40)} == {1}
    assert provider.calls == 2
    assert caplog.messages == ["the token was not renewed and is used until it ends in 40 s: refused: correct the secret"]
    with pytest.raises(ConfigError, match="refused"):
        provider.get(100.0)
    assert provider.calls == 3


def test_the_text_of_an_unexpected_error_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    provider = Provider()
    provider.get(0.0)
    provider.error = RuntimeError("token=abc")
    assert provider.get(60.0) == 1
    assert caplog.messages == ["the token was not renewed and is used until it ends in 40 s: RuntimeError"]
    with pytest.raises(RuntimeError):
        provider.get(100.0)


def test_a_refusal_that_arrives_after_its_caller_is_raised_by_the_next_and_not_provoked_again() -> None:
    provider = Provider()
    provider.hangs, provider.error = True, ConfigError("refused")
    with pytest.raises(RetriableError, match="LATE"):
        provider.get(0.0)
    provider.end_calls()
    with pytest.raises(ConfigError, match="refused"):
        provider.get(20.0)
    assert provider.calls == 1


def test_a_credential_that_has_ended_on_arrival_is_requested_once_more_and_then_used() -> None:
    provider = Provider()
    provider.life = -1.0
    assert provider.get(0.0) == 2
    assert provider.get(0.0) == 4


def test_a_thread_that_cannot_start_leaves_no_call_behind() -> None:
    def fail(run: Callable[[], None]) -> None:
        raise RuntimeError("can't start new thread")

    provider = Provider()
    provider.credential._start = fail
    with pytest.raises(RuntimeError):
        provider.get(0.0)
    provider.credential._start = provider._start
    assert provider.get(0.0) == 1


def test_a_caller_that_begins_a_renewal_gets_the_next_credential_where_the_provider_responds() -> None:
    provider = Provider()
    assert [provider.get(now) for now in (0.0, 60.0, 119.0, 120.0)] == [1, 2, 2, 3]


def test_callers_of_several_threads_share_one_call() -> None:
    began, may_end, calls = threading.Event(), threading.Event(), []

    def fetch() -> Lease[str]:
        calls.append(threading.current_thread().name)
        began.set()
        assert may_end.wait(30)
        return Lease("t", 1e9, 2e9)

    credential = RenewedCredential("the token", fetch, late=lambda: RetriableError("LATE", ""), clock=lambda: 0.0)
    values: list[str] = []
    threads = [threading.Thread(target=lambda: values.append(credential.get(deadline(30_000)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert began.wait(30)
    may_end.set()
    for thread in threads:
        thread.join()
    assert values == ["t"] * 8
    assert calls == ["the token"]
