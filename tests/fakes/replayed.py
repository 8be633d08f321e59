"""A transport without a broker: it receives what it was made of."""

from __future__ import annotations

from collections.abc import Sequence

from shallow_mirror.broker.net.connection import Connection
from shallow_mirror.broker.net.transport import Part, Take
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError

NEVER = Deadline.after_ms(60_000, lambda: 0.0)


class ReplayedTransport:
    """What is sent goes nowhere."""

    peer = "replayed:9092"

    def __init__(self, received: bytes) -> None:
        self._received, self._pos = received, 0

    def send_parts(self, parts: Sequence[Part], deadline: Deadline, take: Take | None = None) -> None:
        """Nobody is there."""

    def recv_into(self, view: memoryview, deadline: Deadline, silence_ms: float | None = None) -> None:
        end = self._pos + len(view)
        if end > len(self._received):
            raise RetriableError("NETWORK_EXCEPTION", f"{self.peer} closed the connection")
        view[:], self._pos = self._received[self._pos : end], end

    def recv_some_into(self, view: memoryview, deadline: Deadline) -> int:
        some = min(len(view), max(len(self._received) - self._pos, 1))
        self.recv_into(view[:some], deadline)
        return some

    def close(self) -> None:
        """Nothing is open."""


def replayed_connection(received: bytes) -> Connection:
    return Connection(ReplayedTransport(received), "replayed", 1 << 20)  # type: ignore[arg-type]


def response_frame(correlation_id: int, body: bytes) -> bytes:
    """`body` behind the correlation id."""
    return (len(body) + 4).to_bytes(4, "big") + correlation_id.to_bytes(4, "big") + body
