"""Pure: whether anything still looks at the bytes of a buffer, so that it is not used again too early."""

from __future__ import annotations


def is_viewed(buffer: bytearray) -> bool:
    """Return whether any view of the bytes is alive, slices and arrays included: a bytearray then keeps its size."""
    if not buffer:
        return False
    try:
        buffer.append(buffer.pop())
    except BufferError:
        return True
    return False
