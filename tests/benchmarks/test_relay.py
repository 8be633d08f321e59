"""The relay itself, between a client and an echo server of this process."""

from __future__ import annotations

import random
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from benchmarks.running_relay import HOST, PROGRAM, Relay, running_relay

RTT_MS = 100
TIMEOUT_S = 20.0

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module", autouse=True)
def _built() -> None:
    if not PROGRAM.path.is_file() and shutil.which("go") is None:
        pytest.skip("the relay needs Go, to be built once: install Go 1.24 or newer (https://go.dev/dl)")
    PROGRAM.build()


@contextmanager
def connected(*options: str, rtt_ms: float = RTT_MS) -> Iterator[tuple[Relay, socket.socket, socket.socket]]:
    """Yield a relay, a client, and the other end of its connection."""
    with socket.create_server((HOST, 0)) as server, running_relay(rtt_ms, *options) as relay:
        server.settimeout(TIMEOUT_S)
        relay.connect_to(f"{HOST}:{server.getsockname()[1]}")
        with socket.create_connection((HOST, relay.port), TIMEOUT_S) as client:
            far, _ = server.accept()
            with far:
                far.settimeout(TIMEOUT_S)
                far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                yield relay, client, far


def received(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (part := connection.recv(1 << 20)):
        data += part
    return bytes(data)


def round_trip_s(client: socket.socket, far: socket.socket) -> float:
    begin = time.monotonic()
    client.sendall(b"there")
    assert received(far, 5) == b"there"
    far.sendall(b"back")
    assert received(client, 4) == b"back"
    return time.monotonic() - begin


def test_a_round_trip_takes_the_time_and_the_first_one_that_of_connecting_as_well() -> None:
    began = time.monotonic()  # the relay counts from the connection on, which this process may see later
    with connected() as (_, client, far):
        round_trip_s(client, far)
        first, second = time.monotonic() - began, round_trip_s(client, far)
    assert first >= 2 * RTT_MS / 1000
    assert RTT_MS / 1000 <= second < 5.0


def test_a_relay_gets_another_distance_while_connections_are_open() -> None:
    with connected(rtt_ms=0) as (relay, client, far):
        round_trip_s(client, far)
        relay.set_round_trip(RTT_MS)
        assert round_trip_s(client, far) >= RTT_MS / 1000


@pytest.mark.parametrize("options", [(), ("-buffer-mb", "1")])
def test_bytes_arrive_complete_and_in_order_in_both_directions(options: tuple[str, ...]) -> None:
    chance = random.Random(1)
    there, back = chance.randbytes(8_000_000), chance.randbytes(5_000_000)

    def send(connection: socket.socket, data: bytes) -> None:
        at = 0
        while at < len(data):
            size = chance.choice([1, 100, 10_000, 1_000_000])
            connection.sendall(data[at : at + size])
            at += size

    with connected(*options, rtt_ms=20) as (_, client, far):
        senders = [threading.Thread(target=send, args=(sender, data)) for sender, data in ((client, there), (far, back))]
        for sender in senders:
            sender.start()
        results: list[bytes] = []
        reader = threading.Thread(target=lambda: results.append(received(client, len(back))))
        reader.start()
        assert received(far, len(there)) == there
        for thread in (*senders, reader):
            thread.join(TIMEOUT_S)
    assert results == [back]


def test_chunks_under_way_do_not_wait_for_each_other() -> None:
    chunks = 20
    with connected() as (_, client, far):
        round_trip_s(client, far)
        begin = time.monotonic()
        for _ in range(chunks):
            client.sendall(b"x")
            time.sleep(0.005)
        assert received(far, chunks) == b"x" * chunks
        assert time.monotonic() - begin < chunks * RTT_MS / 2 / 1000


@pytest.mark.parametrize("is_client_first", [True, False])
def test_what_one_side_sent_before_it_closed_arrives_and_then_the_other_side_ends(is_client_first: bool) -> None:
    with connected() as (_, client, far):
        first, second = (client, far) if is_client_first else (far, client)
        first.sendall(b"last words")
        first.close()
        assert received(second, 1000) == b"last words"


def test_a_client_ends_where_the_relay_reaches_no_broker() -> None:
    with socket.create_server((HOST, 0)) as server:
        closed_port = server.getsockname()[1]
    with running_relay(RTT_MS) as relay:
        relay.connect_to(f"{HOST}:{closed_port}")
        with socket.create_connection((HOST, relay.port), TIMEOUT_S) as client:
            assert client.recv(1) == b""


def test_a_stall_holds_everything_for_its_time() -> None:
    with connected("-stall-s", "1") as (relay, client, far):
        round_trip_s(client, far)
        begin = time.monotonic()
        relay.process.send_signal(signal.SIGUSR1)
        time.sleep(0.1)
        round_trip_s(client, far)
        assert time.monotonic() - begin >= 0.95
        assert round_trip_s(client, far) < 0.8


def test_a_relay_ends_with_the_program_that_started_it() -> None:
    with running_relay(RTT_MS) as relay:
        relay.connect_to(f"{HOST}:1")
        assert relay.process.stdin is not None
        relay.process.stdin.close()
        assert relay.process.wait(TIMEOUT_S) == 0


def test_no_relay_and_no_port_is_left_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), running_relay(RTT_MS) as relay:
        raise ZeroDivisionError
    assert relay.process.poll() is not None
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((HOST, relay.port), TIMEOUT_S)
