"""A strict server of one object, with TLS or without: it answers signed GETs of ranges, with faults that a test plans."""

from __future__ import annotations

import enum
import re
import socket
import threading
import time
from collections import deque
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

from tests.fakes.local_http import LocalHttpServer

_RANGE = re.compile(r"bytes=(0|[1-9]\d*)-(0|[1-9]\d*)")
_MOST_HANG_S = 20.0

PATH = "/bucket/a1/x%20y.batches"
SIGNATURE = "X-Amz-Signature=5ec2e7"
TARGET = f"{PATH}?X-Amz-Expires=60&{SIGNATURE}"


class Fault(enum.Enum):
    """What happens to one request instead of its response."""

    ANSWER_500 = 500
    ANSWER_503 = 503
    ANSWER_429 = 429
    ANSWER_403 = 403
    ANSWER_404 = 404
    CUT = "the connection ends without a response"
    CUT_HEAD = "the connection ends inside the head"
    CUT_HALF = "the connection ends after half of the body"
    SHORT = "the response announces all bytes, has one less, and the connection ends"
    HANG = "no response comes"
    HANG_HALF = "half of the body comes, and no more"
    TRICKLE = "a byte of the body comes now and then"
    GARBAGE = "what comes is not HTTP"
    WHOLE = "status 200 with the whole object"
    OTHER_RANGE = "the range before the wanted one"
    CHUNKED_503 = "503 with a body in chunks, as Amazon S3 sends it"
    SAY_CLOSE = "the wanted bytes, and the connection is closed"
    CLOSE_SILENTLY = "the wanted bytes, and the connection is closed without a word"


_STATUS_ONLY = {Fault.ANSWER_500, Fault.ANSWER_503, Fault.ANSWER_429, Fault.ANSWER_403, Fault.ANSWER_404}
_CODES = {500: "InternalError", 503: "SlowDown", 429: "TooManyRequests", 403: "AccessDenied", 404: "NoSuchKey"}


class RangeServer(LocalHttpServer):
    """`faults`: of the next requests, one each; None is none. `requests`: the range of each, as written. `connections`: how many.

    `record_bytes`: the most that a TLS record of a body has.
    """

    def __init__(self, data: bytes, *, certificate_and_key: Path | None = None, record_bytes: int = 1 << 20) -> None:
        self.data, self.record_bytes = data, record_bytes
        self.faults: deque[Fault | None] = deque()
        self.requests: list[str] = []
        self.connections = 0
        self.is_over = threading.Event()
        super().__init__(_handler_of(self), certificate_and_key)
        self._server.handle_error = lambda request, client_address: None  # type: ignore[method-assign] # clients give up

    @property
    def url(self) -> str:
        """Return the signed URL."""
        return f"{super().url}{TARGET}"

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        super().__exit__()


def _handler_of(server: RangeServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            server.connections += 1

        def do_GET(self) -> None:
            wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
            server.requests.append(self.headers.get("Range", ""))
            if self.path != TARGET or self.headers.get_all("Host") != [server.authority]:
                return self._error(403, "SignatureDoesNotMatch")
            if wanted is None or int(wanted[2]) < int(wanted[1]) or self.headers.get("Accept-Encoding") != "identity":
                return self._error(400, "InvalidArgument")
            start, end = int(wanted[1]), int(wanted[2]) + 1
            fault = server.faults.popleft() if server.faults else None
            if fault in _STATUS_ONLY:
                assert fault is not None
                return self._error(fault.value, _CODES[fault.value])
            if fault in (Fault.CUT, Fault.HANG, Fault.GARBAGE, Fault.CUT_HEAD):
                if fault is Fault.HANG:
                    server.is_over.wait(_MOST_HANG_S)
                if fault in (Fault.GARBAGE, Fault.CUT_HEAD):
                    self.wfile.write(b"no such protocol\r\n\r\n" if fault is Fault.GARBAGE else b"HTTP/1.1 206 Partial")
                return self._cut()
            if fault is Fault.CHUNKED_503:
                return self._error(503, "SlowDown", is_chunked=True)
            if fault is Fault.WHOLE:
                return self._send(200, server.data, {})
            if start >= len(server.data):
                return self._error(416, "InvalidRange")
            if fault is Fault.OTHER_RANGE:
                start, end = 0, end - start
            return self._send_range(start, min(end, len(server.data)), fault)

        def _send_range(self, start: int, end: int, fault: Fault | None) -> None:
            body = server.data[start:end]
            headers = {"Content-Range": f"bytes {start}-{end - 1}/{len(server.data)}"}
            if fault is Fault.SAY_CLOSE:
                headers["Connection"] = "close"
                self.close_connection = True
            sent = {Fault.CUT_HALF: body[: len(body) // 2], Fault.HANG_HALF: body[: len(body) // 2], Fault.SHORT: body[:-1]}
            if fault is not Fault.TRICKLE:
                self._send(206, sent.get(fault, body) if fault else body, headers, len(body))
            else:
                self._send(206, b"", headers, len(body))
                for position in range(len(body)):
                    if server.is_over.is_set():
                        break
                    self.wfile.write(body[position : position + 1])
                    time.sleep(0.02)
            if fault is Fault.HANG_HALF:
                server.is_over.wait(_MOST_HANG_S)
            if fault in sent or fault is Fault.CLOSE_SILENTLY:
                self._cut()

        def _send(self, status: int, body: bytes, headers: dict[str, str], announced: int | None = None) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body) if announced is None else announced))
            self.end_headers()
            for position in range(0, len(body), server.record_bytes):
                self.wfile.write(body[position : position + server.record_bytes])

        def _error(self, status: int, code: str, *, is_chunked: bool = False) -> None:
            body = f'<?xml version="1.0"?>\n<Error><Code>{code}</Code><Message>Please wait.</Message></Error>'.encode()
            if not is_chunked:
                return self._send(status, body, {"Content-Type": "application/xml"})
            self.send_response(status)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
            return None

        def _cut(self) -> None:
            self.close_connection = True
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, format: str, *args: Any) -> None:
            return None

    return Handler
