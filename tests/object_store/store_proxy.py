"""An HTTP proxy in front of an object store that counts requests and does to chosen ones what networks and stores do to them.

A process of its own, because deltalake reads the log's history while it holds the lock of the interpreter: a proxy in the same
process could not answer. Standard library only; `tests/object_store/servers.py` starts it and speaks to it:

    python -I store_proxy.py PORT BACKEND_PORT BACKEND_FOLDER [CERTIFICATE_AND_KEY]

Requests and responses pass unchanged otherwise, so signatures hold: they cover the address that the client was given. With a
certificate, clients reach it by TLS alone.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import http.client
import json
import os
import re
import socket
import ssl
import sys
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

HOST = "127.0.0.1"
CONTROL = "/-/"
"""Begins requests to the proxy itself: no bucket has this name."""
_BACKEND_TIMEOUT_S = 60.0
_MOST_HANG_S = 120.0
_PER_CONNECTION = ("connection", "keep-alive", "transfer-encoding", "content-length")


class Harm(enum.Enum):
    ANSWER_500 = "refused with 500, not applied"
    ANSWER_503 = "refused with 503, not applied"
    ANSWER_403 = "refused with 403, not applied"
    CUT = "the connection ends before it is applied"
    LOSE_RESPONSE = "applied; the connection ends without an answer"
    HIDE_RESPONSE = "applied; answered with 503"
    HANG = "the connection stays open without an answer; not applied"
    FORGET = "answered as done, not applied"
    SHORTEN = "applied, and the store keeps half of the object"
    LIST_LATE = "a listing lacks the newest object"
    REPLACE = "a write of what is there replaces it, as if the store ignored If-None-Match"


_STATUS = {Harm.ANSWER_500: 500, Harm.ANSWER_503: 503, Harm.ANSWER_403: 403, Harm.HIDE_RESPONSE: 503}
_CODES = {500: "InternalError", 503: "SlowDown", 403: "AccessDenied"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFault:
    """`path` is searched for in the request's path and query. The first `skip` matching requests pass; of those behind, `count`
    meet the fault, or every one until `clear` (None)."""

    harm: Harm
    method: str = ""
    path: str = ""
    skip: int = 0
    count: int | None = None


class Injected:
    """A fault that is active, and how many requests it has met."""

    def __init__(self, fault: StoreFault) -> None:
        self.fault = fault
        self.skipped = 0
        self.hits = 0
        self.is_cleared = threading.Event()

    def takes(self, method: str, path: str) -> bool:
        """Return whether this request meets the fault, and count it. The caller holds the plan's lock."""
        fault = self.fault
        if self.is_cleared.is_set() or (fault.count is not None and self.hits >= fault.count):
            return False
        if not method.startswith(fault.method) or not re.search(fault.path, path):
            return False
        if self.skipped < fault.skip:
            self.skipped += 1
            return False
        self.hits += 1
        return True


class Plan:
    """Faults that are active, and the requests so far. For any thread."""

    def __init__(self) -> None:
        self._requests: list[tuple[str, str]] = []
        self._payload_hashes: list[str] = []
        self._faults: list[Injected] = []
        self._lock = threading.Lock()

    def fault_of(self, method: str, path: str, payload_hash: str) -> Injected | None:
        """Note a request; return the fault that it meets."""
        with self._lock:
            self._requests.append((method, path))
            self._payload_hashes.append(payload_hash)
            return next((fault for fault in self._faults if fault.takes(method, path)), None)

    def inject(self, settings: dict[str, Any]) -> None:
        fault = StoreFault(**{**settings, "harm": Harm[settings["harm"]]})
        with self._lock:
            self._faults.append(Injected(fault))

    def clear(self) -> None:
        """End every fault; what hangs is closed without a response."""
        with self._lock:
            for fault in self._faults:
                fault.is_cleared.set()
            self._faults.clear()

    def state(self) -> dict[str, Any]:
        with self._lock:
            return {"requests": self._requests, "hits": sum(fault.hits for fault in self._faults)}

    def payload_hashes(self) -> list[str]:
        with self._lock:
            return list(self._payload_hashes)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 100

    def __init__(self, port: int, backend_port: int, backend_folder: Path, certificate_and_key: Path | None = None) -> None:
        super().__init__((HOST, port), _Handler)
        if certificate_and_key is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate_and_key)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.backend_port = backend_port
        self.backend_folder = backend_folder
        self.plan = Plan()
        self.replacing = threading.Lock()
        """One write after the other, so that each finds what the one before it wrote."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that give up and connections that a fault has cut are what this server is for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body in one packet: two would wait for the client's delayed acknowledgement
    disable_nagle_algorithm = True
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
        body = self._body()
        if self.path.startswith(CONTROL):
            return self._control(body)
        fault = self.server.plan.fault_of(self.command, self.path, self.headers.get("x-amz-content-sha256", ""))
        harm = None if fault is None else fault.fault.harm
        if harm is Harm.HANG:
            assert fault is not None
            give_up_at = time.monotonic() + _MOST_HANG_S
            while not fault.is_cleared.wait(0.05) and time.monotonic() < give_up_at:
                pass
            return self._cut()
        if harm is Harm.CUT:
            return self._cut()
        if harm in (Harm.ANSWER_500, Harm.ANSWER_503, Harm.ANSWER_403):
            return self._refuse(_STATUS[harm])
        if harm is Harm.FORGET:
            return self._pretend(body)
        with self.server.replacing if harm is Harm.REPLACE else contextlib.nullcontext():
            status, reason, headers, response = self._applied(body, is_replacing=harm is Harm.REPLACE)
        if harm is Harm.SHORTEN:
            os.truncate(self._file_path(), self._file_path().stat().st_size // 2)
        if harm is Harm.LIST_LATE:
            response = _without_newest(response)
        if harm is Harm.LOSE_RESPONSE:
            return self._cut()
        if harm is Harm.HIDE_RESPONSE:
            return self._refuse(_STATUS[harm])
        self.send_response_only(status, reason)
        for name, value in headers:
            if name.lower() not in _PER_CONNECTION or (self.command == "HEAD" and name.lower() == "content-length"):
                self.send_header(name, value)
        if self.command != "HEAD" and status not in (204, 304):
            self.send_header("Content-Length", str(len(response)))
        self.end_headers()
        self.wfile.write(response)
        return None

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle  # noqa: N815 - http.server's names

    def _applied(self, body: bytes, *, is_replacing: bool) -> tuple[int, str, list[tuple[str, str]], bytes]:
        """Forward a request; replace the file behind the server's back where a write of it would be refused."""
        path = self._file_path()
        if not is_replacing or not path.exists():
            return self._forward(body)
        written = path.with_name(f".{path.name}.replacing")
        written.write_bytes(body)
        for name in os.listxattr(path):
            os.setxattr(written, name, os.getxattr(path, name))
        written.replace(path)
        return 200, "OK", [("ETag", f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"')], b""

    def _file_path(self) -> Path:
        """Return the file of the requested object."""
        return self.server.backend_folder / unquote(self.path.partition("?")[0]).lstrip("/")

    def _pretend(self, body: bytes) -> None:
        """Answer as a store that has done what was requested."""
        etag = f'"{hashlib.md5(body, usedforsecurity=False).hexdigest()}"'
        text = ""
        if self.command == "POST" and "uploadId=" in self.path:
            text = f"<CompleteMultipartUploadResult><ETag>{etag}</ETag></CompleteMultipartUploadResult>"
        elif self.command == "POST":
            keys = re.findall(r"<Key>.*?</Key>", body.decode())
            text = f"<DeleteResult>{''.join(f'<Deleted>{key}</Deleted>' for key in keys)}</DeleteResult>"
        self.send_response_only(204 if self.command == "DELETE" else 200)
        if self.command == "PUT":
            self.send_header("ETag", etag)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def _control(self, body: bytes) -> None:
        what = self.path.removeprefix(CONTROL)
        if what == "inject":
            self.server.plan.inject(json.loads(body))
        elif what == "clear":
            self.server.plan.clear()
        response = json.dumps(
            self.server.plan.payload_hashes() if what == "payload_hashes" else self.server.plan.state()
        ).encode()
        self.send_response_only(200)
        self.send_header("Content-Length", str(len(response)))
        self.end_headers()
        self.wfile.write(response)

    def _body(self) -> bytes:
        assert "chunked" not in self.headers.get("Transfer-Encoding", ""), "chunked requests are not understood here"
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _forward(self, body: bytes) -> tuple[int, str, list[tuple[str, str]], bytes]:
        if self._backend is None:
            self._backend = http.client.HTTPConnection(HOST, self.server.backend_port, timeout=_BACKEND_TIMEOUT_S)
        self._backend.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            self._backend.putheader(name, value)
        self._backend.endheaders(body)
        response = self._backend.getresponse()
        return response.status, response.reason, response.getheaders(), response.read()

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


def _without_newest(listing: bytes) -> bytes:
    objects = re.findall(rb"<Contents>.*?</Contents>", listing, re.DOTALL)
    if not objects:
        return listing
    return listing.replace(max(objects, key=lambda entry: re.findall(rb"<LastModified>(.*?)<", entry)), b"")


if __name__ == "__main__":
    _Server(int(sys.argv[1]), int(sys.argv[2]), *map(Path, sys.argv[3:])).serve_forever(0.05)
