"""Pure: ListOffsets v6 as bytes, for thousands of partitions: arrays of entries instead of an object each."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from shallow_mirror.types import LATEST_TIMESTAMP, IsolationLevel
from shallow_mirror.wire.protocol.primitives import NO_TAGS, Reader, WireError, compact_string, string, uvarint

API_KEY, API_VERSION = 2, 6

_ANY_EPOCH, _CONSUMER = -1, -1
_HEADER = struct.Struct(">hhi")
_BODY = struct.Struct(">ib")
_REQUEST_ENTRY = np.dtype([("partition", ">i4"), ("leader_epoch", ">i4"), ("timestamp", ">i8"), ("tags", "u1")])
_RESPONSE_ENTRY = np.dtype(
    [
        ("partition", ">i4"),
        ("error_code", ">i2"),
        ("timestamp", ">i8"),
        ("offset", ">i8"),
        ("leader_epoch", ">i4"),
        ("tags", "u1"),
    ]
)


def build_latest_body(partitions_by_topic: Mapping[str, Sequence[int]], isolation: IsolationLevel) -> bytes:
    """Build the body of a request for the latest offset of each partition."""
    parts = [_BODY.pack(_CONSUMER, isolation is IsolationLevel.READ_COMMITTED), uvarint(len(partitions_by_topic) + 1)]
    for topic, partitions in partitions_by_topic.items():
        entries = np.zeros(len(partitions), _REQUEST_ENTRY)
        entries["partition"], entries["leader_epoch"], entries["timestamp"] = partitions, _ANY_EPOCH, LATEST_TIMESTAMP
        parts += [compact_string(topic), uvarint(len(partitions) + 1), entries.tobytes(), NO_TAGS]
    return b"".join([*parts, NO_TAGS])


def build_header(correlation_id: int, client_id: str) -> bytes:
    return _HEADER.pack(API_KEY, API_VERSION, correlation_id) + string(client_id) + NO_TAGS


def parse_offsets(frame: memoryview) -> list[tuple[str, NDArray[np.void]]] | None:
    """Parse topics and their entries (`partition`, `offset`); None if one holds an error or tags. Raises WireError."""
    reader = Reader(frame)
    reader.int32()  # the correlation id
    reader.tags()
    reader.int32()  # the throttle time
    topics = []
    for _ in range(reader.length(3)):
        topic = reader.compact_string()
        count = reader.length(_RESPONSE_ENTRY.itemsize)
        entries = np.frombuffer(reader.view(count * _RESPONSE_ENTRY.itemsize), _RESPONSE_ENTRY)
        if entries["error_code"].any() or entries["tags"].any():
            return None
        topics.append((topic, entries))
        reader.tags()
    reader.tags()
    if reader.pos != len(frame):
        raise WireError(f"{len(frame) - reader.pos} bytes behind an answer to ListOffsets")
    return topics
