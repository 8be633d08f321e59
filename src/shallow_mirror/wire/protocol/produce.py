"""Pure: Produce v9 (ProduceRequest.json, ProduceResponse.json): one raw batch per partition, payloads as views."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.protocol.primitives import NO_TAGS, Reader, compact_string, string, uvarint

API_KEY, API_VERSION = 0, 9

_HEAD = struct.Struct(">hhi")
_FRAME_HEAD = struct.Struct(">ihhi")
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_INDEX = struct.Struct(">i")
_PARTITION_ANSWER = struct.Struct(">ihqqq")
_PLAIN_ANSWER = struct.Struct(">ihqqq3s")
_BASE_OFFSET_AT, _BASE_OFFSET_BYTES, _TIME_BYTES, _LOG_START_BYTES = 6, 8, 8, 8
"""Behind partition and error code, and what follows it."""
_NO_APPEND_TIME_MS = -1
"""The topic has message.timestamp.type=CreateTime: its batches keep their times."""
_NOTHING_ELSE = b"\x01\x00\x00"
"""No record errors, no message, no tags."""
_CORRELATION_BYTES = 4
_END = bytes(4) + NO_TAGS
"""No throttling, no tags."""


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
    """`base_offset` is -1 on an error. `log_append_time_ms` is -1 where the batch kept its times (CreateTime).
    `record_errors`: (index of the record in its batch, message)."""

    topic_partition: TopicPartition
    error_code: int
    base_offset: int
    log_append_time_ms: int
    log_start_offset: int
    error_message: str | None
    record_errors: tuple[tuple[int, str | None], ...]

    @property
    def is_stamped(self) -> bool:
        return self.log_append_time_ms != _NO_APPEND_TIME_MS


@dataclass(frozen=True, slots=True)
class ProduceResponse:
    correlation_id: int
    partitions: tuple[ProducedPartition, ...]
    throttle_time_ms: int


class PlainAnswer(NamedTuple):
    """Every batch was appended, and nothing else is said. `stamped`: indices of those that got the broker's time, ascending."""

    base_offsets: list[int]
    stamped: Sequence[int]


class ProduceFrames:
    """Produce requests for the same partitions, one batch each, which differ in batches and correlation ids only; and those of
    their answers that say nothing but offsets.

    Raises ValueError where a partition is given twice: brokers lose one.
    """

    def __init__(
        self, client_id: str, transactional_id: str | None, acks: int, timeout_ms: int, places: Sequence[TopicPartition]
    ) -> None:
        by_topic: dict[str, dict[int, int]] = {}
        for at, place in enumerate(places):
            if by_topic.setdefault(place.topic, {}).setdefault(place.partition, at) != at:
                raise ValueError(f"{place} twice in one Produce request")
        topics = {compact_string(topic) + uvarint(len(members) + 1): members for topic, members in by_topic.items()}
        topic_count = uvarint(len(topics) + 1)
        pending = string(client_id) + NO_TAGS + compact_string(transactional_id) + _ACKS_AND_TIMEOUT.pack(acks, timeout_ms)
        pending += topic_count
        self._before: list[tuple[int, bytes]] = []
        for head, members in topics.items():
            pending += head
            for partition, at in members.items():
                self._before.append((at, pending + _INDEX.pack(partition)))
                pending = NO_TAGS
            pending += NO_TAGS
        self._tail = pending + NO_TAGS
        self._fixed_bytes = _HEAD.size + sum(len(text) for _, text in self._before) + len(self._tail)
        self._answer = _PlainAnswer(NO_TAGS + topic_count, topics)

    def build(self, correlation_id: int, batches: Sequence[RawBatch]) -> list[bytes | memoryview]:
        """A whole frame as parts to be sent in order; `batches` as the partitions were given."""
        parts: list[bytes | memoryview] = [b""]
        size = self._fixed_bytes
        for at, before in self._before:
            batch = batches[at]
            batch_bytes = len(batch)
            length = uvarint(batch_bytes + 1)
            size += len(length) + batch_bytes
            if isinstance(batch, SplitBatch):
                parts += (before + length + batch.header, batch.payload)
            else:
                parts += (before + length, batch)
        parts.append(self._tail)
        parts[0] = _FRAME_HEAD.pack(size, API_KEY, API_VERSION, correlation_id)
        return parts

    def plain_answer(self, frame: memoryview) -> PlainAnswer | None:
        """Read `frame`, an answer, where it says that all batches were appended and nothing else, in the order of the partitions.

        None: it has to be parsed.
        """
        return self._answer.read(frame)


class _PlainAnswer:
    """No errors, messages, throttling, tags: then only numbers of a known size follow the topics' names, in whatever order."""

    def __init__(self, start: bytes, topics: Mapping[bytes, Mapping[int, int]]) -> None:
        self._start, self._topics = start, topics
        self._name_bytes = {head[0]: len(head) for head in topics}
        self._partitions = sum(map(len, topics.values()))
        heads = sum(len(head) + len(NO_TAGS) for head in topics)
        self._size = _CORRELATION_BYTES + len(start) + heads + self._partitions * _PLAIN_ANSWER.size + len(_END)
        self._last: _OffsetsIn | None = None

    def read(self, frame: memoryview) -> PlainAnswer | None:
        if len(frame) != self._size:
            return None
        answer = None if self._last is None else self._last.read(frame)
        if answer is None:
            positions = self._positions(frame)
            if positions is None:
                return None
            self._last = _OffsetsIn(frame, positions)
            answer = self._last.read(frame)
        return None if answer is None or -1 in answer.base_offsets else answer

    def _positions(self, frame: memoryview) -> list[int] | None:
        """Where the base offset of each batch is."""
        if frame[-len(_END) :] != _END:
            return None
        pos = _CORRELATION_BYTES + len(self._start)
        if frame[_CORRELATION_BYTES:pos] != self._start:
            return None
        positions, owed = [0] * self._partitions, dict(self._topics)
        while owed:  # each of them once: then what is left of the frame is exactly theirs
            head = bytes(frame[pos : pos + self._name_bytes.get(frame[pos], 0)])
            members = owed.pop(head, None)
            if members is None:
                return None
            pos += len(head)
            end = pos + len(members) * _PLAIN_ANSWER.size
            for partition, error_code, _offset, _time, _log_start, rest in _PLAIN_ANSWER.iter_unpack(frame[pos:end]):
                if error_code or rest != _NOTHING_ELSE or partition not in members:
                    return None
                positions[members[partition]] = pos + _BASE_OFFSET_AT
                pos += _PLAIN_ANSWER.size
            pos = end + len(NO_TAGS)
            if frame[end:pos] != NO_TAGS:
                return None
        return None if 0 in positions else positions


class _OffsetsIn:
    """An answer that was read, for those that differ in correlation id, base offsets, append times and log starts only."""

    def __init__(self, frame: memoryview, positions: Sequence[int]) -> None:
        in_order = sorted(positions)
        fields, pos = [f">{_CORRELATION_BYTES}x"], _CORRELATION_BYTES
        for position in in_order:
            fields.append(f"{position - pos}sqq{_LOG_START_BYTES}x")
            pos = position + _BASE_OFFSET_BYTES + _TIME_BYTES + _LOG_START_BYTES
        self._layout = struct.Struct("".join((*fields, f"{len(frame) - pos}s")))
        self._around = self._layout.unpack(frame)[::3]
        self._lanes = [in_order.index(position) for position in positions]
        self._no_times = (_NO_APPEND_TIME_MS,) * len(positions)

    def read(self, frame: memoryview) -> PlainAnswer | None:
        values = self._layout.unpack(frame)
        if values[::3] != self._around:
            return None
        offsets, times = values[1::3], values[2::3]
        # Compared as a whole first: hardly any topic stamps, and an answer may be about thousands of partitions.
        stamped: Sequence[int] = ()
        if times != self._no_times:
            stamped = [at for at, lane in enumerate(self._lanes) if times[lane] != _NO_APPEND_TIME_MS]
        return PlainAnswer([offsets[lane] for lane in self._lanes], stamped)


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
