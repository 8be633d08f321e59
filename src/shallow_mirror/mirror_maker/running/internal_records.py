"""Pure: records of the internal topics of MirrorMaker 2 and of Kafka Connect.

| topic | key | value |
|---|---|---|
| `mm2-offset-syncs.…` (OffsetSync) | topic (string), partition (int32) | upstream offset, downstream offset (int64) |
| offsets of Kafka Connect | JSON `[connector, {"cluster", "partition", "topic"}]` | JSON `{"offset"}`, null: removed |
| `heartbeats` (Heartbeat) | source alias, target alias (strings) | version (int16), timestamp in ms (int64) |

Strings have a length of two bytes in front; numbers are big-endian.
"""

from __future__ import annotations

import json
import struct
from typing import NamedTuple

from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.protocol import WireError

_SHORT, _INT = struct.Struct(">h"), struct.Struct(">i")
_SYNC_VALUE = struct.Struct(">qq")
_HEARTBEAT_VALUE = struct.Struct(">hq")
_HEARTBEAT_VERSION = 0


class OffsetSync(NamedTuple):
    """A record of the source at `upstream` has its copy at `downstream`. `topic_partition`: of the source."""

    topic_partition: TopicPartition
    upstream: int
    downstream: int


class CopiedOffset(NamedTuple):
    """The source offset of the last record that a connector has copied; None: Connect has removed it."""

    cluster: str
    topic_partition: TopicPartition
    offset: int | None


def parse_offset_sync(key: bytes | None, value: bytes | None) -> OffsetSync | None:
    """Return the pair; None for a tombstone. Raises WireError."""
    if value is None:
        return None
    if key is None or len(value) != _SYNC_VALUE.size:
        raise WireError(f"offset sync with a value of {len(value)} bytes, where {_SYNC_VALUE.size} were expected")
    topic, at = _string(key, 0)
    if len(key) != at + _INT.size:
        raise WireError(f"offset sync with a key of {len(key)} bytes, where {at + _INT.size} were expected")
    upstream, downstream = _SYNC_VALUE.unpack(value)
    return OffsetSync(TopicPartition(topic, _INT.unpack_from(key, at)[0]), upstream, downstream)


def parse_copied_offset(key: bytes | None, value: bytes | None) -> CopiedOffset | None:
    """Return the offset; None for records of other connectors, whose partitions are not those of a MirrorSourceConnector."""
    try:
        partition = json.loads(key or b"")[1]
        cluster, topic_partition = partition["cluster"], TopicPartition(partition["topic"], int(partition["partition"]))
        offset = None if value is None else json.loads(value)
        return CopiedOffset(cluster, topic_partition, None if offset is None else int(offset["offset"]))
    except (ValueError, TypeError, KeyError, IndexError):
        return None


def heartbeat_key(source: str, target: str) -> bytes:
    return b"".join(_SHORT.pack(len(alias)) + alias for alias in (source.encode(), target.encode()))


def heartbeat_value(timestamp_ms: int) -> bytes:
    return _HEARTBEAT_VALUE.pack(_HEARTBEAT_VERSION, timestamp_ms)


def _string(data: bytes, at: int) -> tuple[str, int]:
    """Return a string and where it ends. Raises WireError."""
    try:
        (length,) = _SHORT.unpack_from(data, at)
        end = at + _SHORT.size + length
        if length < 0 or end > len(data):
            raise ValueError(f"{length} bytes of {len(data)}")
        return data[at + _SHORT.size : end].decode(), end
    except (struct.error, ValueError) as error:
        raise WireError(f"a string that cannot be read: {error}") from error
