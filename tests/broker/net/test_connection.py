"""Against a small server that answers what a real broker never does."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from tests.support.deadlines import deadline

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.net import Transport
from shallow_mirror.broker.net.connection import Connection, ReceiveBuffer
from shallow_mirror.errors import RetriableError


class Server:
    """Accepts one connection, reads one frame, sends `response`, closes when told."""

    def __init__(self, response: bytes, *, closes: bool) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.response, self.closes = response, closes
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        peer, _ = self.listener.accept()
        with peer:
            peer.settimeout(5)
            peer.recv(65_536)
            peer.sendall(self.response)
            if not self.closes:
                self.over.wait(10)

    def stop(self) -> None:
        self.over.set()
        self.thread.join()
        self.listener.close()


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    started: list[Server] = []
    yield started
    for server in started:
        server.stop()


def asked(
    servers: list[Server], response: bytes, *, closes: bool = True, ms: float = 3_000, buffer: ReceiveBuffer | None = None
) -> bytes:
    server = Server(response, closes=closes)
    servers.append(server)
    connection = Connection(Transport("127.0.0.1", server.port, deadline(3_000)), "me", max_frame_bytes=1_000)
    try:
        connection.send(1, [b"\x00\x00\x00\x01", memoryview(b"x")], deadline(3_000))
        return bytes(connection.receive(deadline(ms), buffer))
    finally:
        failed = connection.is_closed
        connection.close()
        assert failed or connection.outstanding == 0


def frame(correlation_id: int, body: bytes = b"") -> bytes:
    return (len(body) + 4).to_bytes(4, "big") + correlation_id.to_bytes(4, "big") + body


def test_a_response_is_the_frame_without_its_length(servers: list[Server]) -> None:
    assert asked(servers, frame(1, b"hello")) == b"\x00\x00\x00\x01hello"


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (b"", "closed the connection"),
        (b"\x00\x00", "closed the connection"),
        (frame(1, b"hello")[:-1], "closed the connection"),
        (frame(2), "answered request 2"),
        ((2**31 - 1).to_bytes(4, "big"), "announced an answer of 2147483647 bytes"),
        ((-5).to_bytes(4, "big", signed=True), "announced an answer of -5 bytes"),
        ((0).to_bytes(4, "big"), "announced an answer of 0 bytes"),
    ],
)
def test_a_broken_response_closes_the_connection_and_is_retriable(servers: list[Server], response: bytes, message: str) -> None:
    with pytest.raises(RetriableError, match=message):
        asked(servers, response)


@pytest.mark.slow
def test_a_silent_peer_is_given_up_at_the_deadline(servers: list[Server]) -> None:
    with pytest.raises(RetriableError, match=r"receiving|gave up"):
        asked(servers, b"\x00", closes=False, ms=200)


def test_a_receive_buffer_grows_to_its_bound_and_no_further(servers: list[Server]) -> None:
    buffer = ReceiveBuffer(8, max_bytes=64)
    assert len(asked(servers, frame(1, bytes(60)), buffer=buffer)) == 64
    with pytest.raises(RetriableError, match="at most 64"):
        asked(servers, frame(1, bytes(61)), buffer=buffer)


def test_a_cluster_that_cannot_be_reached_is_retried_until_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        time.sleep(seconds)

    cluster = Cluster(
        ClientConfig.from_properties({"bootstrap.servers": f"127.0.0.1:{port}"}),
        sleep=sleep,
        jitter=lambda: 1.0,
    )
    with pytest.raises(RetriableError, match="gave up asking for metadata"):
        cluster.cluster_id(deadline(100))
    assert len(pauses) > 2
    cluster.close()


def test_a_response_in_front_of_the_close_is_received_before_the_connection_counts_as_closed(servers: list[Server]) -> None:
    correlation, body = (1).to_bytes(4, "big"), b"answer"
    server = Server((4 + len(body)).to_bytes(4, "big") + correlation + body, closes=True)
    servers.append(server)
    connection = Connection(Transport("127.0.0.1", server.port, deadline(3_000)), "test", 1 << 20)
    assert connection.check_open()
    connection.send(connection.next_correlation_id(), [b"question"], deadline(3_000))
    server.thread.join()
    patience = deadline(3_000)
    while not connection.transport.is_closed_by_peer():
        patience.require("the end of the connection")
    assert connection.check_open()
    assert bytes(connection.receive(deadline(3_000))) == correlation + body
    assert not connection.check_open()
    assert connection.is_closed


@contextlib.contextmanager
def connection_to(servers: list[Server], responses: bytes) -> Iterator[Connection]:
    """Yield a connection to a server that stays open behind its responses."""
    server = Server(responses, closes=False)
    servers.append(server)
    connection = Connection(Transport("127.0.0.1", server.port, deadline(3_000)), "me", max_frame_bytes=1_000)
    with contextlib.closing(connection):
        yield connection


def test_responses_that_were_received_together_are_returned_together_and_count_once_they_are_taken(servers: list[Server]) -> None:
    bodies = [bytes([n]) * 5 for n in range(1, 7)]
    responses = b"".join(frame(n, body) for n, body in enumerate(bodies, start=1)) + frame(7, b"longer than the others")
    with connection_to(servers, responses) as connection:
        connection.send_several(range(1, 8), [b"seven requests"], deadline(3_000))
        assert bytes(connection.receive(deadline(3_000))[4:]) == bodies[0]
        assert [bytes(response[4:]) for response in connection.received_alike(9, most=3)] == bodies[1:4]
        alike = connection.received_alike(9, most=100)
        assert [bytes(response[4:]) for response in alike] == bodies[1:6]
        assert connection.outstanding == 6
        connection.take_received(4, 9)
        assert connection.outstanding == 2
        assert not len(connection.received_alike(9, most=100)), "one alone is received as ever"
        assert bytes(connection.receive(deadline(3_000))[4:]) == bodies[5]
        assert len(connection.receive(deadline(3_000))) == 26
        assert not len(connection.received_alike(9, most=100))


def test_a_response_that_answers_another_request_is_not_returned_with_those_before_it(servers: list[Server]) -> None:
    responses = b"".join(frame(n, b"body") for n in (1, 2, 3, 9, 5))
    with connection_to(servers, responses) as connection:
        connection.send_several(range(1, 6), [b"five requests"], deadline(3_000))
        connection.receive(deadline(3_000))
        alike = connection.received_alike(8, most=100)
        assert [int.from_bytes(response[:4], "big") for response in alike] == [2, 3]
        connection.take_received(2, 8)
        with pytest.raises(RetriableError, match="answered request 9"):
            connection.receive(deadline(3_000))


def test_responses_to_more_requests_than_were_sent_are_not_returned(servers: list[Server]) -> None:
    responses = b"".join(frame(n, b"body") for n in range(1, 9))
    with connection_to(servers, responses) as connection:
        connection.send_several((1, 2, 3), [b"three requests"], deadline(3_000))
        connection.receive(deadline(3_000))
        assert len(connection.received_alike(8, most=100)) == 2
