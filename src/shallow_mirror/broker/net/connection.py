"""Everywhere: framed requests and responses on one transport, strictly in order, correlation ids checked."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from shallow_mirror.broker.net.path_log import PathLog
from shallow_mirror.broker.net.transport import Part, Transport
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError, RetriableError
from shallow_mirror.reused_buffers import is_viewed, new_buffer

_LENGTH_BYTES = _CORRELATION_BYTES = 4
_MIN_FRAME_BYTES = _CORRELATION_BYTES

READ_AHEAD_BYTES = 16_384
"""What one receive may read behind a response: small responses to pipelined requests come several at a time."""

MOST_AHEAD_BYTES = 16 << 20
"""What may be received of responses while a request is being sent: 4,000 responses of four kilobytes, of a hundred partitions."""

_GROWN_BY_BYTES = 1 << 20
"""Larger buffers grow in such steps: frames of nearly the same size would make each a new one."""


class ReceiveBuffer:
    """A reused buffer that grows to the largest frame seen, `max_bytes` at the most."""

    def __init__(self, initial_bytes: int, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._bytes = new_buffer(initial_bytes)

    @property
    def size_bytes(self) -> int:
        return len(self._bytes)

    def view(self, size: int) -> memoryview:
        """Return the first `size` bytes. When the buffer grows, earlier views stay valid but are no longer of this buffer."""
        if size > len(self._bytes):
            steps = -(-size // _GROWN_BY_BYTES)
            self._bytes = new_buffer(size if size < _GROWN_BY_BYTES else min(self.max_bytes, steps * _GROWN_BY_BYTES))
        return memoryview(self._bytes)[:size]

    def is_viewed(self) -> bool:
        """Return whether any view of the bytes is alive, slices and arrays included."""
        return is_viewed(self._bytes)


class Connection:
    """A connection to one broker. Any error closes it, because the bytes on the wire are then unknown."""

    def __init__(self, transport: Transport, client_id: str, max_frame_bytes: int) -> None:
        self.transport = transport
        self.client_id = client_id
        self._max_frame_bytes = max_frame_bytes
        self._next_correlation_id = 0
        self._outstanding: deque[int] = deque()
        self.begun: deque[Any] = deque()
        """For callers that send several requests before they receive: whose the next responses are."""
        self._ahead = memoryview(bytearray(READ_AHEAD_BYTES))
        self._ahead_start = self._ahead_end = 0
        self.is_closed = False
        self.missing_apis: frozenset[str] = frozenset()
        self.fetches_by_topic_id = False
        self.has_leader_fetch = False
        """Whether the broker speaks the version of Fetch that only a leader answers."""
        self.caps_min_insync_replicas = False
        """Whether the broker takes min.insync.replicas above the number of replicas for that number (Kafka 3.7, KAFKA-15583)."""
        self._explained_until = 0
        self._explain: Callable[[RetriableError], MirrorError | None] = lambda _: None
        self._path: PathLog | None = None

    def watch(self, path: PathLog | None) -> None:
        """Note in `path` bytes sent and received, and waiting times, from the next request on; None: not at all."""
        self._path = self.transport.path = path

    @property
    def outstanding(self) -> int:
        """Requests sent whose answers were not received."""
        return len(self._outstanding)

    def check_open(self) -> bool:
        """Return whether the next request may be sent; close if the peer has closed the connection while it was idle.

        The next request there would only show it when its answer is missing: in a transaction, that has to be begun again then.
        """
        if not self.is_closed and not self.outstanding and self.transport.is_closed_by_peer():
            self.close()
        return not self.is_closed

    def wait_readable(self, ms: float) -> bool:
        """Wait so long for bytes of the next response; return whether there are any, or the connection was closed."""
        return self.is_closed or self._ahead_start < self._ahead_end or self.transport.wait_readable(ms)

    def next_correlation_id(self) -> int:
        self._next_correlation_id = (self._next_correlation_id + 1) & 0x7FFFFFFF
        return self._next_correlation_id

    def send(self, correlation_id: int, parts: Sequence[Part], deadline: Deadline) -> None:
        self.send_several((correlation_id,), parts, deadline)

    def send_several(self, correlation_ids: Sequence[int], parts: Sequence[Part], deadline: Deadline) -> None:
        """Send several requests in one write; `parts`: of all of them, in order."""
        self._outstanding += correlation_ids
        if self._path is not None:
            self._path.sent(len(correlation_ids), sum(map(len, parts)))
        try:
            self.transport.send_parts(parts, deadline, self._take_ahead)
        except BaseException:
            self.close()
            raise

    def receive(
        self,
        deadline: Deadline,
        buffer: ReceiveBuffer | None = None,
        *,
        silence_ms: float | None = None,
        on_begin: Callable[[], None] = lambda: None,
    ) -> memoryview:
        """Return the next response without its length. Raises RetriableError on a network or protocol error, and closes.

        `silence_ms`: how long nothing may arrive, which ends the wait before `deadline`; a response that keeps arriving may take
        longer. `on_begin` is called when its length was received.
        """
        try:
            head = self._received_ahead(_LENGTH_BYTES, deadline if silence_ms is None else deadline.sooner(silence_ms))
            on_begin()
            size = int.from_bytes(head, "big", signed=True)
            limit = self._max_frame_bytes if buffer is None else buffer.max_bytes
            if not _MIN_FRAME_BYTES <= size <= limit:
                raise RetriableError(
                    "PROTOCOL", f"{self.transport.peer} announced an answer of {size} bytes; at most {limit} are accepted"
                )
            frame = memoryview(bytearray(size)) if buffer is None else buffer.view(size)
            self._receive_into(frame, deadline, silence_ms)
            correlation_id = int.from_bytes(frame[:4], "big", signed=True)
            if not self._outstanding or correlation_id != self._outstanding.popleft():
                raise RetriableError(
                    "PROTOCOL", f"{self.transport.peer} answered request {correlation_id}, which was not the next one"
                )
            if self._path is not None:
                self._path.responded(size)
            return frame
        except RetriableError as error:
            is_explained = bool(self._outstanding) and self._outstanding[0] <= self._explained_until
            self.close()
            explained = self._explain(error) if is_explained else None
            if explained is not None:
                raise explained from error
            raise
        except BaseException:
            self.close()
            raise

    def received_alike(self, frame_bytes: int, most: int) -> npt.NDArray[np.uint8]:
        """Return responses to the next requests that were received already, if each is of `frame_bytes` bytes.

        uint8[n, frame_bytes], without lengths: a view until the next call. n is `most` at the most, and 0 if there is one
        alone. They count as received once they are taken (`take_received`).
        """
        stride = _LENGTH_BYTES + frame_bytes
        count = min(most, (self._ahead_end - self._ahead_start) // stride)
        if count < 2:
            return np.empty((0, frame_bytes), np.uint8)
        frames = np.frombuffer(self._ahead, np.uint8, count * stride, self._ahead_start).reshape(count, stride)
        lengths, ids = frames[:, : _LENGTH_BYTES + _CORRELATION_BYTES].view(">i4").T
        expected = np.fromiter(islice(self._outstanding, count), np.int64)
        is_next = (lengths[: len(expected)] == frame_bytes) & (ids[: len(expected)] == expected)
        count = int(np.append(is_next, False).argmin())
        return frames[: count if count > 1 else 0, _LENGTH_BYTES:]

    def take_received(self, count: int, frame_bytes: int) -> None:
        """Count so many of the responses that `received_alike` returned as received."""
        self._ahead_start += count * (_LENGTH_BYTES + frame_bytes)
        for _ in range(count):
            self._outstanding.popleft()
        if self._path is not None:
            self._path.responded(frame_bytes, count)

    def explain_next(self, explain: Callable[[RetriableError], MirrorError | None]) -> None:
        """Use `explain` for the error if the next request gets no response."""
        self._explained_until = self._next_correlation_id + 1
        self._explain = explain

    def _take_ahead(self) -> bool:
        """Receive the available bytes of responses, while requests are being sent; return whether there were any."""
        if self._ahead_end == len(self._ahead):
            size = len(self._ahead) * (1 if self._ahead_start else 2)
            if size > MOST_AHEAD_BYTES:
                return False
            left = bytes(self._ahead[self._ahead_start : self._ahead_end])
            self._ahead = memoryview(bytearray(size))
            self._ahead[: len(left)], self._ahead_start, self._ahead_end = left, 0, len(left)
        received = self.transport.recv_available_into(self._ahead[self._ahead_end :])
        self._ahead_end += received
        return received > 0

    def _received_ahead(self, size: int, deadline: Deadline) -> memoryview:
        """Return the next `size` bytes, a few; further received bytes are kept for the next call."""
        if self._ahead_start == self._ahead_end:
            self._ahead_start = self._ahead_end = 0
            if len(self._ahead) > READ_AHEAD_BYTES:
                self._ahead = memoryview(bytearray(READ_AHEAD_BYTES))
        elif self._ahead_start + size > len(self._ahead):
            left = bytes(self._ahead[self._ahead_start : self._ahead_end])
            self._ahead[: len(left)], self._ahead_start, self._ahead_end = left, 0, len(left)
        while self._ahead_end - self._ahead_start < size:
            self._ahead_end += self.transport.recv_some_into(self._ahead[self._ahead_end :], deadline)
        self._ahead_start += size
        return self._ahead[self._ahead_start - size : self._ahead_start]

    def _receive_into(self, frame: memoryview, deadline: Deadline, silence_ms: float | None) -> None:
        buffered = min(len(frame), self._ahead_end - self._ahead_start)
        frame[:buffered] = self._ahead[self._ahead_start : self._ahead_start + buffered]
        self._ahead_start += buffered
        if buffered < len(frame):
            self.transport.recv_into(frame[buffered:], deadline, silence_ms)

    def request(self, correlation_id: int, parts: Sequence[Part], deadline: Deadline) -> memoryview:
        self.send(correlation_id, parts, deadline)
        return self.receive(deadline)

    def close(self) -> None:
        self.is_closed = True
        self._outstanding.clear()
        if self._path is not None:
            self._path.closed()
        self.transport.close()
