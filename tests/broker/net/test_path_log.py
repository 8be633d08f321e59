"""A path that becomes slow, stalls and recovers is reported once each; one that is only idle, or far away, never."""

from __future__ import annotations

import logging
import socket
import threading
import time

import pytest
from tests.fakes.clients import SleepingClock

from shallow_mirror.broker.net import Transport, path_log, transport
from shallow_mirror.broker.net.connection import Connection
from shallow_mirror.broker.net.path_log import REPORTED_EVERY_S, SLOW_S, STALLED_S, PathLog
from shallow_mirror.deadline import Deadline

PEER = "broker-1:9092"


class Path:
    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.clock = SleepingClock()
        self.log = PathLog(PEER, "produce", self.clock)
        self._caplog = caplog

    def wait(self, seconds: float) -> None:
        """Be blocked for so long, looked at every second."""
        self.log.begin_wait()
        for _ in range(int(seconds)):
            self.clock.sleep(1.0)
            self.log.still_waiting()
        self.clock.sleep(seconds % 1)
        self.log.end_wait()

    def request(self, size_bytes: int, seconds: float) -> None:
        self.log.sent(1, size_bytes)
        self.wait(seconds)
        self.log.responded(50)

    def lines(self) -> list[str]:
        return [record.getMessage() for record in self._caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def path(caplog: pytest.LogCaptureFixture) -> Path:
    return Path(caplog)


def test_a_path_that_loses_its_bandwidth_is_reported_once_and_once_more_when_it_is_back(path: Path) -> None:
    for _ in range(5):
        path.request(4_000_000, 0.1)
    for _ in range(5):
        path.request(4_000_000, 8.0)
    assert len(path.lines()) == 1
    assert path.lines()[0] == (
        "broker broker-1:9092 (produce) became slow: a response took 8.0 s, 0.50 MB/s, and 0 requests with 0.00 MB are in flight; "
        "at its best: round trip 100 ms, 40.0 MB/s"
    )
    path.request(4_000_000, 0.1)
    assert path.lines()[1:] == [
        "broker broker-1:9092 (produce) is no longer slow, 40 s after that began: "
        "the last response, with 4.00 MB in flight, took 0.10 s"
    ]


def test_small_responses_do_not_end_what_large_ones_have_shown(path: Path) -> None:
    path.request(4_000_000, 0.1)
    path.request(4_000_000, 8.0)
    path.request(100, 0.1)
    assert len(path.lines()) == 1
    path.request(4_000_000, 0.1)
    assert len(path.lines()) == 2


def test_a_request_without_a_response_is_reported_while_it_waits_with_what_is_in_flight(path: Path) -> None:
    path.request(100, 0.08)
    path.log.sent(3, 3_000_000)
    path.wait(STALLED_S + 30)
    (line,) = path.lines()
    assert line == (
        "broker broker-1:9092 (produce) has sent and taken nothing for 10 s, and 3 requests with 3.00 MB are in flight; "
        "at its best: round trip 80 ms"
    )
    for _ in range(3):
        path.log.responded(50)
    assert path.lines()[1:] == [
        "broker broker-1:9092 (produce) responds again, 40 s after that began: "
        "the last response, with 3.00 MB in flight, took 40.00 s"
    ]


def test_a_stall_that_ends_with_its_connection_is_over_when_the_next_one_responds(path: Path) -> None:
    path.log.sent(1, 1_000)
    path.wait(STALLED_S)
    path.log.closed()
    path.request(1_000, 0.01)
    assert [line.split(") ")[1].split(" ")[0] for line in path.lines()] == ["has", "responds"]


def test_a_path_that_stalls_again_and_again_is_reported_once_in_a_while_with_how_often(path: Path) -> None:
    rounds = 8
    for _ in range(rounds):
        path.log.sent(1, 1_000)
        path.wait(STALLED_S + 5)
        path.log.closed()
        path.request(1_000, 0.01)
    stalls = [line for line in path.lines() if "has sent and taken nothing" in line]
    assert len(stalls) == -(-rounds * (STALLED_S + 5) // REPORTED_EVERY_S)
    assert stalls[-1].endswith("; 3 more times since the last report")
    assert len(path.lines()) == 2 * len(stalls)


@pytest.mark.parametrize(("size_bytes", "seconds"), [(100, 0.3), (4_000_000, 4.0), (16_000_000, 16.0)])
def test_a_far_or_slow_path_that_stays_as_it_is_is_not_reported(path: Path, size_bytes: int, seconds: float) -> None:
    path.request(min(size_bytes, 100_000), min(seconds, 0.3))
    for _ in range(1000):
        path.request(size_bytes, seconds)
    assert path.lines() == []


def test_time_without_a_wait_for_the_path_does_not_count(path: Path) -> None:
    path.request(100_000, 0.1)
    path.log.sent(1, 100_000)
    path.clock.sleep(100 * SLOW_S)
    path.log.responded(50)
    path.wait(0.1)
    assert path.lines() == []


def test_a_response_that_does_not_come_is_reported_by_the_wait_itself(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A connection to a peer that reads and is silent until the line is there."""
    monkeypatch.setattr(path_log, "STALLED_S", 0.0)
    monkeypatch.setattr(transport, "_LOOK_MS", 5.0)
    is_reported = threading.Event()
    monkeypatch.setattr(path_log._log, "warning", lambda *_, **__: is_reported.set())
    with socket.create_server(("127.0.0.1", 0)) as server:
        deadline = Deadline.after_ms(20_000, time.monotonic)
        connection = Connection(Transport("127.0.0.1", server.getsockname()[1], deadline), "me", 1_000)
        peer, _ = server.accept()

        def respond() -> None:
            assert is_reported.wait(20)
            peer.sendall(b"\x00\x00\x00\x04\x00\x00\x00\x01")

        responder = threading.Thread(target=respond)
        responder.start()
        connection.watch(PathLog(PEER, "control", deadline.clock))
        frame = connection.request(connection.next_correlation_id(), [b"request"], deadline)
        responder.join()
        peer.close()
        connection.close()
    assert bytes(frame) == b"\x00\x00\x00\x01"


def test_an_earlier_connection_of_the_path_that_is_closed_meanwhile_is_no_error(path: Path) -> None:
    path.log.sent(1, 100)
    path.log.closed()  # of the earlier connection, while the request of the next one is on its way
    path.log.responded(50)
    path.request(100, 0.1)
    assert path.lines() == []


def test_responses_that_are_noted_together_count_as_one_after_the_other(path: Path) -> None:
    """Two writes of three and two requests, slow ones: what is known of the path does not depend on how many came at once."""
    path.request(100, 0.1)
    path.log.sent(3, 300)
    path.log.sent(2, 200)
    path.wait(3.0)
    path.log.responded(50, 4)
    assert ["2 requests with 0.00 MB are in flight" in line for line in path.lines()] == [True]
    path.log.responded(50)
    path.request(300, 0.1)
    assert ["is no longer slow" in line for line in path.lines()] == [False, True]
    path.log.responded(50, 2)  # of a connection that was closed meanwhile
