"""Byte streams, plain and within TLS, from peers that decide how their bytes are cut into records and segments."""

from __future__ import annotations

import contextlib
import select
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.security.certificates import Authority, Identity
from tests.support.deadlines import deadline

from shallow_mirror.broker.net import Transport
from shallow_mirror.broker.net.tls_transport import TlsTransport
from shallow_mirror.broker.net.transport import first_readable
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError

RECORD_BYTES = 16_384


def body(size: int) -> bytes:
    return bytes(number * 7 % 251 for number in range(size))


class Peer:
    """The server's side of a connection, within TLS if there is a context. Its bytes on the wire are sent by hand."""

    def __init__(self, connection: socket.socket, context: ssl.SSLContext | None) -> None:
        self.socket = connection
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = None if context is None else context.wrap_bio(self._in, self._out, server_side=True)
        if self._tls is not None:
            self._complete(self._tls.do_handshake)

    def on_the_wire(self, data: bytes, record_bytes: int = RECORD_BYTES) -> bytes:
        if self._tls is None:
            return data
        for start in range(0, len(data), record_bytes):
            self._tls.write(data[start : start + record_bytes])
        return self._out.read()

    def send(self, data: bytes, record_bytes: int = RECORD_BYTES) -> None:
        self.socket.sendall(self.on_the_wire(data, record_bytes))

    def close_notify(self) -> None:
        assert self._tls is not None
        with contextlib.suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        self.socket.sendall(self._out.read())

    def _complete(self, step: Callable[[], None]) -> None:
        while True:
            try:
                step()
            except ssl.SSLWantReadError:
                self.socket.sendall(self._out.read())
                self._in.write(self.socket.recv(1 << 16))
                continue
            return self.socket.sendall(self._out.read())


class Streams:
    """Servers of one kind, and transports to them."""

    def __init__(self, identity: Identity | None, ca: Path | None, version: ssl.TLSVersion | None) -> None:
        self._server = self._client = None
        if identity is not None and ca is not None and version is not None:
            self._server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._server.load_cert_chain(identity.certificate_file, identity.key_file)
            self._server.maximum_version = version
            self._client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            self._client.load_verify_locations(ca)

    @property
    def is_tls(self) -> bool:
        return self._client is not None

    def transport_to(self, port: int) -> Transport:
        if self._client is None:
            return Transport("127.0.0.1", port, deadline())
        transport = TlsTransport("127.0.0.1", port, self._client, deadline())
        transport.handshake(deadline())
        return transport

    @contextlib.contextmanager
    def to(self, serve: Callable[[Peer], None]) -> Iterator[Transport]:
        """Yield a transport to a server that runs `serve` once."""
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def accept() -> None:
                connection, _ = listener.accept()
                with connection, contextlib.suppress(ConnectionError):
                    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    serve(Peer(connection, self._server))

            thread = threading.Thread(target=accept)
            thread.start()
            transport = self.transport_to(listener.getsockname()[1])
            try:
                yield transport
            finally:
                transport.close()
                thread.join(10)
            assert not thread.is_alive()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def authority(folder: Path) -> Authority:
    return Authority(folder, "ca")


@pytest.fixture(scope="module")
def identity(authority: Authority) -> Identity:
    return authority.signed("here", ("127.0.0.1",))


@pytest.fixture(params=["plain", "TLSv1_2", "TLSv1_3"])
def streams(request: pytest.FixtureRequest, authority: Authority, identity: Identity) -> Streams:
    if request.param == "plain":
        return Streams(None, None, None)
    return Streams(identity, authority.identity.certificate_file, ssl.TLSVersion[request.param])


def received(transport: Transport, size: int, silence_ms: float | None = None) -> bytes:
    view = memoryview(bytearray(size))
    transport.recv_into(view, deadline(), silence_ms)
    return bytes(view)


@pytest.mark.slow
@pytest.mark.parametrize("piece", [1_000, 5_000, 40_000])
def test_records_cut_into_pieces_that_come_one_by_one_are_put_together(streams: Streams, piece: int) -> None:
    data = body(150_000)

    def in_pieces(peer: Peer) -> None:
        wire = peer.on_the_wire(data)
        for start in range(0, len(wire), piece):
            peer.socket.sendall(wire[start : start + piece])
            time.sleep(0.0005)

    with streams.to(in_pieces) as transport:
        assert received(transport, 100_003) == data[:100_003]
        assert received(transport, 49_997) == data[100_003:]


def test_many_small_records_fill_views_of_other_sizes(streams: Streams) -> None:
    data = body(60_000)
    with streams.to(lambda peer: peer.send(data, record_bytes=37)) as transport:
        sizes = (1, 36, 38, 5, 20_000, 39_920)
        assert b"".join(received(transport, size) for size in sizes) == data


def test_what_is_left_of_a_record_is_pending_for_the_next_view(streams: Streams) -> None:
    data = body(2 * RECORD_BYTES)
    with streams.to(lambda peer: peer.send(data)) as transport:
        first = received(transport, RECORD_BYTES + 10)
        assert transport.has_pending() == streams.is_tls
        assert first_readable([transport], deadline()) is transport
        assert first + received(transport, RECORD_BYTES - 10) == data


@pytest.mark.slow
def test_a_small_frame_behind_a_large_one_wakes_at_once(streams: Streams) -> None:
    large, small, is_large_there = body(900_000), b"small", threading.Event()

    def one_after_the_other(peer: Peer) -> None:
        wire = peer.on_the_wire(large)
        peer.socket.sendall(wire[:200_000])
        time.sleep(0.05)
        peer.socket.sendall(wire[200_000:])
        is_large_there.wait(10)
        time.sleep(0.05)
        peer.send(small)

    with streams.to(one_after_the_other) as transport:
        assert received(transport, len(large)) == large
        assert transport._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
        is_large_there.set()
        assert first_readable([transport], deadline()) is transport
        assert received(transport, len(small)) == small


@pytest.mark.slow
def test_a_slow_sender_wakes_the_receiver_for_many_segments_at_once(streams: Streams) -> None:
    data, polls = body(200_000), 0
    wait = Transport._wait_to_receive

    def in_segments(peer: Peer) -> None:
        wire = peer.on_the_wire(data)
        for start in range(0, len(wire), 1_000):
            peer.socket.sendall(wire[start : start + 1_000])
            time.sleep(0.0005)

    def counted(transport: Transport, expected: int, within: Deadline) -> None:
        nonlocal polls
        polls += 1
        wait(transport, expected, within)

    with pytest.MonkeyPatch.context() as patch, streams.to(in_segments) as transport:
        patch.setattr(Transport, "_wait_to_receive", counted)
        assert received(transport, len(data)) == data
    assert polls < 60


@pytest.mark.slow
def test_silence_ends_the_wait_and_a_slow_stream_does_not(streams: Streams) -> None:
    data, over = body(100_000), threading.Event()

    def slowly(peer: Peer) -> None:
        for start in range(0, len(data), 5_000):
            peer.send(data[start : start + 5_000])
            time.sleep(0.05)
        peer.send(b"x")
        over.wait(10)

    with streams.to(slowly) as transport:
        assert received(transport, len(data), silence_ms=900) == data
        began = time.monotonic()
        with pytest.raises(RetriableError, match="receiving from"):
            received(transport, 500_000, silence_ms=300)
        assert 0.25 < time.monotonic() - began < 5
        over.set()


def test_a_stream_that_ends_in_a_frame_is_reported(streams: Streams) -> None:
    with streams.to(lambda peer: peer.send(body(20_000))) as transport:
        with pytest.raises(RetriableError):
            received(transport, 300_000)


def test_a_close_notify_in_a_frame_is_reported_at_once(authority: Authority, identity: Identity) -> None:
    streams = Streams(identity, authority.identity.certificate_file, ssl.TLSVersion.TLSv1_3)
    over = threading.Event()

    def end_in_the_middle(peer: Peer) -> None:
        peer.send(body(20_000))
        peer.close_notify()
        over.wait(10)  # the TCP connection remains

    with streams.to(end_in_the_middle) as transport:
        try:
            with pytest.raises(RetriableError, match="closed the connection"):
                received(transport, 300_000)
        finally:
            over.set()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the program openssl")
@pytest.mark.parametrize(("version", "command"), [("-tls1_3", b"K\n"), ("-tls1_3", b"k\n"), ("-tls1_2", b"r\n")])
def test_new_keys_in_the_stream_are_used_unseen(authority: Authority, identity: Identity, version: str, command: bytes) -> None:
    """`K`: both sides update their keys; `k`: the peer does; `r`: TLS 1.2 renegotiates."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    files = ("-cert", str(identity.certificate_file), "-key", str(identity.key_file))
    server = subprocess.Popen(
        ["openssl", "s_server", "-accept", f"127.0.0.1:{port}", version, "-naccept", "1", *files],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
    )
    commands, printed = server.stdin, server.stdout
    assert commands is not None
    assert printed is not None
    output = bytearray()

    def shown(text: bytes, within_s: float = 10) -> None:
        give_up_at = time.monotonic() + within_s
        while text not in output:
            assert time.monotonic() < give_up_at, bytes(output)
            if select.select([printed], [], [], 0.1)[0]:
                output.extend(printed.read(4096) or b"")

    with server:
        try:
            shown(b"ACCEPT")
            streams = Streams(identity, authority.identity.certificate_file, ssl.TLSVersion.TLSv1_3)
            transport = streams.transport_to(port)
            shown(b"CIPHER is")
            for number in range(3):
                line = f"line {number}\n".encode()
                commands.write(command)
                time.sleep(0.2)
                commands.write(line)
                assert received(transport, len(line)) == line
                transport.send_parts([b"answer %d " % number, b"x" * 20_000, b"\n"], deadline())
                shown(b"answer %d" % number)
            transport.close()
        finally:
            server.kill()
