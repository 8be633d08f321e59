"""Pure: Fetch v10, sessionless, which only a leader answers, and with its own log (FetchRequest.json, KIP-392).

From v11 on a request names the client's rack, possibly an empty one, and then a leader may name a replica to be asked
instead of reading. v10 has no tags and names topics; no broker from Kafka 0.11 to 4.3 refuses it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from shallow_mirror.types import IsolationLevel
from shallow_mirror.wire.protocol.fetch import (
    API_KEY,
    API_VERSION_OF_LEADER,
    CONSUMER,
    FINAL_EPOCH,
    LEAST_PARTITION_BYTES,
    NO_LOG_START,
    NO_SESSION,
    FetchedPartition,
    FetchPartition,
    FetchResponse,
    group_by_topic,
    isolation_code,
    parse_partition,
)
from shallow_mirror.wire.protocol.primitives import Reader, string

_HEAD = struct.Struct(">hhi")
_FIXED = struct.Struct(">iiiibii")
_COUNT = struct.Struct(">i")
_PARTITION = struct.Struct(">iiqqi")
_RESPONSE_HEAD = struct.Struct(">iihi")
_LEAST_TOPIC_BYTES = 6


def build_leader_fetch_request(
    correlation_id: int,
    client_id: str,
    partitions: Sequence[FetchPartition],
    *,
    isolation: IsolationLevel,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
) -> bytes:
    """Build a whole frame, length included. Partitions are read in the order given, grouped by topic.

    `last_fetched_epoch` and `topic_id` of the partitions are not sent: v10 has no fields for them.
    """
    by_topic = group_by_topic(partitions)
    body = bytearray(_HEAD.pack(API_KEY, API_VERSION_OF_LEADER, correlation_id) + string(client_id))
    body += _FIXED.pack(CONSUMER, max_wait_ms, min_bytes, max_bytes, isolation_code(isolation), NO_SESSION, FINAL_EPOCH)
    body += _COUNT.pack(len(by_topic))
    for topic, topic_members in by_topic.items():
        body += string(topic) + _COUNT.pack(len(topic_members))
        for partition in topic_members:
            body += _PARTITION.pack(
                partition.topic_partition.partition,
                partition.leader_epoch,
                partition.offset,
                NO_LOG_START,
                partition.max_bytes,
            )
    body += _COUNT.pack(0)
    return _COUNT.pack(len(body)) + bytes(body)


def parse_leader_fetch_response(frame: memoryview) -> FetchResponse:
    """Parse a response. `frame` begins behind the four length bytes. Raises WireError on hostile bytes."""
    reader = Reader(frame)
    correlation_id, throttle_time_ms, error_code, _session = reader.unpack(_RESPONSE_HEAD)
    partitions: list[FetchedPartition] = []
    for _ in range(reader.fixed_length(_LEAST_TOPIC_BYTES)):
        topic = reader.fixed_string()
        for _ in range(reader.fixed_length(LEAST_PARTITION_BYTES)):
            partitions.append(parse_partition(reader, topic, is_flexible=False))
    return FetchResponse(correlation_id, throttle_time_ms, error_code, tuple(partitions))
