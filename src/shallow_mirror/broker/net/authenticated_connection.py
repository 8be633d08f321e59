"""Everywhere: a connection that authenticates again before the broker ends it (KIP-368)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from shallow_mirror.broker.net.connection import Connection, ReceiveBuffer
from shallow_mirror.broker.net.transport import Part, Transport
from shallow_mirror.deadline import Deadline

_USED_FOR = 0.85
_LEAST_S = 1.1
"""Brokers refuse to authenticate a connection twice within a second."""

_NEVER = float("inf")


class AuthenticatedConnection(Connection):
    """A connection with SASL. `authenticate` takes it, and returns the session's lifetime in ms; 0: no limit."""

    def __init__(
        self,
        transport: Transport,
        client_id: str,
        max_frame_bytes: int,
        *,
        authenticate: Callable[[Connection, Deadline], int],
        clock: Callable[[], float],
    ) -> None:
        super().__init__(transport, client_id, max_frame_bytes)
        self._authenticate = authenticate
        self._clock = clock
        self._due_at = _NEVER
        self._is_busy = False
        self._early: deque[memoryview] = deque()

    def authenticate(self, deadline: Deadline) -> None:
        """Authenticate again; keep responses to requests on the wire for `receive`. Raises ConfigError, RetriableError."""
        self._due_at, self._is_busy = _NEVER, True
        try:
            # Responses come in order: those to earlier requests precede the broker's answer.
            while super().outstanding:
                self._early.append(super().receive(deadline))
            began = self._clock()
            lives_for_s = self._authenticate(self, deadline) / 1000
        except BaseException:
            self.close()
            raise
        self._is_busy = False
        if lives_for_s > 0:
            self._due_at = began + max(lives_for_s * _USED_FOR, _LEAST_S)

    @property
    def outstanding(self) -> int:
        return super().outstanding + len(self._early)

    def wait_readable(self, ms: float) -> bool:
        return bool(self._early) or super().wait_readable(ms)

    def send_several(self, correlation_ids: Sequence[int], parts: Sequence[Part], deadline: Deadline) -> None:
        if self._clock() >= self._due_at:
            self.authenticate(deadline)
        super().send_several(correlation_ids, parts, deadline)

    def receive(
        self,
        deadline: Deadline,
        buffer: ReceiveBuffer | None = None,
        *,
        silence_ms: float | None = None,
        on_begin: Callable[[], None] = lambda: None,
    ) -> memoryview:
        if self._is_busy or not self._early:
            return super().receive(deadline, buffer, silence_ms=silence_ms, on_begin=on_begin)
        frame = self._early.popleft()
        on_begin()
        if buffer is None:
            return frame
        lent = buffer.view(len(frame))
        lent[:] = frame
        return lent

    def close(self) -> None:
        self._early.clear()
        super().close()
