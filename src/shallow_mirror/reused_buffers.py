"""Everywhere: buffers that are used again once nothing views them. Until then their bytes stay as they are."""

from __future__ import annotations

import mmap
import sys
import threading

Buffer = bytearray | mmap.mmap

MAPPED_FROM_BYTES = 1 << 20
"""Buffers of at least this size have a mapping of their own, which goes back to the system with them. The memory of the C library
would keep it, and what smaller ones before it have left."""

_CAN_MAP = sys.platform == "linux"
"""Elsewhere a mapping does not say whether it is viewed."""


def new_buffer(size_bytes: int) -> Buffer:
    if not _CAN_MAP or size_bytes < MAPPED_FROM_BYTES:
        return bytearray(size_bytes)
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def is_viewed(buffer: Buffer) -> bool:
    """Return whether any view of the bytes is alive, slices and arrays included: the buffer then keeps its size."""
    if not buffer:
        return False
    try:
        if isinstance(buffer, mmap.mmap):
            buffer.resize(len(buffer))
        else:
            buffer.append(buffer.pop())
    except BufferError:
        return True
    return False


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
