"""Everywhere: buffers that are used again once nothing views them."""

from __future__ import annotations

import threading

from shallow_mirror.viewed_bytes import is_viewed


class ReusedBuffers:
    """As many buffers as were in use at once. For any thread."""

    def __init__(self) -> None:
        self._buffers: list[bytearray] = []
        self._lock = threading.Lock()

    def take(self, size: int) -> memoryview:
        """Return a view of `size` bytes, with any content. Its buffer is taken again when no view of it is left."""
        with self._lock:
            unused = [buffer for buffer in self._buffers if not is_viewed(buffer)]
            large_enough = [buffer for buffer in unused if len(buffer) >= size]
            if large_enough:
                return memoryview(min(large_enough, key=len))[:size]
            if unused:
                self._buffers = [buffer for buffer in self._buffers if buffer is not unused[0]]
            self._buffers.append(bytearray(size))
            return memoryview(self._buffers[-1])
