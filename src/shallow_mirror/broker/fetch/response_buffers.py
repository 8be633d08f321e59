"""Everywhere: into which receive buffer the next Fetch response goes, so that earlier ones stay valid for long enough."""

from __future__ import annotations

from collections.abc import Sequence

from shallow_mirror.broker.net.connection import ReceiveBuffer


class ResponseBuffers:
    """Buffers of yielded responses, each of one or several Fetch responses.

    A response stays valid until the iteration was resumed `responses` times. A buffer that is valid no more is used again
    before one that was not used yet: its memory is there, and most of it in the caches.
    """

    def __init__(self, buffers: Sequence[ReceiveBuffer], responses: int) -> None:
        assert len(buffers) >= responses >= 1, "each response needs a buffer"
        self._buffers = buffers
        self._responses = responses
        self._resumed = 0
        self._free_at = [0] * len(buffers)
        """When `_resumed` is so high, nothing that was yielded is in the buffer."""
        self._taken: list[int] = []

    @property
    def can_join(self) -> bool:
        """Whether each yielded response may be made of two Fetch responses."""
        return len(self._buffers) >= 2 * self._responses

    def next(self) -> ReceiveBuffer:
        """Return the buffer of the next Fetch response. The same one until it is taken."""
        return self._buffers[self._next()]

    def take(self) -> None:
        """Keep the bytes received into the next buffer for the next yielded response."""
        self._taken.append(self._next())

    def resumed(self) -> None:
        """Note that the iteration was resumed behind a yielded response."""
        for number in self._taken:
            self._free_at[number] = self._resumed + self._responses
        self._taken.clear()
        self._resumed += 1

    def _next(self) -> int:
        free = [number for number, at in enumerate(self._free_at) if at <= self._resumed and number not in self._taken]
        return max(free, key=lambda number: (self._free_at[number], -number))
