from __future__ import annotations

import threading

import pytest

from shallow_mirror.local_kafka.ports import BrokerStartError
from shallow_mirror.local_kafka.server_process import start_together, stop_together


class Member:
    """Waits in `start` until it is killed, as a node does that has no quorum, unless it fails."""

    def __init__(self, failure: BrokerStartError | None = None, *, starts_at_once: bool = False) -> None:
        self._failure, self._starts_at_once = failure, starts_at_once
        self._killed = threading.Event()
        self.is_running = False

    def start(self) -> None:
        self.is_running = True
        if self._failure is not None:
            self.is_running = False
            raise self._failure
        if not self._starts_at_once:
            assert self._killed.wait(30)
            raise BrokerStartError("killed")

    def stop(self) -> None:
        self.is_running = False

    def kill(self) -> None:
        self.is_running = False
        self._killed.set()


@pytest.mark.slow
def test_the_first_error_is_raised_and_nothing_is_left_running() -> None:
    members = [Member(), Member(BrokerStartError("no memory")), Member(starts_at_once=True)]
    with pytest.raises(BrokerStartError, match="no memory"):
        start_together(members)
    assert not any(member.is_running for member in members)


def test_all_are_started_and_stopped() -> None:
    members = [Member(starts_at_once=True) for _ in range(3)]
    start_together(members)
    assert all(member.is_running for member in members)
    stop_together(members)
    assert not any(member.is_running for member in members)
