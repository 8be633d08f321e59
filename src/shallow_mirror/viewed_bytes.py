"""Pure: bytes that are used again, and whether anything still looks at them, so that this does not happen too early."""

from __future__ import annotations

import mmap
import sys

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
