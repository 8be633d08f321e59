"""Pure: one record of magic 2, as it lies in an uncompressed batch."""

from __future__ import annotations

from shallow_mirror.wire.protocol.primitives import uvarint


def build_record(key: bytes | None, value: bytes | None, *, offset_delta: int = 0) -> bytes:
    """Return a record without headers, with timestamp delta 0."""
    body = b"\x00" + _varint(0) + _varint(offset_delta) + _field(key) + _field(value) + _varint(0)
    return _varint(len(body)) + body


def _field(content: bytes | None) -> bytes:
    return _varint(-1) if content is None else _varint(len(content)) + content


def _varint(value: int) -> bytes:
    return uvarint((value << 1) ^ (value >> 63))
