"""Pure: Produce v9 (ProduceRequest.json, ProduceResponse.json): one raw batch per partition, payloads as views.

A response of success holds nothing but numbers of a known size behind names that were in the request: it is compared with
the expected bytes, and only what differs is parsed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.protocol.primitives import NO_TAGS, Reader, compact_string, string, uvarint

API_KEY, API_VERSION = 0, 9

_HEAD = struct.Struct(">hhi")
_FRAME_HEAD = struct.Struct(">ihhi")
_ACKS_AND_TIMEOUT = struct.Struct(">hi")
_INDEX = struct.Struct(">i")
_PARTITION_RESPONSE = struct.Struct(">ihqqq")
_PARTITION_SUCCESS = struct.Struct(">ihqqq3s")
_BASE_OFFSET_AT, _BASE_OFFSET_BYTES, _TIME_BYTES, _LOG_START_BYTES = 6, 8, 8, 8
"""Behind partition and error code, and what follows it."""
_NO_APPEND_TIME_MS, _NO_APPEND_TIME_BYTE = -1, 255
"""The topic has message.timestamp.type=CreateTime: its batches keep their times."""
_NOTHING_ELSE = b"\x01\x00\x00"
"""No record errors, no message, no tags."""
_CORRELATION_BYTES = 4
_END = bytes(4) + NO_TAGS
"""No throttling, no tags."""


@dataclass(frozen=True, slots=True)
class SplitBatch:
    """A whole batch with a header that was rewritten elsewhere, and the payload in the receive buffer."""

    header: memoryview
    payload: memoryview

    def __len__(self) -> int:
        return len(self.header) + len(self.payload)


RawBatch = memoryview | SplitBatch


@dataclass(frozen=True, slots=True)
class ProducedPartition:
    """The result for one partition.

    `base_offset` is -1 on an error. `log_append_time_ms` is -1 if the batch kept its times (CreateTime).
    `record_errors`: (index of the record in its batch, message).
    """

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


class AppendedBatches(NamedTuple):
    """The offsets of a response of success. `stamped`: indices of batches that got the broker's time, ascending."""

    base_offsets: list[int]
    stamped: Sequence[int]


class AppendedColumns(NamedTuple):
    """The offsets of several responses of success. `base_offsets`: by partition; `stamped`: as in `AppendedBatches`, of any."""

    base_offsets: list[list[int]]
    stamped: Sequence[int]


class ProduceFrames:
    """Frames of Produce requests for the same partitions, which differ in batches and correlation ids only.

    Raises ValueError if a partition is given twice: brokers lose one of its batches.
    """

    def __init__(
        self, client_id: str, transactional_id: str | None, acks: int, timeout_ms: int, topic_partitions: Sequence[TopicPartition]
    ) -> None:
        by_topic: dict[str, dict[int, int]] = {}
        for i, topic_partition in enumerate(topic_partitions):
            if by_topic.setdefault(topic_partition.topic, {}).setdefault(topic_partition.partition, i) != i:
                raise ValueError(f"{topic_partition} twice in one Produce request")
        topics = {compact_string(topic) + uvarint(len(indices) + 1): indices for topic, indices in by_topic.items()}
        topic_count = uvarint(len(topics) + 1)
        pending = string(client_id) + NO_TAGS + compact_string(transactional_id) + _ACKS_AND_TIMEOUT.pack(acks, timeout_ms)
        pending += topic_count
        self._before: list[tuple[int, bytes]] = []
        for head, indices in topics.items():
            pending += head
            for partition, i in indices.items():
                self._before.append((i, pending + _INDEX.pack(partition)))
                pending = NO_TAGS
            pending += NO_TAGS
        self._tail = pending + NO_TAGS
        self._fixed_bytes = _HEAD.size + sum(len(text) for _, text in self._before) + len(self._tail)
        self._success = _SuccessParser(NO_TAGS + topic_count, topics)

    def build(self, correlation_id: int, batches: Sequence[RawBatch]) -> list[bytes | memoryview]:
        """Return a whole frame as parts to be sent in order; `batches` as the partitions were given."""
        parts: list[bytes | memoryview] = [b""]
        size = self._fixed_bytes
        for i, before in self._before:
            batch = batches[i]
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

    def parse_appended(self, frame: memoryview) -> AppendedBatches | None:
        """Parse a response that says nothing but that all batches were appended, in the order of the partitions.

        None: it says more, and `parse_produce_response` has to parse it.
        """
        return self._success.parse(frame)

    @property
    def success_bytes(self) -> int:
        """Return the size of such a response."""
        return self._success.size_bytes

    def parse_all_appended(self, frames: npt.NDArray[np.uint8]) -> AppendedColumns | None:
        """Parse several such responses at once; `frames`: uint8[n, success_bytes].

        None: one of them says more, or has its partitions in another order than the response that was parsed last.
        """
        return self._success.parse_all(frames)


class _SuccessParser:
    """Parser of responses without errors, messages, throttling or tags: numbers of a known size behind the topics' names.

    Brokers may put topics and partitions into another order than the request has.
    """

    def __init__(self, start: bytes, topics: Mapping[bytes, Mapping[int, int]]) -> None:
        self._start = start
        self._topics = topics
        self._name_bytes = {head[0]: len(head) for head in topics}
        self._partitions = sum(map(len, topics.values()))
        heads = sum(len(head) + len(NO_TAGS) for head in topics)
        self.size_bytes = _CORRELATION_BYTES + len(start) + heads + self._partitions * _PARTITION_SUCCESS.size + len(_END)
        self._layout: _ResponseLayout | None = None

    def parse(self, frame: memoryview) -> AppendedBatches | None:
        if len(frame) != self.size_bytes:
            return None
        # The layout of the last response first: a broker keeps its order.
        appended = None if self._layout is None else self._layout.parse(frame)
        if appended is None:
            positions = self._positions(frame)
            if positions is None:
                return None
            self._layout = _ResponseLayout(frame, positions)
            appended = self._layout.parse(frame)
        return None if appended is None or min(appended.base_offsets) < 0 else appended

    def parse_all(self, frames: npt.NDArray[np.uint8]) -> AppendedColumns | None:
        return None if self._layout is None else self._layout.parse_all(frames)

    def _positions(self, frame: memoryview) -> list[int] | None:
        """Return the position of the base offset of each batch in the frame; None if the frame contains anything else."""
        if frame[-len(_END) :] != _END:
            return None
        pos = _CORRELATION_BYTES + len(self._start)
        if frame[_CORRELATION_BYTES:pos] != self._start:
            return None
        positions, missing = [0] * self._partitions, dict(self._topics)
        while missing:  # each topic once: then the size of the frame leaves room for nothing else
            head = bytes(frame[pos : pos + self._name_bytes.get(frame[pos], 0)])
            indices = missing.pop(head, None)
            if indices is None:
                return None
            pos += len(head)
            end = pos + len(indices) * _PARTITION_SUCCESS.size
            for partition, error_code, _offset, _time, _log_start, rest in _PARTITION_SUCCESS.iter_unpack(frame[pos:end]):
                if error_code or rest != _NOTHING_ELSE or partition not in indices:
                    return None
                positions[indices[partition]] = pos + _BASE_OFFSET_AT
                pos += _PARTITION_SUCCESS.size
            pos = end + len(NO_TAGS)
            if frame[end:pos] != NO_TAGS:
                return None
        return None if 0 in positions else positions


class _ResponseLayout:
    """A response that was parsed, for those that differ in correlation id, base offsets, append times and log starts only."""

    def __init__(self, frame: memoryview, positions: Sequence[int]) -> None:
        in_order = sorted(positions)
        fields, pos = [f">{_CORRELATION_BYTES}x"], _CORRELATION_BYTES
        # 255 for the bytes that are the same in all responses of success about these partitions, and 0 for the others.
        self._is_constant = np.full(len(frame), 255, np.uint8)
        self._is_constant[:_CORRELATION_BYTES] = 0
        for position in in_order:
            fields.append(f"{position - pos}sqq{_LOG_START_BYTES}x")
            pos = position + _BASE_OFFSET_BYTES + _TIME_BYTES + _LOG_START_BYTES
            self._is_constant[position:pos] = 0
        self._layout = struct.Struct("".join((*fields, f"{len(frame) - pos}s")))
        self._constants = self._layout.unpack(frame)[::3]
        self._order = [in_order.index(position) for position in positions]
        self._no_times = (_NO_APPEND_TIME_MS,) * len(positions)
        self._positions = positions
        self._frame = np.array(frame, np.uint8)

    def parse(self, frame: memoryview) -> AppendedBatches | None:
        values = self._layout.unpack(frame)
        if values[::3] != self._constants:
            return None
        offsets, times = values[1::3], values[2::3]
        # Compared as a whole first: hardly any topic stamps, and a response may be about thousands of partitions.
        stamped: Sequence[int] = ()
        if times != self._no_times:
            stamped = [i for i, rank in enumerate(self._order) if times[rank] != _NO_APPEND_TIME_MS]
        return AppendedBatches([offsets[rank] for rank in self._order], stamped)

    def parse_all(self, frames: npt.NDArray[np.uint8]) -> AppendedColumns | None:
        if ((frames ^ self._frame) & self._is_constant).any():
            return None
        columns = [frames[:, at : at + _BASE_OFFSET_BYTES].view(">i8")[:, 0] for at in self._positions]
        if any(column.min() < 0 for column in columns):
            return None
        stamped = [
            i
            for i, times_at in enumerate(at + _BASE_OFFSET_BYTES for at in self._positions)
            if (frames[:, times_at : times_at + _TIME_BYTES] != _NO_APPEND_TIME_BYTE).any()
        ]
        return AppendedColumns([column.tolist() for column in columns], stamped)


def parse_produce_response(frame: memoryview) -> ProduceResponse:
    """Parse any response. `frame` begins behind the four length bytes. Raises WireError on hostile bytes."""
    reader = Reader(frame)
    correlation_id = reader.int32()
    reader.tags()
    partitions: list[ProducedPartition] = []
    for _ in range(reader.length(3)):
        topic = reader.compact_string()
        for _ in range(reader.length(_PARTITION_RESPONSE.size)):
            partitions.append(_parse_partition(reader, topic))
        reader.tags()
    throttle_time_ms = reader.int32()
    reader.tags()
    return ProduceResponse(correlation_id, tuple(partitions), throttle_time_ms)


def _parse_partition(reader: Reader, topic: str) -> ProducedPartition:
    partition, error_code, base_offset, log_append_time_ms, log_start_offset = reader.unpack(_PARTITION_RESPONSE)
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
