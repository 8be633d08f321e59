"""Pure: Fetch, sessionless (FetchRequest.json, FetchResponse.json; KIP-227, KIP-320, KIP-392, KIP-516, KIP-595).

v12 names topics, v13 (Kafka 3.1) their ids: a recreated topic is then another one. They differ in
nothing else. v10 is the last version that names no rack: a leader answers it with its own log, whatever its
`replica.selector.class` says, and a follower refuses it.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shallow_mirror.types import IsolationLevel, TopicPartition
from shallow_mirror.wire.protocol.primitives import NO_TAGS, Reader, WireError, compact_string, string, uvarint

API_KEY, API_VERSION, API_VERSION_BY_ID = 1, 12, 13
API_VERSION_OF_LEADER = 10
NO_REPLICA = -1
TOPIC_ID_BYTES = 16
NO_TOPIC_ID = bytes(TOPIC_ID_BYTES)
"""Of topics that were made before Kafka 2.8 and never seen by a newer controller."""

_HEAD = struct.Struct(">hhi")
_FIXED = struct.Struct(">iiiibii")
_PARTITION = struct.Struct(">iiqiqi")
_PARTITION_HEAD = struct.Struct(">ihqqq")
_ABORTED = struct.Struct(">qq")
_DIVERGING = struct.Struct(">iq")
_DIVERGING_TAG = 0
_RESPONSE_HEAD = struct.Struct(">ihi")

LEAST_PARTITION_BYTES = _PARTITION_HEAD.size
CONSUMER = NO_LOG_START = FINAL_EPOCH = -1
NO_SESSION = 0


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """A partition of a Fetch request.

    `leader_epoch` and `last_fetched_epoch` may be -1: not checked by the broker. `topic_id`: as Kafka prints it, or "".
    """

    topic_partition: TopicPartition
    leader_epoch: int
    offset: int
    max_bytes: int
    last_fetched_epoch: int = -1
    topic_id: str = ""


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """A partition of a Fetch response."""

    topic_partition: TopicPartition
    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]
    """(producer id, first offset) of each aborted transaction."""
    diverging: tuple[int, int] | None
    """(leader epoch, its end offset) if the log was truncated."""
    records: memoryview
    """A view of the frame: whole batches and perhaps a partial last one."""
    preferred_replica: int = NO_REPLICA
    """The node that the leader names to be read instead (KIP-392), NO_REPLICA if it answers itself."""


@dataclass(frozen=True, slots=True)
class FetchResponse:
    correlation_id: int
    throttle_time_ms: int
    error_code: int
    partitions: tuple[FetchedPartition, ...]


TopicNames = Mapping[bytes, str]
"""By topic id: what a response to a request by ids leaves out."""


def topic_names(partitions: Sequence[FetchPartition]) -> TopicNames | None:
    """Return names by topic id for a request by ids; None if an id is not known: the request has to go by names."""
    names = {_raw_id(partition.topic_id): partition.topic_partition.topic for partition in partitions}
    return None if NO_TOPIC_ID in names else names


def _raw_id(topic_id: str) -> bytes:
    return base64.urlsafe_b64decode(topic_id + "==") if topic_id else NO_TOPIC_ID


def build_fetch_request(
    correlation_id: int,
    client_id: str,
    partitions: Sequence[FetchPartition],
    *,
    isolation: IsolationLevel,
    max_wait_ms: int,
    min_bytes: int,
    max_bytes: int,
    names: TopicNames | None = None,
    rack: str = "",
) -> bytes:
    """Build a whole frame, length included. Partitions are read in the order given, grouped by topic; by ids with `names`.

    `rack` is the client's, for brokers that choose the replica to read from (KIP-392).
    """
    by_topic = group_by_topic(partitions)
    version = API_VERSION if names is None else API_VERSION_BY_ID
    body = bytearray(_HEAD.pack(API_KEY, version, correlation_id) + string(client_id) + NO_TAGS)
    body += _FIXED.pack(CONSUMER, max_wait_ms, min_bytes, max_bytes, isolation_code(isolation), NO_SESSION, FINAL_EPOCH)
    body += uvarint(len(by_topic) + 1)
    for topic, topic_members in by_topic.items():
        body += compact_string(topic) if names is None else _raw_id(topic_members[0].topic_id)
        body += uvarint(len(topic_members) + 1)
        for partition in topic_members:
            body += _PARTITION.pack(
                partition.topic_partition.partition,
                partition.leader_epoch,
                partition.offset,
                partition.last_fetched_epoch,
                NO_LOG_START,
                partition.max_bytes,
            )
            body += NO_TAGS
        body += NO_TAGS
    body += uvarint(1) + compact_string(rack) + NO_TAGS
    return struct.pack(">i", len(body)) + bytes(body)


def group_by_topic(partitions: Sequence[FetchPartition]) -> dict[str, list[FetchPartition]]:
    """Return the partitions by topic, in the order given: brokers read them in the order of the request."""
    by_topic: dict[str, list[FetchPartition]] = {}
    for partition in partitions:
        by_topic.setdefault(partition.topic_partition.topic, []).append(partition)
    return by_topic


def isolation_code(isolation: IsolationLevel) -> int:
    return 1 if isolation is IsolationLevel.READ_COMMITTED else 0


def parse_fetch_response(frame: memoryview, names: TopicNames | None = None) -> FetchResponse:
    """Parse a response. `frame` begins behind the four length bytes; `names` are the request's. Raises WireError."""
    reader = Reader(frame)
    correlation_id = reader.int32()
    reader.tags()
    throttle_time_ms, error_code, _session = reader.unpack(_RESPONSE_HEAD)
    partitions: list[FetchedPartition] = []
    for _ in range(reader.length(3)):
        topic = reader.compact_string() if names is None else _parse_topic_id(reader, names)
        for _ in range(reader.length(LEAST_PARTITION_BYTES)):
            partitions.append(parse_partition(reader, topic, is_flexible=True))
        reader.tags()
    reader.tags()
    return FetchResponse(correlation_id, throttle_time_ms, error_code, tuple(partitions))


def _parse_topic_id(reader: Reader, names: TopicNames) -> str:
    topic_id = bytes(reader.view(TOPIC_ID_BYTES))
    if topic_id not in names:
        raise WireError(f"a topic that was not asked for: id {topic_id.hex()}")
    return names[topic_id]


def parse_partition(reader: Reader, topic: str, *, is_flexible: bool) -> FetchedPartition:
    """Parse one partition of a response. `is_flexible`: v12 and later; else v10, without tags and preferred replica."""
    partition, error_code, high_watermark, last_stable_offset, log_start_offset = reader.unpack(_PARTITION_HEAD)
    aborted: list[tuple[int, int]] = []
    for _ in range(reader.length(_ABORTED.size) if is_flexible else reader.fixed_length(_ABORTED.size)):
        producer_id, first_offset = reader.unpack(_ABORTED)
        aborted.append((producer_id, first_offset))
        if is_flexible:
            reader.tags()
    diverging: tuple[int, int] | None = None
    preferred_replica = NO_REPLICA
    if is_flexible:
        preferred_replica = reader.int32()
        records = reader.compact_bytes()
        tag = reader.tags().get(_DIVERGING_TAG)
        if tag is not None:
            epoch, end_offset = Reader(tag).unpack(_DIVERGING)
            diverging = epoch, end_offset
    else:
        records = reader.view(max(reader.int32(), 0))
    return FetchedPartition(
        TopicPartition(topic, partition),
        error_code,
        high_watermark,
        last_stable_offset,
        log_start_offset,
        tuple(aborted),
        diverging,
        records,
        preferred_replica,
    )
