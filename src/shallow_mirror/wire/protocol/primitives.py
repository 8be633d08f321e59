"""Pure: bounds-checked reading of Kafka's flexible encoding, and writing of its small pieces."""

from __future__ import annotations

import struct


class WireError(ValueError):
    """Bytes that no broker may send. Nothing was read beyond the frame."""


NO_TAGS = b"\x00"


def uvarint(value: int) -> bytes:
    if value < 1 << 7:
        return bytes((value,))
    if value < 1 << 14:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 1 << 21:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def compact_string(text: str | None) -> bytes:
    if text is None:
        return b"\x00"
    encoded = text.encode()
    return uvarint(len(encoded) + 1) + encoded


def string(text: str | None) -> bytes:
    """Encode with an int16 length, as in every request header."""
    if text is None:
        return b"\xff\xff"
    encoded = text.encode()
    return struct.pack(">h", len(encoded)) + encoded


class Reader:
    """A cursor over one frame. Slices are views, never copies."""

    __slots__ = ("frame", "pos")

    def __init__(self, frame: memoryview) -> None:
        self.frame = frame
        self.pos = 0

    def _take(self, size: int) -> int:
        start, end = self.pos, self.pos + size
        if size < 0 or end > len(self.frame):
            raise WireError(f"{size} bytes wanted at byte {start} of a frame of {len(self.frame)}")
        self.pos = end
        return start

    def unpack(self, layout: struct.Struct) -> tuple[int, ...]:
        return layout.unpack_from(self.frame, self._take(layout.size))

    def int32(self) -> int:
        return int.from_bytes(self.view(4), "big", signed=True)

    def view(self, size: int) -> memoryview:
        start = self._take(size)
        return self.frame[start : start + size]

    def uvarint(self) -> int:
        value = shift = 0
        while True:
            byte = self.frame[self._take(1)]
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 28:
                raise WireError(f"varint of more than five bytes at byte {self.pos}")

    def length(self, smallest_entry_bytes: int) -> int:
        """Read the count of a compact array, 0 for null. Raises WireError if it cannot fit into the rest of the frame."""
        return self._checked_count(self.uvarint() - 1, smallest_entry_bytes)

    def fixed_length(self, smallest_entry_bytes: int) -> int:
        """Read the count of an array of the encoding without tags, 0 for null. Raises WireError as `length`."""
        return self._checked_count(self.int32(), smallest_entry_bytes)

    def _checked_count(self, count: int, smallest_entry_bytes: int) -> int:
        # Before anything is allocated: a hostile count may be two billion.
        if count > 0 and count * smallest_entry_bytes > len(self.frame) - self.pos:
            raise WireError(f"array of {count} entries in {len(self.frame) - self.pos} bytes")
        return max(count, 0)

    def fixed_string(self) -> str:
        """Read a string of the encoding without tags: int16 length, UTF-8. Raises WireError for null."""
        size = int.from_bytes(self.view(2), "big", signed=True)
        if size < 0:
            raise WireError(f"null string at byte {self.pos}")
        return self._text(size)

    def compact_string(self) -> str:
        text = self.nullable_string()
        if text is None:
            raise WireError(f"null string at byte {self.pos}")
        return text

    def nullable_string(self) -> str | None:
        size = self.uvarint() - 1
        if size < 0:
            return None
        return self._text(size)

    def _text(self, size: int) -> str:
        try:
            return str(self.view(size), "utf-8")
        except UnicodeDecodeError as error:
            raise WireError(f"string at byte {self.pos} is not UTF-8") from error

    def compact_bytes(self) -> memoryview:
        """Read bytes with a varint length, an empty view for null."""
        return self.view(max(self.uvarint() - 1, 0))

    def tags(self) -> dict[int, memoryview]:
        tags: dict[int, memoryview] = {}
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            tags[tag] = self.view(self.uvarint())
        return tags
