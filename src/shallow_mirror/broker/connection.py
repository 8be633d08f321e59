"""Everywhere: framed requests and answers on one transport, strictly in order, correlation ids checked."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from shallow_mirror.broker.transport import Part, Transport
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import Retriable

_LENGTH_BYTES = 4
_MIN_FRAME_BYTES = 4


class ReceiveBuffer:
    """A reused buffer that grows to the largest frame seen, `max_bytes` at the most."""

    def __init__(self, initial_bytes: int, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._bytes = bytearray(initial_bytes)

    def view(self, size: int) -> memoryview:
        """The first `size` bytes; views given out before stay valid but are no longer this buffer's when it grows."""
        if size > len(self._bytes):
            self._bytes = bytearray(size)
        return memoryview(self._bytes)[:size]

    def is_viewed(self) -> bool:
        """Whether any view of the bytes is alive, slices and arrays made of it included: a bytearray then keeps its size."""
        if not self._bytes:
            return False
        try:
            self._bytes.append(self._bytes.pop())
        except BufferError:
            return True
        return False


class Connection:
    """After any error the connection is closed: what is on the wire is then unknown."""

    def __init__(self, transport: Transport, client_id: str, max_frame_bytes: int) -> None:
        self.transport, self.client_id, self._max_frame_bytes = transport, client_id, max_frame_bytes
        self._next_correlation_id = 0
        self._outstanding: deque[int] = deque()
        self.is_closed = False
        self.missing_apis: frozenset[str] = frozenset()
        self.fetches_by_topic_id = False

    @property
    def outstanding(self) -> int:
        """Requests sent whose answers were not received."""
        return len(self._outstanding)

    def next_correlation_id(self) -> int:
        self._next_correlation_id = (self._next_correlation_id + 1) & 0x7FFFFFFF
        return self._next_correlation_id

    def send(self, correlation_id: int, parts: Sequence[Part], deadline: Deadline) -> None:
        self._outstanding.append(correlation_id)
        try:
            self.transport.send_parts(parts, deadline)
        except BaseException:
            self.close()
            raise

    def receive(self, deadline: Deadline, buffer: ReceiveBuffer | None = None) -> memoryview:
        """The next answer without its length. Raises Retriable on a network or protocol error, and closes."""
        try:
            head = memoryview(bytearray(_LENGTH_BYTES))
            self.transport.recv_into(head, deadline)
            size = int.from_bytes(head, "big", signed=True)
            limit = self._max_frame_bytes if buffer is None else buffer.max_bytes
            if not _MIN_FRAME_BYTES <= size <= limit:
                raise Retriable(
                    "PROTOCOL", f"{self.transport.peer} announced an answer of {size} bytes; at most {limit} are accepted"
                )
            frame = memoryview(bytearray(size)) if buffer is None else buffer.view(size)
            self.transport.recv_into(frame, deadline)
            correlation_id = int.from_bytes(frame[:4], "big", signed=True)
            if not self._outstanding or correlation_id != self._outstanding.popleft():
                raise Retriable(
                    "PROTOCOL", f"{self.transport.peer} answered request {correlation_id}, which was not the next one"
                )
            return frame
        except BaseException:
            self.close()
            raise

    def request(self, correlation_id: int, parts: Sequence[Part], deadline: Deadline) -> memoryview:
        self.send(correlation_id, parts, deadline)
        return self.receive(deadline)

    def close(self) -> None:
        self.is_closed = True
        self._outstanding.clear()
        self.transport.close()
