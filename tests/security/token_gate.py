"""A listener with OAUTHBEARER in front of a broker without security: for tokens that are no JWT, as those of MSK and Google.

The broker's own validator accepts JWTs only. Behind the sign-in all bytes are passed on as they are.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from kafka.protocol.sasl import SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeResponse
from tests.fakes.kafka_codec import framed

HOST = "127.0.0.1"
_HANDSHAKE, _API_VERSIONS, _AUTHENTICATE = 17, 18, 36
_HANDSHAKE_VERSION, _AUTHENTICATE_VERSION = 1, 2
_UNSUPPORTED_MECHANISM, _FAILED = 33, 58
_BEARER = b"auth=Bearer "


class TokenGate:
    """Context manager. `problem_of` a token: why it is refused; None: it is not. The broker advertises `port`."""

    def __init__(self, problem_of: Callable[[str], str | None]) -> None:
        self._problem_of = problem_of
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self.address = f"{HOST}:{self.port}"
        self.accepted: list[str] = []
        """Tokens, one for each connection that signed in."""
        self.problems: list[str] = []
        self._upstream = (HOST, 0)
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []

    def connect(self, upstream: str) -> None:
        """Pass connections on to `host:port` from now on."""
        host, _, port = upstream.rpartition(":")
        self._upstream = host, int(port)

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="token gate", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._sockets.add(client)
            self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(self._upstream) as broker:
            for each in (client, broker):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets.add(broker)
            if self._signs_in(client, broker):
                back = threading.Thread(target=_pass_on, args=(broker, client), daemon=True)
                back.start()
                _pass_on(client, broker)
                back.join()

    def _signs_in(self, client: socket.socket, broker: socket.socket) -> bool:
        """Answer until the client has authenticated; False: it was refused, or sent another request."""
        is_refused = False
        while True:
            frame = _frame_of(client)
            key = int.from_bytes(frame[:2], "big")
            version, correlation_id = int.from_bytes(frame[2:4], "big"), frame[4:8]
            if key == _API_VERSIONS:
                broker.sendall(framed(frame))
                client.sendall(framed(_frame_of(broker)))
            elif (key, version) == (_HANDSHAKE, _HANDSHAKE_VERSION):
                code = 0 if frame.endswith(b"\x00\x0bOAUTHBEARER") else _UNSUPPORTED_MECHANISM
                response = SaslHandshakeResponse[version](error_code=code, mechanisms=["OAUTHBEARER"])
                client.sendall(framed(correlation_id + bytes(response.encode())))
            elif (key, version) == (_AUTHENTICATE, _AUTHENTICATE_VERSION):
                message = SaslAuthenticateRequest[version].decode(frame, header=True).auth_bytes
                problem = None if is_refused else self._problem(message)
                # As RFC 7628 has it: the reason, one more byte of the client, the failure.
                reason = b"" if problem is None else json.dumps({"status": "invalid_token"}).encode()
                response = SaslAuthenticateResponse[version](
                    error_code=_FAILED if is_refused else 0,
                    error_message="Authentication failed" if is_refused else None,
                    auth_bytes=reason,
                    session_lifetime_ms=0,
                )
                client.sendall(framed(correlation_id + b"\x00" + bytes(response.encode())))
                if is_refused or problem is None:
                    return not is_refused
                is_refused = True
            else:
                self.problems.append(f"api key {key} version {version} before the sign-in")
                return False

    def _problem(self, message: bytes) -> str | None:
        parts = message.split(b"\x01")
        if parts[0] != b"n,," or not parts[1].startswith(_BEARER) or parts[-2:] != [b"", b""]:
            problem: str | None = "no message of OAUTHBEARER"
        else:
            token = parts[1].removeprefix(_BEARER).decode()
            problem = self._problem_of(token)
        if problem is None:
            self.accepted.append(token)
        else:
            self.problems.append(problem)
        return problem


def _frame_of(peer: socket.socket) -> bytes:
    return _exactly(peer, int.from_bytes(_exactly(peer, 4), "big"))


def _exactly(peer: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = peer.recv(size - len(data))
        if not part:
            raise ConnectionError("the connection was closed")
        data += part
    return bytes(data)


def _pass_on(sender: socket.socket, receiver: socket.socket) -> None:
    with suppress(OSError):
        while part := sender.recv(1 << 16):
            receiver.sendall(part)
    with suppress(OSError):
        receiver.shutdown(socket.SHUT_WR)
