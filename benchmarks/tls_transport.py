"""The transports alone: what a GB costs this process, plain and within TLS, from a peer that is as fast as it can or not.

    python -m benchmarks.tls_transport --gb 1 --runs 3 --mb-per-s 160

The peer is another process with OpenSSL, at the other end of a loopback connection. It sends records of 16 KiB one by one where
its rate is given, as a broker does, and pieces of 1 MiB otherwise. CPU is that of this process.
"""

from __future__ import annotations

import argparse
import os
import socket
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.security.certificates import Authority

from benchmarks.baselines import Cost, measured
from benchmarks.hot_path import line
from shallow_mirror.broker.net import Transport
from shallow_mirror.broker.net.tls_transport import TlsTransport
from shallow_mirror.deadline import Deadline

_PIECE_BYTES = 1 << 20
_RECORD_BYTES = 16_384
_FRAME_BYTES = 4 << 20
_PART_BYTES = 340_000
_HEADER_BYTES = 61
_TIMEOUT_MS = 300_000

Work = Callable[[Transport, int], None]


class Peers:
    """Contexts of both ends, with a certificate that is made on the spot."""

    def __init__(self, folder: Path) -> None:
        authority = Authority(folder, "ca")
        identity = authority.signed("peer", ("127.0.0.1",))
        self._server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._server.load_cert_chain(identity.certificate_file, identity.key_file)
        self._client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._client.load_verify_locations(authority.identity.certificate_file)

    @contextmanager
    def running(self, serve: Callable[[socket.socket], None], *, is_tls: bool) -> Iterator[Transport]:
        """Yield a transport to a process that runs `serve`."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            if os.fork() == 0:
                try:
                    self._serve(listener, serve, is_tls)
                finally:
                    os._exit(0)
            host, port = listener.getsockname()
        transport = TlsTransport(host, port, self._client, _deadline()) if is_tls else Transport(host, port, _deadline())
        if isinstance(transport, TlsTransport):
            transport.handshake(_deadline())
        yield transport
        transport.close()
        os.wait()

    def _serve(self, listener: socket.socket, serve: Callable[[socket.socket], None], is_tls: bool) -> None:
        peer, _ = listener.accept()
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        serve(self._server.wrap_socket(peer, server_side=True) if is_tls else peer)


def sender(size: int, mb_per_s: float) -> Callable[[socket.socket], None]:
    """Return a peer that sends `size` bytes. `mb_per_s` 0: as fast as it can."""

    def send(peer: socket.socket) -> None:
        piece = memoryview(bytearray(_RECORD_BYTES if mb_per_s else _PIECE_BYTES))
        began = time.monotonic()
        for sent in range(0, size, len(piece)):
            while mb_per_s and time.monotonic() - began < sent / mb_per_s / 1e6:
                pass
            peer.sendall(piece)

    return send


def receiver(size: int) -> Callable[[socket.socket], None]:
    """Return a peer that receives `size` bytes, and then sends one."""

    def receive(peer: socket.socket) -> None:
        piece, received = memoryview(bytearray(_PIECE_BYTES)), 0
        while received < size:
            received += peer.recv_into(piece)
        peer.sendall(b"x")

    return receive


def receive_all(transport: Transport, size: int) -> None:
    frame = memoryview(bytearray(_FRAME_BYTES))
    for _ in range(0, size, _FRAME_BYTES):
        transport.recv_into(frame, _deadline())


def send_all(transport: Transport, size: int) -> None:
    """Send requests of a small and a large part."""
    header, part = bytes(_HEADER_BYTES), memoryview(bytearray(_PART_BYTES))
    for sent in range(0, size, _HEADER_BYTES + _PART_BYTES):
        transport.send_parts([header, part[: max(size - sent - _HEADER_BYTES, 0)]], _deadline())
    transport.recv_into(memoryview(bytearray(1)), _deadline())


def _deadline() -> Deadline:
    return Deadline.after_ms(_TIMEOUT_MS, time.monotonic)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.tls_transport", description=__doc__.partition("\n")[0])
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--mb-per-s", type=float, default=160.0, help="of the peer that is slower than this process")
    options = parser.parse_args()
    size = int(options.gb * 1e9) // _FRAME_BYTES * _FRAME_BYTES
    print(f"{'':<40}{'MB/s':>8}{'CPU s/GB':>10}{'user':>8}{'system':>8}")
    with tempfile.TemporaryDirectory(prefix="shallow-mirror-bench-") as folder:
        peers = Peers(Path(folder))
        cases: tuple[tuple[str, Callable[[socket.socket], None], Work], ...] = (
            ("receive", sender(size, 0), receive_all),
            (f"receive at {options.mb_per_s:g} MB/s", sender(size, options.mb_per_s), receive_all),
            ("send", receiver(size), send_all),
        )
        for name, serve, work in cases:
            for is_tls in (False, True):
                costs = [_cost(peers, serve, work, size, is_tls) for _ in range(options.runs)]
                print(line(f"{name}, {'TLS' if is_tls else 'plain'}", costs), flush=True)


def _cost(peers: Peers, serve: Callable[[socket.socket], None], work: Work, size: int, is_tls: bool) -> Cost:
    with peers.running(serve, is_tls=is_tls) as transport:

        def moved() -> tuple[int, int]:
            work(transport, size)
            return size, 1

        return measured(moved)


if __name__ == "__main__":
    main()
