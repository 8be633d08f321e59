"""Requests to strict clusters of the same process, without sockets and threads: a request is answered when it is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from tests.fakes.apis import respond
from tests.fakes.changes import AS_IT_SHOULD
from tests.fakes.cluster_state import ClusterState
from tests.fakes.kafka_codec import Request, read_request, response_frame
from tests.operators.lives import Lives

from shallow_mirror.broker.auth import connection_factory
from shallow_mirror.broker.cluster.connection_pool import ConnectionPool
from shallow_mirror.broker.net.path_log import PathLog
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError

PORT = 9092
READS = frozenset(
    {
        "ApiVersions",
        "DescribeAcls",
        "DescribeConfigs",
        "DescribeGroups",
        "DescribeProducers",
        "DescribeTransactions",
        "Fetch",
        "FindCoordinator",
        "ListGroups",
        "ListOffsets",
        "ListTransactions",
        "Metadata",
        "OffsetFetch",
        "OffsetForLeaderEpoch",
    }
)
"""Nobody can tell whether a process was killed in front of one of these or behind it."""


_CONSTANT = frozenset({"ApiVersions", "FindCoordinator"})
"""Answered alike for ever: the only node of a cluster is neither upgraded nor replaced."""
_CORRELATION = slice(4, 8)
_MOST_KNOWN = 20_000

_bodies: dict[bytes, tuple[str, Any]] = {}
"""Decoded requests by their bytes but for the correlation id: the same ones are sent in every run of every world, and decoding
them costs more than anything else here."""
_constants: dict[tuple[str, bytes], bytes] = {}
"""Encoded responses without their correlation id, by host and request."""


def _read(frame: bytes) -> tuple[bytes, str, Any]:
    """Return the bytes that say what is asked, the name of the request, and its body."""
    key = frame[: _CORRELATION.start] + frame[_CORRELATION.stop :]
    if key not in _bodies:
        if len(_bodies) >= _MOST_KNOWN:
            _bodies.clear()
        request = read_request(frame)
        _bodies[key] = request.api, request.body
    return key, *_bodies[key]


def _is_empty(response: Any) -> bool:
    """Return whether a Fetch response has nothing that a broker would have sent at once."""
    parts = [part for topic in response.responses for part in topic.partitions]
    return not response.error_code and not any(part.records or part.error_code for part in parts)


class Network:
    """The clusters by host name; each has one node, with the id 1."""

    def __init__(self, lives: Lives) -> None:
        self._lives = lives
        self._clusters: dict[str, ClusterState] = {}
        self.observe: Callable[[str, str], None] = lambda *_: None
        """Called with the host and the name of every request, before it is answered."""
        self.on_empty_fetch: Callable[[float], None] = lambda _: None
        """Called with the seconds that a broker would have waited for records before it answers a Fetch without any."""

    def add(self, host: str, cluster: ClusterState) -> None:
        cluster.nodes[1] = (host, PORT)
        self._clusters[host] = cluster

    def answered(self, host: str, frame: bytes) -> bytes:
        key, api, body = _read(frame)
        is_effect = api not in READS
        if is_effect or self._lives.current.is_over:
            self._lives.before_effect()
        self.observe(host, api)
        constant = _constants.get((host, key))
        if constant is not None:
            return constant[:4] + frame[_CORRELATION] + constant[8:]
        max_wait_ms = 0
        if api == "Fetch":
            max_wait_ms, body.max_wait_ms = body.max_wait_ms, 0  # answered at once: `on_empty_fetch` waits
        cluster = self._clusters[host]
        request = Request(api, int.from_bytes(frame[_CORRELATION], "big"), None, body, len(frame))
        with cluster.lock:
            response: Any = respond(cluster, 1, request, AS_IT_SHOULD)
        if api == "Fetch":
            body.max_wait_ms = max_wait_ms  # the decoded body is used again for the next request with the same bytes
            if _is_empty(response):
                self.on_empty_fetch(max_wait_ms / 1000)
        if is_effect:
            self._lives.after_effect()
        answered = response_frame(request, response)
        if api in _CONSTANT:
            _constants[host, key] = answered
        return answered


class DirectTransport:
    """Stands in for `broker.net.transport.Transport`."""

    def __init__(self, network: Network, host: str, port: int) -> None:
        self.peer = f"{host}:{port}"
        self.path: PathLog | None = None
        self._network, self._host = network, host
        self._sent, self._received = bytearray(), bytearray()

    def send_parts(self, parts: Sequence[Any], _deadline: Deadline, _take: object = None) -> None:
        for part in parts:
            self._sent += part
        while len(self._sent) >= 4:
            end = 4 + int.from_bytes(self._sent[:4], "big")
            if len(self._sent) < end:
                return
            frame = bytes(self._sent[4:end])
            del self._sent[:end]
            self._received += self._network.answered(self._host, frame)

    def recv_into(self, view: memoryview, _deadline: Deadline, _silence_ms: float | None = None) -> None:
        if len(self._received) < len(view):
            raise RetriableError("NETWORK_EXCEPTION", f"{self.peer} was asked for more than it answered")
        view[:] = self._received[: len(view)]
        del self._received[: len(view)]

    def recv_some_into(self, view: memoryview, _deadline: Deadline, _expected: int = 1) -> int:
        size = self.recv_available_into(view)
        assert size, f"nothing was asked of {self.peer}"
        return size

    def recv_available_into(self, view: memoryview) -> int:
        size = min(len(view), len(self._received))
        view[:size] = self._received[:size]
        del self._received[:size]
        return size

    def is_closed_by_peer(self) -> bool:
        return False

    def has_pending(self) -> bool:
        return bool(self._received)

    def wait_readable(self, _ms: float) -> bool:
        return bool(self._received)

    def close(self) -> None:
        self._received.clear()


@contextmanager
def direct_connections(network: Network) -> Iterator[None]:
    """Connect every client of the block to `network`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection_factory, "Transport", lambda host, port, _deadline: DirectTransport(network, host, port))
        patch.setattr(ConnectionPool, "open_at_once", lambda *_: None)  # threads, which save nothing here
        yield
