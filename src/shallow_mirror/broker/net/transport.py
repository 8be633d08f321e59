"""Everywhere: a blocking byte stream to one broker. The only place with sockets; within TLS: tls_transport.py."""

from __future__ import annotations

import select
import selectors
import socket
from collections.abc import Callable, Sequence

from shallow_mirror.broker.net.path_log import PathLog
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError

_MAX_PARTS = 512
"""Below IOV_MAX of every system."""

SILENCE_BYTES = 16_384
"""So many bytes end a silence: fewer, and a peer that sends a byte now and then would be waited for until the deadline."""

_GATHERED_BYTES = 256 << 10
_GATHERED_MS = 20.0
"""Receiving is woken for so many bytes, not for each segment, unless fewer came within this time: a sender that is slower than
this process would wake it for every few kilobytes."""

_TAKEN_EVERY_MS = 20.0
"""While nothing can be sent, responses are taken so often. A broker that is busy takes requests again within less time."""

_LOOK_MS = 1000.0
"""A wait is looked at so often: whether to report it."""

_CLOSED = select.POLLHUP | select.POLLERR | getattr(select, "POLLRDHUP", 0)
"""POLLRDHUP is Linux's: the peer sends nothing any more. Others report that as POLLHUP."""

Part = bytes | bytearray | memoryview

Take = Callable[[], bool]
"""Take what has come of responses, without waiting; return whether there was something."""


class Transport:
    """A byte stream. Raises RetriableError("NETWORK_EXCEPTION"); a request that was sent may have had its effect."""

    def __init__(self, host: str, port: int, deadline: Deadline) -> None:
        self.peer = f"{host}:{port}"
        try:
            self._socket = socket.create_connection((host, port), timeout=_timeout_s(deadline, self.peer))
        except OSError as error:
            raise _network(f"cannot connect to {self.peer}", error) from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setblocking(False)
        self._readable, self._writable, self._closed = select.poll(), select.poll(), select.poll()
        self._readable.register(self._socket, select.POLLIN)
        self._writable.register(self._socket, select.POLLOUT)
        self._closed.register(self._socket, _CLOSED)
        self._low_water = 1
        self.path: PathLog | None = None
        """Where waits are noted; None: nowhere."""

    def send_parts(self, parts: Sequence[Part], deadline: Deadline, take: Take | None = None) -> None:
        """Send everything, in order, without joining the parts. `take` is called while the peer takes nothing."""
        first, left = 0, sum(map(len, parts))
        try:
            while left:
                try:
                    sent = self._socket.sendmsg(parts[first : first + _MAX_PARTS])
                except BlockingIOError:
                    self._wait_until(self._writable, deadline, take)
                    continue
                left -= sent
                if left:
                    first, parts = _without(parts, first, sent)
        except OSError as error:
            raise _network(f"sending to {self.peer}", error) from error

    def recv_into(self, view: memoryview, deadline: Deadline, silence_ms: float | None = None) -> None:
        """Fill `view` completely. `silence_ms`: how long nothing may come, which ends the wait before the deadline."""
        received = received_before = 0
        patience = deadline if silence_ms is None else deadline.sooner(silence_ms)
        while received < len(view):
            received += self._recv_some(view[received:], len(view) - received, patience)
            if silence_ms is not None and received - received_before >= SILENCE_BYTES:
                patience, received_before = deadline.sooner(silence_ms), received
        self._wake_for(1)

    def recv_some_into(self, view: memoryview, deadline: Deadline, expected: int = 1) -> int:
        """Receive at least one byte, and all others that are available; return how many. `expected`: how many bytes will come."""
        return self._recv_some(view, expected, deadline)

    def _recv_some(self, view: memoryview, expected: int, deadline: Deadline) -> int:
        while not (received := self.recv_available_into(view)):
            try:
                self._wait_to_receive(expected, deadline)
            except OSError as error:
                raise _network(f"receiving from {self.peer}", error) from error
        return received

    def recv_available_into(self, view: memoryview) -> int:
        """Receive the available bytes, without waiting; return how many."""
        try:
            received = self._socket.recv_into(view)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise _network(f"receiving from {self.peer}", error) from error
        if not received:
            raise RetriableError("NETWORK_EXCEPTION", f"{self.peer} closed the connection")
        return received

    def is_closed_by_peer(self) -> bool:
        """Return, without waiting, whether the peer has closed the connection. A peer that vanished silently has not."""
        return any(events & _CLOSED for _, events in self._closed.poll(0))

    def has_pending(self) -> bool:
        """Return whether bytes were read from the socket that were not received yet."""
        return False

    def wait_readable(self, ms: float) -> bool:
        """Wait so long for a byte; return whether there is one to receive, or the peer closed the connection."""
        return self.has_pending() or bool(self._readable.poll(ms))

    def _wait_to_receive(self, expected: int, deadline: Deadline) -> None:
        """Wait until `expected` bytes have come, `_GATHERED_BYTES` of them, or after `_GATHERED_MS` one."""
        self._wake_for(min(expected, _GATHERED_BYTES))
        if self._low_water > 1:
            if self._poll(self._readable, min(_timeout_s(deadline, self.peer) * 1000, _GATHERED_MS)):
                return
            self._wake_for(1)
        self._wait_until(self._readable, deadline)

    def _wake_for(self, received: int) -> None:
        # Only while a frame is filled: what else waits for the socket, such as `first_readable`, waits for one byte.
        if received != self._low_water:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, received)
            self._low_water = received

    def _wait_until(self, possible: select.poll, deadline: Deadline, take: Take | None = None) -> None:
        # An error of the socket also ends the wait: the next call then raises it.
        if not self._poll(possible, _timeout_s(deadline, self.peer) * 1000, take):
            raise TimeoutError("timed out")

    def _poll(self, possible: select.poll, timeout_ms: float, take: Take | None = None) -> bool:
        """Wait until it is possible, which is noted for the log of the path; False: it was not within that time.

        `take`: called meanwhile, because a broker takes no request before it could send the response to the one before it.
        """
        path, look_ms = self.path, _LOOK_MS if take is None else _TAKEN_EVERY_MS
        if path is not None:
            path.begin_wait()
        try:
            while not possible.poll(min(timeout_ms, look_ms)):
                timeout_ms -= look_ms
                if timeout_ms <= 0:
                    return False
                has_taken = take is not None and take()
                if path is not None and has_taken:
                    path.end_wait()
                    path.begin_wait()
                elif path is not None:
                    path.still_waiting()
        finally:
            if path is not None:
                path.end_wait()
        return True

    def close(self) -> None:
        self._socket.close()


def _without(parts: Sequence[Part], first: int, sent: int) -> tuple[int, Sequence[Part]]:
    """Return the rest of `parts[first:]` without their first `sent` bytes: the index of its first part, and the parts."""
    while sent >= len(parts[first]):
        sent -= len(parts[first])
        first += 1
    return (first, parts) if not sent else (0, [memoryview(parts[first])[sent:], *parts[first + 1 :]])


def first_readable(transports: Sequence[Transport], deadline: Deadline) -> Transport | None:
    """Return the first transport that has bytes to receive or was closed by its peer; None once the deadline is over."""
    for transport in transports:
        if transport.has_pending():
            return transport
    with selectors.DefaultSelector() as selector:
        for transport in transports:
            selector.register(transport._socket, selectors.EVENT_READ, transport)
        ready = {id(key.data) for key, _ in selector.select(deadline.remaining_ms() / 1000)}
    return next((transport for transport in transports if id(transport) in ready), None)


def _timeout_s(deadline: Deadline, peer: str) -> float:
    deadline.require(f"an answer of {peer}")
    return max(deadline.remaining_ms() / 1000, 0.001)


def _network(what: str, error: OSError) -> RetriableError:
    return RetriableError("NETWORK_EXCEPTION", f"{what}: {error}")
