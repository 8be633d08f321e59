"""Responses of brokers: our own parsers of Fetch and Produce, and kafka-python's of everything else, behind `messages.call`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.fakes.replayed import NEVER, replayed_connection, response_frame
from tests.fuzz.target import Target
from tests.support.golden_files import frame_of, names
from tests.support.wire_responses import A_UUID, fetch_response, leader_fetch_response, produce_response

from shallow_mirror.broker.net import requests
from shallow_mirror.errors import RetriableError
from shallow_mirror.wire.protocol import (
    TopicNames,
    WireError,
    group_offsets,
    list_offsets,
    parse_fetch_response,
    parse_leader_fetch_response,
    parse_produce_response,
)
from shallow_mirror.wire.protocol.fetch import API_VERSION_BY_ID


def fetch(names: TopicNames | None, data: bytes) -> None:
    for partition in parse_fetch_response(memoryview(data), names).partitions:
        assert len(partition.records) + 16 * len(partition.aborted) <= len(data)


def fetch_from_leader(data: bytes) -> None:
    for part in parse_leader_fetch_response(memoryview(data)).partitions:
        assert len(part.records) + 16 * len(part.aborted) <= len(data)


def produce(data: bytes) -> None:
    response = parse_produce_response(memoryview(data))
    assert 5 * sum(len(partition.record_errors) for partition in response.partitions) <= len(data)


def latest_offsets(data: bytes) -> None:
    offsets = list_offsets.parse_offsets(memoryview(data))
    assert offsets is None or sum(entries.nbytes for _, entries in offsets) <= len(data)


def offsets_of_groups(data: bytes) -> None:
    groups = group_offsets.parse_offsets_of_groups(memoryview(data))
    assert 20 * sum(len(group.offsets) for group in groups.values()) <= len(data)


def call(api: str, data: bytes) -> None:
    """Parse a response whose length and correlation id are right."""
    connection = replayed_connection(response_frame(1, data))
    assert requests.call(connection, api, NEVER) is not None


def frames(data: bytes) -> None:
    """Feed a stream of frames to one connection, whatever they say of their length."""
    connection = replayed_connection(data)
    while True:
        connection.send(connection.next_correlation_id(), [], NEVER)
        connection.receive(NEVER)


def filled(structure: Any, version: int, entries: int) -> dict[str, Any]:
    """Fields of a kafka-python structure that are arrays, of `entries` each; the rest is as it is by default."""
    arrays = [(name, field) for name, field in structure.fields.items() if field.is_array() and field.for_version_q(version)]
    return {name: [_entry(field.array_of, version, entries)] * entries for name, field in arrays}


def _entry(field_type: Any, version: int, entries: int) -> Any:
    if field_type.is_struct():
        return field_type.data_class(version=version, **filled(field_type, version, entries))
    return {"string": "name", "uuid": A_UUID}.get(field_type.type_str, 1)


def responses(api: str) -> list[bytes]:
    """Without entries, and with one and two in every array."""
    request, response, version = requests._USED[api]
    tags = b"" if api == "ApiVersions" or not request[version].flexible_version_q(version) else b"\x00"
    made = [response[version](**filled(response[version]._struct, version, entries)) for entries in range(3)]
    return [tags + bytes(made_entry.encode()) for made_entry in made]


def _golden(start: str) -> list[bytes]:
    return [bytes(frame_of(name)) for name in names(start)]


def _callers() -> list[Target]:
    runs: list[tuple[str, Callable[[bytes], None]]] = [(api, partial(call, api)) for api in requests._USED]
    return [Target(f"answer to {api}", responses(api), run, (RetriableError,)) for api, run in runs]


RESPONSES = [
    Target("fetch by name", [*_golden("fetch-"), fetch_response()], partial(fetch, None), (WireError,)),
    Target("fetch by id", [fetch_response(API_VERSION_BY_ID)], partial(fetch, {A_UUID.bytes: "a"}), (WireError,)),
    Target("fetch from the leader alone", [leader_fetch_response()], fetch_from_leader, (WireError,)),
    Target(
        "latest offsets", [b"\x00\x00\x00\x01" + response for response in responses("ListOffsets")], latest_offsets, (WireError,)
    ),
    Target(
        "offsets of groups",
        [b"\x00\x00\x00\x01" + response for response in responses("OffsetFetchOfGroups")],
        offsets_of_groups,
        (WireError,),
    ),
    Target("produce", [*_golden("produce-"), produce_response()], produce, (WireError,)),
    Target("frames", [response_frame(1, b"abc") + response_frame(2, b"")], frames, (RetriableError,)),
    *_callers(),
]
