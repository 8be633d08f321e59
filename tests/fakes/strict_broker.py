"""A Kafka cluster in threads that refuses what real brokers refuse, and answers wrongly when a test tells it to.

One connection is served strictly in turn, as brokers do. Only the versions that the package uses are spoken. What is
not modelled: replication, fetch sessions, authorisation, quotas, joins of consumer groups, acks 0.
`test_strict_broker.py` holds it against a real broker, request by request.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from tests.fakes.apis import respond
from tests.fakes.changes import AS_IT_SHOULD, Change
from tests.fakes.cluster_state import ClusterState
from tests.fakes.kafka_codec import OtherVersionError, Request, UnreadableRequestError, read_request, response_frame

HOST = "127.0.0.1"
MAX_REQUEST_BYTES = 104_857_600
STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it arrived. `connection` numbers the connections of the whole cluster."""

    api: str
    node_id: int
    connection: int
    body: Any
    size_bytes: int


@dataclass(slots=True)
class _Node:
    node_id: int
    port: int
    listener: socket.socket
    threads: list[threading.Thread] = field(default_factory=list)
    peers: set[socket.socket] = field(default_factory=set)
    is_up: bool = True


class StrictCluster(ClusterState):
    """Context manager. Leaving it stops every thread, and fails the test where a request could not be read.

    `look_ahead_s`: before each response, read what else comes within that time: then `most_in_flight` and
    `most_in_flight_bytes` say how much a client sends without waiting. `await_in_flight`: an API's first response waits
    until so many of its requests have come.
    """

    def __init__(self, nodes: int = 1, *, look_ahead_s: float = 0.0, cluster_id: str = "fake-cluster") -> None:
        super().__init__(cluster_id)
        self._look_ahead_s = look_ahead_s
        self._running: dict[int, _Node] = {}
        self._changes: dict[tuple[str, int | None], deque[Change]] = {}
        self._always: dict[str, Change] = {}
        self._holds: list[threading.Event] = []
        self._alter_response: dict[str, Callable[[Any], None]] = {}
        self.received: list[Received] = []
        self.connections = 0
        self.unreadable: list[str] = []
        self.await_in_flight: dict[str, int] = {}
        self.most_in_flight: dict[str, int] = {}
        self.most_in_flight_bytes: dict[str, int] = {}
        self._node_count = nodes

    def __enter__(self) -> Self:
        try:
            for node_id in range(1, self._node_count + 1):
                self.start_node(node_id)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        assert kind is not None or not self.unreadable, f"requests that no broker can read: {self.unreadable}"

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in self.nodes.values())

    # --- what a test changes ---

    def change(self, api: str, *changes: Change, node_id: int | None = None) -> None:
        """Of the next responses of an API, in turn, by any node or by one; `AS_IT_SHOULD` leaves one alone."""
        with self.lock:
            self._changes.setdefault((api, node_id), deque()).extend(changes)

    def change_always(self, api: str, change: Change | None) -> None:
        """Of every response that `change` does not name; None ends it."""
        with self.lock:
            self._always.pop(api, None)
            if change is not None:
                self._always[api] = change

    def alter_responses(self, api: str, alter: Callable[[Any], None]) -> None:
        """Let `alter` edit every decoded response of an API before it is sent."""
        with self.lock:
            self._alter_response[api] = alter

    def bodies(self, api: str) -> list[Any]:
        with self.lock:
            return [request.body for request in self.received if request.api == api]

    def asked(self, api: str) -> int:
        return len(self.bodies(api))

    def stop_node(self, node_id: int) -> None:
        """Break connections and refuse new ones; the other nodes no longer list it."""
        with self.lock:
            node = self._running[node_id]
            node.is_up = False
            self.nodes.pop(node_id, None)
            self.lock.notify_all()
        self._close(node)

    def start_node(self, node_id: int) -> None:
        """On the port that it had before, if any."""
        running = self._running.get(node_id)
        listener = socket.create_server((HOST, 0 if running is None else running.port))
        node = _Node(node_id, listener.getsockname()[1], listener)
        with self.lock:
            self._running[node_id] = node
            self.nodes[node_id] = (HOST, node.port)
            self._start(node, self._accept, node)

    def stop(self) -> None:
        with self.lock:
            self.is_stopping = True
            nodes = list(self._running.values())
            for node in nodes:
                node.is_up = False
            for hold in self._holds:
                hold.set()
            self.lock.notify_all()
        for node in nodes:
            self._close(node)

    def _close(self, node: _Node) -> None:
        with contextlib.suppress(OSError):  # stopped before
            socket.create_connection((HOST, node.port), timeout=STOP_TIMEOUT_S).close()  # wakes the accepting thread
        with self.lock:
            peers, threads = list(node.peers), list(node.threads)
        for peer in peers:
            _shut(peer)
        for thread in threads:
            thread.join(STOP_TIMEOUT_S)
        node.listener.close()
        left = [thread.name for thread in threads if thread.is_alive()]
        assert not left, f"threads of the fake broker do not end: {left}"

    def _start(self, node: _Node, target: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=target, args=arguments, name=f"fake node {node.node_id}")
        node.threads.append(thread)
        thread.start()

    # --- serving ---

    def _accept(self, node: _Node) -> None:
        while True:
            peer, _ = node.listener.accept()
            with self.lock:
                if not node.is_up:
                    peer.close()
                    node.listener.close()
                    return
                self.connections += 1
                node.peers.add(peer)
                self._start(node, self._serve, node, peer, self.connections)

    def _serve(self, node: _Node, peer: socket.socket, number: int) -> None:
        try:
            with peer:
                self._respond_in_turn(node, peer, number)
        except OSError:
            pass  # the client went away
        except UnreadableRequestError as error:
            self.unreadable.append(str(error))
        finally:
            with self.lock:
                node.peers.discard(peer)

    def _respond_in_turn(self, node: _Node, peer: socket.socket, number: int) -> None:
        waiting: deque[Request] = deque()
        while waiting or self._receive(node, peer, number, waiting):
            wanted = self.await_in_flight.pop(waiting[0].api, 0)
            while len(waiting) < wanted:
                if not self._receive(node, peer, number, waiting):
                    return
            while self._look_ahead_s and select.select([peer], [], [], self._look_ahead_s)[0]:
                if not self._receive(node, peer, number, waiting):
                    break
            self._note(waiting)
            if not self._respond(node, peer, waiting.popleft()):
                return

    def _receive(self, node: _Node, peer: socket.socket, number: int, waiting: deque[Request]) -> bool:
        head = _exactly(peer, 4)
        size = -1 if head is None else int.from_bytes(head, "big", signed=True)
        frame = _exactly(peer, size) if 0 <= size <= MAX_REQUEST_BYTES else None
        if frame is None:
            return False
        try:
            request = read_request(frame)
        except OtherVersionError as other:
            if other.api == "ApiVersions":
                peer.sendall(b"\x00\x00\x00\x0a" + other.correlation_id.to_bytes(4, "big") + b"\x00\x23" + bytes(4))
            raise
        with self.lock:
            self.received.append(Received(request.api, node.node_id, number, request.body, request.size_bytes))
        waiting.append(request)
        return True

    def _note(self, waiting: deque[Request]) -> None:
        with self.lock:
            for api in {request.api for request in waiting}:
                sizes = [request.size_bytes for request in waiting if request.api == api]
                self.most_in_flight[api] = max(self.most_in_flight.get(api, 0), len(sizes))
                self.most_in_flight_bytes[api] = max(self.most_in_flight_bytes.get(api, 0), sum(sizes))

    def _respond(self, node: _Node, peer: socket.socket, request: Request) -> bool:
        """Whether the connection goes on."""
        with self.lock:
            queue = self._changes.get((request.api, node.node_id)) or self._changes.get((request.api, None))
            change = queue.popleft() if queue else self._always.get(request.api, AS_IT_SHOULD)
            if change.hold is not None:
                self._holds.append(change.hold)
        if change.hold is not None and not self.is_stopping:
            change.hold.wait()
        if change.drops_before:
            return False
        if change.first is not None:
            change.first()
        with self.lock:
            answered = respond(self, node.node_id, request, change)
            if request.api in self._alter_response:
                self._alter_response[request.api](answered)
        if change.drops_after or not node.is_up:
            return False
        frame = response_frame(request, answered)
        peer.sendall(frame if change.reply is None else change.reply(frame))
        return not change.closes


def _exactly(peer: socket.socket, size: int) -> bytes | None:
    """None where the peer closes first."""
    data = bytearray()
    while len(data) < size:
        part = peer.recv(size - len(data))
        if not part:
            return None
        data += part
    return bytes(data)


def _shut(peer: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed meanwhile
        peer.shutdown(socket.SHUT_RDWR)
