"""Pure: Produce v9 (ProduceRequest.json, ProduceResponse.json): one raw batch per partition, payloads as views."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.primitives import NO_TAGS, Reader, compact_string, string, uvarint

API_KEY, API_VERSION = 0, 9

_HEAD = struct.Struct(">hhi")
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_INDEX = struct.Struct(">i")
_PARTITION_ANSWER = struct.Struct(">ihqqq")


@dataclass(frozen=True, slots=True)
class SplitBatch:
    """A whole batch whose header was rewritten elsewhere, while its payload stays where it was received."""

    header: memoryview
    payload: memoryview

    def __len__(self) -> int:
        return len(self.header) + len(self.payload)


RawBatch = memoryview | SplitBatch


@dataclass(frozen=True, slots=True)
class ProducedPartition:
    """`base_offset` is -1 on an error. `record_errors`: (index of the record in its batch, message)."""

    topic_partition: TopicPartition
    error_code: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    error_message: str | None
    record_errors: tuple[tuple[int, str | None], ...]


@dataclass(frozen=True, slots=True)
class ProduceResponse:
    correlation_id: int
    partitions: tuple[ProducedPartition, ...]
    throttle_time_ms: int


def build_produce_request(
    correlation_id: int,
    client_id: str,
    transactional_id: str | None,
    acks: int,
    timeout_ms: int,
    batches: Sequence[tuple[TopicPartition, RawBatch]],
) -> list[bytes | memoryview]:
    """A whole frame as parts to be sent in order. Raises ValueError where a partition is given twice: brokers lose one."""
    by_topic: dict[str, dict[int, RawBatch]] = {}
    for place, batch in batches:
        members = by_topic.setdefault(place.topic, {})
        if place.partition in members:
            raise ValueError(f"{place} twice in one Produce request")
        members[place.partition] = batch
    pending = bytearray(_HEAD.pack(API_KEY, API_VERSION, correlation_id) + string(client_id) + NO_TAGS)
    pending += compact_string(transactional_id) + _ACKS_AND_TIMEOUT.pack(acks, timeout_ms) + uvarint(len(by_topic) + 1)
    parts: list[bytes | memoryview] = []
    for topic, members in by_topic.items():
        pending += compact_string(topic) + uvarint(len(members) + 1)
        for partition, batch in members.items():
            pending += _INDEX.pack(partition) + uvarint(len(batch) + 1)
            if isinstance(batch, SplitBatch):
                parts += [bytes(pending + batch.header), batch.payload]
            else:
                parts += [bytes(pending), batch]
            pending = bytearray(NO_TAGS)
        pending += NO_TAGS
    parts.append(bytes(pending + NO_TAGS))
    parts[0] = struct.pack(">i", sum(len(part) for part in parts)) + bytes(parts[0])
    return parts


def parse_produce_response(frame: memoryview) -> ProduceResponse:
    """`frame` begins behind the four length bytes. Raises WireError on hostile bytes."""
    reader = Reader(frame)
    correlation_id = reader.int32()
    reader.tags()
    partitions: list[ProducedPartition] = []
    for _ in range(reader.length(3)):
        topic = reader.compact_string()
        for _ in range(reader.length(_PARTITION_ANSWER.size)):
            partitions.append(_parse_partition(reader, topic))
        reader.tags()
    throttle_time_ms = reader.int32()
    reader.tags()
    return ProduceResponse(correlation_id, tuple(partitions), throttle_time_ms)


def _parse_partition(reader: Reader, topic: str) -> ProducedPartition:
    partition, error_code, base_offset, log_append_time_ms, log_start_offset = reader.unpack(_PARTITION_ANSWER)
    record_errors: list[tuple[int, str | None]] = []
    for _ in range(reader.length(_INDEX.size)):
        record_errors.append((reader.int32(), reader.nullable_string()))
        reader.tags()
    error_message = reader.nullable_string()
    reader.tags()
    return ProducedPartition(
        TopicPartition(topic, partition),
        error_code,
        base_offset,
        log_append_time_ms,
        log_start_offset,
        error_message,
        tuple(record_errors),
    )
