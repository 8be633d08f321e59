"""Everywhere: one kept-alive connection to a store, which answers GET requests for a range of bytes into the caller's buffer."""

from __future__ import annotations

import contextlib
import http.client
import io
import re
import ssl
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult

from shallow_mirror.broker.net import Transport
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.object_store.tls_stream import TlsStream

_BUFFERED_BYTES = 8 << 10
"""Of the head of a response, and of a body's start behind it, until they are read."""
_MOST_ERROR_BYTES = 64 << 10
"""Of the body of an error: more is not read, and the connection is closed."""
_PARTIAL_CONTENT = 206
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(?:\d+|\*)")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Rejection:
    """A response other than the wanted bytes. `body`: its beginning, for an error of the store."""

    status: int
    phrase: str
    body: str


class RangeConnection:
    """Connected when made, to the host of a URL; within TLS if there is a context. For one thread at a time.

    Raises RetriableError, OSError (ssl.SSLError among it) and HTTPException; only `close` may follow then.
    """

    def __init__(self, url: SplitResult, context: ssl.SSLContext | None, deadline: Deadline) -> None:
        assert url.hostname is not None
        self._transport = Transport(url.hostname, url.port or _PORTS[url.scheme], deadline)
        self._deadline = deadline
        self._silence_ms: float | None = None
        self._is_kept_alive = True
        try:
            self._tls = None if context is None else TlsStream(self._transport, context, url.hostname, deadline)
        except BaseException:
            self._transport.close()
            raise

    def get(
        self, url: SplitResult, start: int, target: memoryview, user_agent: str, deadline: Deadline, silence_ms: float | None
    ) -> Rejection | None:
        """Fill `target` with the bytes of the object from `start`, and return None; else return the response.

        `silence_ms`: how long nothing may come, which ends the wait before the deadline.
        """
        self._deadline, self._silence_ms = deadline, silence_ms
        self._is_kept_alive = False  # until the response was read to its end
        self._send(_request(url, start, len(target), user_agent), deadline)
        response = http.client.HTTPResponse(self, method="GET")  # type: ignore[arg-type] # makefile is all that it asks for
        with contextlib.closing(response):
            response.begin()
            if not _has_range(response, start, len(target)):
                body = response.read(_MOST_ERROR_BYTES).decode("utf-8", "replace")
                self._is_kept_alive = response.isclosed() and not response.will_close
                return Rejection(response.status, response.reason, body)
            filled = 0
            while filled < len(target):
                size = response.readinto(target[filled:])
                if not size:
                    raise RetriableError("NETWORK_EXCEPTION", f"{self._transport.peer} ended its response after {filled} bytes")
                filled += size
            self._is_kept_alive = not response.will_close
            return None

    def can_be_reused(self) -> bool:
        """Return whether another request may be sent. A server may still close the connection when it comes."""
        return self._is_kept_alive and not self._transport.is_closed_by_peer()

    def close(self) -> None:
        self._transport.close()

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return the bytes of one response, as a socket does for http.client."""
        return io.BufferedReader(_ReceivedBytes(self), _BUFFERED_BYTES)

    def recv_into(self, view: memoryview) -> int:
        """Receive some bytes of the response that is under way."""
        deadline = self._deadline if self._silence_ms is None else self._deadline.sooner(self._silence_ms)
        # A larger view is not the buffer of `makefile`: it is the rest of a body, and as much will come.
        expected = len(view) if len(view) > _BUFFERED_BYTES else 1
        stream = self._transport if self._tls is None else self._tls
        return stream.recv_some_into(view, deadline, expected)

    def _send(self, request: bytes, deadline: Deadline) -> None:
        if self._tls is None:
            self._transport.send_parts([request], deadline)
        else:
            self._tls.send(request, deadline)


class _ReceivedBytes(io.RawIOBase):
    """Received bytes of one response. Closing it leaves the connection open."""

    def __init__(self, connection: RangeConnection) -> None:
        self._connection = connection

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._connection.recv_into(memoryview(buffer))


def _request(url: SplitResult, start: int, size: int, user_agent: str) -> bytes:
    lines = (
        f"GET {url.path}?{url.query} HTTP/1.1",
        f"Host: {url.netloc}",
        f"Range: bytes={start}-{start + size - 1}",
        f"User-Agent: {user_agent}",
        "Accept-Encoding: identity",
        "",
        "",
    )
    return "\r\n".join(lines).encode("latin-1")


def _has_range(response: http.client.HTTPResponse, start: int, size: int) -> bool:
    """Return whether a response announces exactly these bytes."""
    announced = _CONTENT_RANGE.fullmatch(response.getheader("Content-Range", "").strip())
    return (
        response.status == _PARTIAL_CONTENT
        and announced is not None
        and (int(announced[1]), int(announced[2])) == (start, start + size - 1)
        and response.length == size
        and response.getheader("Content-Encoding", "identity") == "identity"
    )
