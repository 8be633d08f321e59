"""Pure: Fetch v10, sessionless, which only a leader answers, and with its own log (FetchRequest.json, KIP-392).

From v11 on a request names the client's rack, possibly an empty one, and then a leader may name a replica to be asked
instead of reading. v10 has no tags and names topics; no broker from Kafka 0.11 to 4.3 refuses it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from shallow_mirror.types import IsolationLevel, TopicPartition
from shallow_mirror.wire.protocol.fetch import API_KEY, API_VERSION_OF_LEADER, FetchedPartition, FetchPartition, FetchResponse
from shallow_mirror.wire.protocol.primitives import Reader, string

_HEAD = struct.Struct(">hhi")
_FIXED = struct.Struct(">iiiibii")
_COUNT = struct.Struct(">i")
_PARTITION = struct.Struct(">iiqqi")
_ANSWER_HEAD = struct.Struct(">iihi")
_PARTITION_ANSWER = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_LEAST_TOPIC_BYTES = 6
_CONSUMER, _NO_SESSION, _FINAL_EPOCH, _NO_LOG_START = -1, 0, -1, -1


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
    by_topic: dict[str, list[FetchPartition]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic_partition.topic, []).append(partition)
    level = 1 if isolation is IsolationLevel.READ_COMMITTED else 0
    body = bytearray(_HEAD.pack(API_KEY, API_VERSION_OF_LEADER, correlation_id) + string(client_id))
    body += _FIXED.pack(_CONSUMER, max_wait_ms, min_bytes, max_bytes, level, _NO_SESSION, _FINAL_EPOCH)
    body += _COUNT.pack(len(by_topic))
    for topic, members in by_topic.items():
        body += string(topic) + _COUNT.pack(len(members))
        for partition in members:
            body += _PARTITION.pack(
                partition.topic_partition.partition,
                partition.leader_epoch,
                partition.offset,
                _NO_LOG_START,
                partition.max_bytes,
            )
    body += _COUNT.pack(0)
    return _COUNT.pack(len(body)) + bytes(body)


def parse_leader_fetch_response(frame: memoryview) -> FetchResponse:
    """Parse an answer. `frame` begins behind the four length bytes. Raises WireError on hostile bytes."""
    reader = Reader(frame)
    correlation_id, throttle_time_ms, error_code, _session = reader.unpack(_ANSWER_HEAD)
    partitions: list[FetchedPartition] = []
    for _ in range(reader.fixed_length(_LEAST_TOPIC_BYTES)):
        topic = reader.fixed_string()
        for _ in range(reader.fixed_length(_PARTITION_ANSWER.size)):
            partitions.append(_parse_partition(reader, topic))
    return FetchResponse(correlation_id, throttle_time_ms, error_code, tuple(partitions))


def _parse_partition(reader: Reader, topic: str) -> FetchedPartition:
    partition, error_code, high_watermark, last_stable_offset, log_start_offset = reader.unpack(_PARTITION_ANSWER)
    aborted: list[tuple[int, int]] = []
    for _ in range(reader.fixed_length(_ABORTED.size)):
        producer_id, first_offset = reader.unpack(_ABORTED)
        aborted.append((producer_id, first_offset))
    records = reader.view(max(reader.int32(), 0))
    return FetchedPartition(
        TopicPartition(topic, partition),
        error_code,
        high_watermark,
        last_stable_offset,
        log_start_offset,
        tuple(aborted),
        None,
        records,
    )
