"""The port of metrics and probes, with clients that behave badly."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from tests.support.probes import probe

from shallow_mirror.local_kafka.ports import free_ports
from shallow_mirror.streaming.watch.health import ProbeResult
from shallow_mirror.streaming.watch.metrics_server import MAX_REQUESTS, listen, with_probes

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment


def metrics(_environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"some_metric 1\n"]


APPLICATION = with_probes(metrics, lambda: ProbeResult(True, "live"), lambda: ProbeResult(False, "not ready: waits for: start"))


@pytest.fixture
def port() -> Iterator[int]:
    port = free_ports(1)[0]
    server = listen(APPLICATION, "127.0.0.1", port)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield port
    server.shutdown()
    server.server_close()
    thread.join()


def test_probes_are_answered_by_their_status_and_every_other_path_has_the_metrics(port: int) -> None:
    assert probe(port, "healthz") == (200, "live\n")
    assert probe(port, "readyz?verbose") == (503, "not ready: waits for: start\n")
    assert probe(port, "metrics") == probe(port, "") == (200, "some_metric 1\n")


@pytest.mark.thorough
def test_clients_that_send_nothing_are_limited_and_make_room_when_they_leave(
    port: int, capfd: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as silent:
        for _ in range(MAX_REQUESTS):
            silent.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
        with socket.create_connection(("127.0.0.1", port), timeout=10) as refused:
            assert refused.recv(1) == b""
    give_up_at = time.monotonic() + 20  # the threads of clients that left need a moment
    while not (response := probe(port, "healthz"))[0]:
        assert time.monotonic() < give_up_at
        time.sleep(0.01)
    assert response == (200, "live\n")
    assert capfd.readouterr().err == ""
