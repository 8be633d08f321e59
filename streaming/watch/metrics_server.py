"""Driver: the HTTP server of a port: metrics, and the probes `/healthz` and `/readyz`, for a limited number of clients."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from shallow_mirror.streaming.watch.health import ProbeResult

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

LIVE_PATH, READY_PATH = "/healthz", "/readyz"

MAX_REQUESTS = 16
"""Requests at the same time; the connection of a further one is closed."""

_REQUEST_TIMEOUT_S = 10.0


class _MetricsServer(ThreadingMixIn, WSGIServer):
    """One thread per request, a limited number of them, none of which keeps the process from ending."""

    daemon_threads = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._free = threading.BoundedSemaphore(MAX_REQUESTS)
        super().__init__(*arguments, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing if a client left early or sent nothing: standard error is the log of the run."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(WSGIRequestHandler):
    timeout = _REQUEST_TIMEOUT_S

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log no requests: a probe sends thousands of them a day."""


def with_probes(metrics: WSGIApplication, live: Callable[[], ProbeResult], ready: Callable[[], ProbeResult]) -> WSGIApplication:
    """Return an application that answers the probes, and passes every other request on to `metrics`."""
    probes = {LIVE_PATH: live, READY_PATH: ready}

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        probe = probes.get(environ.get("PATH_INFO", ""))
        if probe is None:
            return metrics(environ, start_response)
        verdict = probe()
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Cache-Control", "no-store")]
        start_response("200 OK" if verdict.is_passed else "503 Service Unavailable", headers)
        return [f"{verdict.text}\n".encode()]

    return answer


def listen(application: WSGIApplication, host: str, port: int) -> WSGIServer:
    """Return a server that listens on the first address of `host`. Raises OSError."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]

    class ServerOfFamily(_MetricsServer):
        address_family = family

    return make_server(str(address[0]), port, application, ServerOfFamily, handler_class=_Handler)
