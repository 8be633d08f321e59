"""Pure: OffsetCommit v8 and the response to OffsetFetch v8 as bytes, for thousands of offsets: no object for each of them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.protocol.primitives import NO_TAGS, Reader, WireError, compact_string, string, uvarint

COMMIT_API_KEY, COMMIT_API_VERSION = 8, 8
_NO_GENERATION, _NO_EPOCH = -1, -1
_NO_TEXT, _EMPTY_TEXT = 0, 1
"""The length bytes of a compact string that is null, and of one that is empty."""

_HEADER = struct.Struct(">hhi")
_OF_NO_MEMBER = struct.pack(">iBB", _NO_GENERATION, _EMPTY_TEXT, _NO_TEXT)
"""Generation, member id and instance id of a client that is no member of the group."""
_COMMIT = struct.Struct(">iqi")
_COMMIT_WITHOUT_METADATA = struct.Struct(">iqiBB")
_COMMITTED = struct.Struct(">ihB")
_THROTTLE_TIME = slice(4 + len(NO_TAGS), 4 + len(NO_TAGS) + 4)
"""In a response, behind the correlation id and the tags of its header."""

_OFFSET = struct.Struct(">iqi")
_OFFSET_WITHOUT_METADATA = struct.Struct(">iqiBhB")
_ERROR_CODE = struct.Struct(">h")


class CommitRequest(NamedTuple):
    """The body of a request to commit offsets of one group, and the response that accepts all of them (see `is_accepted`)."""

    body: bytes
    accepted: bytes


class FetchedOffset(NamedTuple):
    """`offset` below 0: there is none."""

    topic: str
    partition: int
    offset: int
    metadata: str | None
    error_code: int


class GroupOffsets(NamedTuple):
    error_code: int
    offsets: list[FetchedOffset]


def build_commit_request(group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> CommitRequest:
    """Build the request of a client that is no member of the group, without leader epochs. `offsets`: with the metadata."""
    requested: dict[str, list[bytes]] = {}
    answered: dict[str, list[bytes]] = {}
    for (topic, partition), (offset, metadata) in offsets.items():
        if topic not in requested:
            requested[topic], answered[topic] = [], []
        if metadata:
            entry = _COMMIT.pack(partition, offset, _NO_EPOCH) + compact_string(metadata) + NO_TAGS
        else:
            entry = _COMMIT_WITHOUT_METADATA.pack(partition, offset, _NO_EPOCH, _EMPTY_TEXT, 0)
        requested[topic].append(entry)
        answered[topic].append(_COMMITTED.pack(partition, 0, 0))
    body = b"".join((compact_string(group), _OF_NO_MEMBER, _topics(requested)))
    return CommitRequest(body, _topics(answered))


def _topics(entries_by_topic: Mapping[str, list[bytes]]) -> bytes:
    parts = [uvarint(len(entries_by_topic) + 1)]
    for topic, entries in entries_by_topic.items():
        parts += [compact_string(topic), uvarint(len(entries) + 1), *entries, NO_TAGS]
    return b"".join([*parts, NO_TAGS])


def build_commit_header(correlation_id: int, client_id: str) -> bytes:
    return _HEADER.pack(COMMIT_API_KEY, COMMIT_API_VERSION, correlation_id) + string(client_id) + NO_TAGS


def is_accepted(request: CommitRequest, frame: memoryview) -> bool:
    """Return whether a response says in the order of the request that every offset was committed; others have to be decoded."""
    is_without_tags = frame[4 : _THROTTLE_TIME.start] == NO_TAGS
    return is_without_tags and len(frame) >= _THROTTLE_TIME.stop and frame[_THROTTLE_TIME.stop :] == request.accepted


def parse_offsets_of_groups(frame: memoryview) -> dict[str, GroupOffsets]:
    """Parse the response to OffsetFetch v8: the offsets of each group, in the response's order. Raises WireError."""
    reader = Reader(frame)
    reader.int32()  # the correlation id
    reader.tags()
    reader.int32()  # the throttle time
    groups = {}
    for _ in range(reader.length(5)):
        group, offsets = reader.compact_string(), list[FetchedOffset]()
        for _ in range(reader.length(3)):
            _read_topic(reader, offsets)
        (error_code,) = reader.unpack(_ERROR_CODE)
        reader.tags()
        groups[group] = GroupOffsets(error_code, offsets)
    reader.tags()
    if reader.pos != len(frame):
        raise WireError(f"{len(frame) - reader.pos} bytes behind an answer to OffsetFetch")
    return groups


def _read_topic(reader: Reader, offsets: list[FetchedOffset]) -> None:
    topic = reader.compact_string()
    for _ in range(reader.length(_OFFSET_WITHOUT_METADATA.size)):
        partition, offset, _, metadata_bytes, error_code, tag_count = reader.unpack(_OFFSET_WITHOUT_METADATA)
        metadata = "" if metadata_bytes == _EMPTY_TEXT else None
        if metadata_bytes > _EMPTY_TEXT:
            reader.pos -= _OFFSET_WITHOUT_METADATA.size - _OFFSET.size
            metadata = reader.nullable_string()
            (error_code,) = reader.unpack(_ERROR_CODE)
            reader.tags()
        elif tag_count:
            reader.pos -= 1
            reader.tags()
        offsets.append(FetchedOffset(topic, partition, offset, metadata, error_code))
    reader.tags()
