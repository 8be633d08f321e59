"""An HTTP proxy in front of an object store that counts requests and does to chosen ones what networks and stores do to them.

    with StoreProxy(server.port) as proxy:
        fault = proxy.inject(StoreFault(harm=Harm.LOSE_ANSWER, method="PUT", path=r"_delta_log/.*json", count=1))

Requests and answers pass unchanged otherwise, so signatures hold: they cover the address that the client was given.
"""

from __future__ import annotations

import contextlib
import enum
import http.client
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

HOST = "127.0.0.1"
_BACKEND_TIMEOUT_S = 60.0
_MOST_HANG_S = 120.0
_PER_CONNECTION = ("connection", "keep-alive", "transfer-encoding", "content-length")


class Harm(enum.Enum):
    ANSWER_500 = "refused with 500, not applied"
    ANSWER_503 = "refused with 503, not applied"
    ANSWER_403 = "refused with 403, not applied"
    CUT = "the connection ends before it is applied"
    LOSE_ANSWER = "applied; the connection ends without an answer"
    HIDE_ANSWER = "applied; answered with 503"
    HANG = "the connection stays open without an answer; not applied"
    REPLACE = "what is there is deleted first, as if the store ignored If-None-Match"


_STATUS = {Harm.ANSWER_500: 500, Harm.ANSWER_503: 503, Harm.ANSWER_403: 403, Harm.HIDE_ANSWER: 503}
_CODES = {500: "InternalError", 503: "SlowDown", 403: "AccessDenied"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFault:
    """`path` is searched for in the request's path and query. `count` None: every matching request until `clear`."""

    harm: Harm
    method: str = ""
    path: str = ""
    count: int | None = None


class Injected:
    """A fault that is active, and how many requests it has met."""

    def __init__(self, fault: StoreFault) -> None:
        self.fault = fault
        self.hits = 0
        self.has_fired = threading.Event()
        self.is_cleared = threading.Event()

    def takes(self, method: str, path: str) -> bool:
        """Return whether this request meets the fault, and count it. The caller holds the proxy's lock."""
        fault = self.fault
        if self.is_cleared.is_set() or (fault.count is not None and self.hits >= fault.count):
            return False
        if not method.startswith(fault.method) or not re.search(fault.path, path):
            return False
        self.hits += 1
        self.has_fired.set()
        return True


class StoreProxy:
    """Listens on a free port of this machine until the block ends. For any thread."""

    def __init__(self, backend_port: int, delete: Callable[[str], None] = lambda path: None) -> None:
        """`delete` removes the object at a path `/bucket/key` behind the server's back; REPLACE needs it."""
        self.backend_port = backend_port
        self.delete = delete
        self.requests: list[tuple[str, str]] = []
        self._faults: list[Injected] = []
        self._lock = threading.Lock()
        self.is_closed = threading.Event()
        self._server = _Server((HOST, 0), _Handler)
        self._server.proxy = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), name="store-proxy")

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    def inject(self, fault: StoreFault) -> Injected:
        injected = Injected(fault)
        with self._lock:
            self._faults.append(injected)
        return injected

    def clear(self) -> None:
        """End every fault; what hangs is closed without an answer."""
        with self._lock:
            for fault in self._faults:
                fault.is_cleared.set()
            self._faults.clear()

    @contextlib.contextmanager
    def faulty(self, fault: StoreFault) -> Iterator[Injected]:
        injected = self.inject(fault)
        try:
            yield injected
        finally:
            self.clear()

    def count(self) -> int:
        with self._lock:
            return len(self.requests)

    def fault_of(self, method: str, path: str) -> Injected | None:
        """Note a request; return the fault that it meets."""
        with self._lock:
            self.requests.append((method, path))
            return next((fault for fault in self._faults if fault.takes(method, path)), None)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.clear()
        self.is_closed.set()
        self._server.shutdown()
        self._server.close_connections()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    """Ends the threads of its connections by closing the connections."""

    daemon_threads = False
    block_on_close = True
    proxy: StoreProxy

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._open: set[socket.socket] = set()
        self._open_lock = threading.Lock()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        with self._open_lock:
            self._open.add(request)
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._open_lock:
                self._open.discard(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gives up and a connection that a fault has cut are what this server is for."""

    def close_connections(self) -> None:
        with self._open_lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self._backend: http.client.HTTPConnection | None = None

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            super().finish()
        if self._backend is not None:
            self._backend.close()

    def _handle(self) -> None:
        proxy = self.server.proxy
        body = self._body()
        fault = proxy.fault_of(self.command, self.path)
        harm = None if fault is None else fault.fault.harm
        if harm is Harm.HANG:
            assert fault is not None
            give_up_at = time.monotonic() + _MOST_HANG_S
            while not fault.is_cleared.wait(0.05) and not proxy.is_closed.is_set() and time.monotonic() < give_up_at:
                pass
            return self._cut()
        if harm is Harm.CUT:
            return self._cut()
        if harm in (Harm.ANSWER_500, Harm.ANSWER_503, Harm.ANSWER_403):
            return self._refuse(_STATUS[harm])
        if harm is Harm.REPLACE:
            proxy.delete(self.path.partition("?")[0])
        status, reason, headers, answer = self._forward(body)
        if harm is Harm.LOSE_ANSWER:
            return self._cut()
        if harm is Harm.HIDE_ANSWER:
            return self._refuse(_STATUS[harm])
        self.send_response_only(status, reason)
        for name, value in headers:
            if name.lower() not in _PER_CONNECTION or (self.command == "HEAD" and name.lower() == "content-length"):
                self.send_header(name, value)
        if self.command != "HEAD" and status not in (204, 304):
            self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        return None

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815 - http.server's names

    def _body(self) -> bytes:
        assert "chunked" not in self.headers.get("Transfer-Encoding", ""), "chunked requests are not understood here"
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _forward(self, body: bytes) -> tuple[int, str, list[tuple[str, str]], bytes]:
        if self._backend is None:
            self._backend = http.client.HTTPConnection(HOST, self.server.proxy.backend_port, timeout=_BACKEND_TIMEOUT_S)
        self._backend.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            self._backend.putheader(name, value)
        self._backend.endheaders(body)
        answer = self._backend.getresponse()
        return answer.status, answer.reason, answer.getheaders(), answer.read()

    def _refuse(self, status: int) -> None:
        text = (
            f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{_CODES[status]}</Code>'
            f"<Message>Please try again.</Message><RequestId>4442587FB7D0A2F9</RequestId></Error>"
        ).encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def _cut(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing."""
