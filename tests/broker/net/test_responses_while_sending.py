"""Responses that come while requests are being sent: a broker takes no request before it could send the response before it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.support.deadlines import deadline

from shallow_mirror.broker.net import Transport, connection as connections
from shallow_mirror.broker.net.connection import READ_AHEAD_BYTES, Connection
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError

REQUESTS, REQUEST_BYTES, RESPONSE_BYTES = 4_000, 4_000, 2_000
"""The responses are more than the buffers of two sockets hold."""


@contextmanager
def connected(serve: Callable[[socket.socket], None]) -> Iterator[Connection]:
    """Yield a connection to a server that does `serve`, with socket buffers that do not grow."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)

    def accept() -> None:
        peer, _ = listener.accept()
        with peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
            serve(peer)

    thread = threading.Thread(target=accept)
    thread.start()
    connection = Connection(Transport("127.0.0.1", listener.getsockname()[1], deadline(20_000)), "test", 1 << 20)
    try:
        yield connection
    finally:
        connection.close()
        thread.join()
        listener.close()


def respond_to_each(peer: socket.socket) -> None:
    with peer.makefile("rb") as requests:
        for _ in range(REQUESTS):
            head = requests.read(8)
            requests.read(REQUEST_BYTES - 4)
            peer.sendall((4 + RESPONSE_BYTES).to_bytes(4, "big") + head[4:] + bytes(RESPONSE_BYTES))


def send_all(connection: Connection, until: Deadline) -> list[int]:
    numbers = [connection.next_correlation_id() for _ in range(REQUESTS)]
    for number in numbers:
        head = REQUEST_BYTES.to_bytes(4, "big") + number.to_bytes(4, "big")
        connection.send(number, [head, bytes(REQUEST_BYTES - 4)], until)
    return numbers


@pytest.mark.slow
def test_responses_are_taken_while_the_broker_takes_no_requests() -> None:
    with connected(respond_to_each) as connection:
        for number in send_all(connection, deadline(20_000)):
            frame = connection.receive(deadline(20_000))
            assert (int.from_bytes(frame[:4], "big"), len(frame)) == (number, 4 + RESPONSE_BYTES)
        assert not connection.outstanding
        assert len(connection._ahead) <= 2 * READ_AHEAD_BYTES


@pytest.mark.slow
def test_no_more_is_taken_than_the_limit_and_the_deadline_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    def until_closed(peer: socket.socket) -> None:
        try:
            respond_to_each(peer)
        except OSError:
            return

    monkeypatch.setattr(connections, "MOST_AHEAD_BYTES", 64 << 10)
    with connected(until_closed) as connection:
        with pytest.raises(RetriableError, match=r"DEADLINE|timed out"):
            send_all(connection, deadline(500))
        assert len(connection._ahead) == 64 << 10


@pytest.mark.slow
def test_a_broker_that_closes_while_it_is_sent_to_is_an_error() -> None:
    def leave(peer: socket.socket) -> None:
        peer.recv(1)
        peer.shutdown(socket.SHUT_WR)
        time.sleep(0.2)

    with connected(leave) as connection, pytest.raises(RetriableError, match=r"closed the connection|reset"):
        send_all(connection, deadline(20_000))
