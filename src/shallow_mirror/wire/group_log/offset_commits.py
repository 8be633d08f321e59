"""Pure: keys and values of committed offsets in `__consumer_offsets` (OffsetCommitKey, OffsetCommitValue).

The first two bytes of a key are the type of its record. Types 0 and 1 are committed offsets, with the same fields; all others
are of group metadata, members, assignments, share and streams groups. The first two bytes of a value are its version:

| version | fields |
|---|---|
| 0, 2 | offset, metadata, time of the commit |
| 1 | the same, and when the offset expires |
| 3 | offset, leader epoch, metadata, time of the commit |
| 4 | as 3, with a compact string and tagged fields |

A value of null is a tombstone: the offset expired, or the group was deleted.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from shallow_mirror.wire.protocol.primitives import Reader, WireError

OFFSET_COMMIT_TYPES = frozenset({0, 1})
NEWEST_VALUE = 4

_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_VERSION_AND_OFFSET = struct.Struct(">hq")
OFFSET_BYTES = _VERSION_AND_OFFSET.size
"""The first bytes of a value: its version and the offset."""


class UnknownCommitError(WireError):
    """A value of a version that is not known: the offset in it cannot be read. `version` is the version."""

    def __init__(self, version: int) -> None:
        self.version = version
        super().__init__(f"committed offset of version {version}, where 0 to {NEWEST_VALUE} are known")


class CommitKey(NamedTuple):
    group: str
    topic: str
    partition: int


class CommitValue(NamedTuple):
    """`offset`: the next offset to read, below 0 none. `committed_at_ms`: the coordinator's time."""

    offset: int
    metadata: str
    committed_at_ms: int


def key_type(key: bytes | memoryview) -> int:
    """Return the type of a record. Raises WireError where the key is too short for one."""
    return Reader(memoryview(key)).unpack(_SHORT)[0]


def parse_commit_key(key: bytes | memoryview) -> CommitKey | None:
    """Parse the key of a committed offset; None for records of other types. Raises WireError."""
    reader = Reader(memoryview(key))
    if reader.unpack(_SHORT)[0] not in OFFSET_COMMIT_TYPES:
        return None
    parsed = CommitKey(reader.fixed_string(), reader.fixed_string(), reader.int32())
    _require_end(reader)
    if parsed.partition < 0:
        raise WireError(f"committed offset of partition {parsed.partition}")
    return parsed


def parse_committed_offset(value: bytes | memoryview) -> int:
    """Return the offset alone, which every known version has in front. Raises WireError, UnknownCommitError.

    Below 0 there is none: brokers take such commits, and no consumer reads them.
    """
    if len(value) < OFFSET_BYTES:
        raise WireError(f"committed offset of {len(value)} bytes")
    version, offset = _VERSION_AND_OFFSET.unpack_from(value)
    if not 0 <= version <= NEWEST_VALUE:
        raise UnknownCommitError(version)
    return int(offset)


def parse_commit_value(value: bytes | memoryview) -> CommitValue:
    """Parse a value that is not null. Raises WireError, UnknownCommitError."""
    offset = parse_committed_offset(value)
    reader = Reader(memoryview(value))
    version, _ = reader.unpack(_VERSION_AND_OFFSET)
    if version >= 3:
        reader.unpack(_INT)  # a leader epoch means nothing on another cluster
    metadata = reader.compact_string() if version >= 4 else reader.fixed_string()
    committed_at_ms = reader.unpack(_LONG)[0]
    if version == 1:
        reader.unpack(_LONG)
    if version >= 4:
        reader.tags()  # fields that were added since are tagged, and may be ignored (KIP-915)
    _require_end(reader)
    return CommitValue(offset, metadata, committed_at_ms)


def _require_end(reader: Reader) -> None:
    left = len(reader.frame) - reader.pos
    if left:
        raise WireError(f"{left} bytes behind a committed offset")
