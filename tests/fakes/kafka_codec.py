"""Requests and responses by kafka-python's protocol classes, in the versions that the package under test uses. No own wire code."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from kafka.protocol import admin, consumer, metadata, producer, sasl

_MODULES = {
    "Produce": (producer, 9),
    "Fetch": (consumer, 12),
    "ListOffsets": (consumer, 6),
    "OffsetForLeaderEpoch": (consumer, 4),
    "Metadata": (metadata, 10),
    "OffsetFetch": (consumer, 7),
    "OffsetCommit": (consumer, 8),
    "ListGroups": (admin, 4),
    "DescribeGroups": (admin, 5),
    "DeleteGroups": (admin, 2),
    "DeleteTopics": (admin, 6),
    "CreateTopics": (admin, 6),
    "CreatePartitions": (admin, 3),
    "IncrementalAlterConfigs": (admin, 1),
    "DeleteRecords": (admin, 2),
    "CreateAcls": (admin, 2),
    "DeleteAcls": (admin, 2),
    "Heartbeat": (consumer, 4),
    "FindCoordinator": (metadata, 3),
    "ApiVersions": (metadata, 3),
    "InitProducerId": (producer, 4),
    "AddPartitionsToTxn": (producer, 3),
    "AddOffsetsToTxn": (producer, 3),
    "EndTxn": (producer, 3),
    "DescribeTransactions": (admin, 0),
    "ListTransactions": (admin, 0),
    "TxnOffsetCommit": (producer, 3),
    "WriteTxnMarkers": (producer, 1),
    "DescribeConfigs": (admin, 4),
    "DescribeAcls": (admin, 2),
    "DescribeClientQuotas": (admin, 1),
    "AlterClientQuotas": (admin, 1),
    "DescribeProducers": (admin, 0),
    "SaslHandshake": (sasl, 1),
}
VERSIONS = {api: version for api, (_, version) in _MODULES.items()}
NEWER_VERSIONS = {"Fetch": (13,), "ListOffsets": (8,), "OffsetFetch": (8,)}
"""Asked for where a broker offers them."""
OLDER_VERSIONS = {"Fetch": (10,)}
"""Asked for to be answered by the leader itself: requests without a rack. Without tags."""
_HEAD = struct.Struct(">hhi")
_NO_TAGS = b"\x00"
_WITHOUT_TAGS = ("ApiVersions", "SaslHandshake")


def request_type(api: str, version: int | None = None) -> Any:
    """Return the class of a version, by default of the one that any broker offers: nested types are its attributes."""
    module, usual = _MODULES[api]
    return getattr(module, f"{api}Request")[usual if version is None else version]


def response_type(api: str, version: int | None = None) -> Any:
    module, usual = _MODULES[api]
    return getattr(module, f"{api}Response")[usual if version is None else version]


API_KEYS = {api: request_type(api).API_KEY for api in _MODULES}
_APIS = {key: api for api, key in API_KEYS.items()}


class UnreadableRequestError(Exception):
    """Bytes that a broker would answer by closing the connection."""


class OtherVersionError(UnreadableRequestError):
    """A version that the fake does not speak."""

    def __init__(self, api: str, version: int, correlation_id: int) -> None:
        self.api, self.version, self.correlation_id = api, version, correlation_id
        super().__init__(f"{api} version {version}")


@dataclass(frozen=True, slots=True)
class Request:
    api: str
    correlation_id: int
    client_id: str | None
    body: Any
    size_bytes: int


def read_request(frame: bytes) -> Request:
    """`frame` begins behind the four length bytes. Whatever does not encode back to the same bytes is refused."""
    if len(frame) < _HEAD.size:
        raise UnreadableRequestError(f"frame of {len(frame)} bytes")
    key, version, correlation_id = _HEAD.unpack_from(frame)
    if key not in _APIS:
        raise UnreadableRequestError(f"api key {key}")
    api = _APIS[key]
    if version not in (VERSIONS[api], *NEWER_VERSIONS.get(api, ()), *OLDER_VERSIONS.get(api, ())):
        raise OtherVersionError(api, version, correlation_id)
    try:
        body = request_type(api, version).decode(frame, header=True)
        client_id = body.header.client_id
        body.with_header(correlation_id, client_id)
        encoded_again = bytes(body.encode(header=True))
    except (IndexError, ValueError, TypeError, struct.error) as error:
        raise UnreadableRequestError(f"{api}: {error}") from error
    if encoded_again != frame:
        raise UnreadableRequestError(f"{api} is not the schema's encoding of what it says")
    return Request(api, correlation_id, client_id, body, len(frame))


def response_frame(request: Request, response: Any) -> bytes:
    """Return a whole frame, length included."""
    has_tags = request.api not in _WITHOUT_TAGS and request.body.version not in OLDER_VERSIONS.get(request.api, ())
    header = request.correlation_id.to_bytes(4, "big") + (_NO_TAGS if has_tags else b"")
    return framed(header + bytes(response.encode()))


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body
