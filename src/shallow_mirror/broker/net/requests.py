"""Everywhere: requests and responses by kafka-python's protocol classes. The only file that imports kafka.

Fixed versions that every broker from 2.8 on accepts. kafka-python's defaults that are not ours are overridden by the callers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from kafka.protocol.admin import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    CreateAclsRequest,
    CreateAclsResponse,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteAclsRequest,
    DeleteAclsResponse,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from kafka.protocol.consumer import (
    HeartbeatRequest,
    HeartbeatResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

from shallow_mirror.broker.net.connection import Connection
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import BrokerTooOldError, ConfigError, NotABrokerError, RetriableError
from shallow_mirror.version import __version__
from shallow_mirror.wire.protocol import fetch

_USED: dict[str, tuple[Any, Any, int]] = {
    "ApiVersions": (ApiVersionsRequest, ApiVersionsResponse, 3),
    "Metadata": (MetadataRequest, MetadataResponse, 10),
    "ListOffsets": (ListOffsetsRequest, ListOffsetsResponse, 6),
    "ListLocalOffsets": (ListOffsetsRequest, ListOffsetsResponse, 8),
    "OffsetForLeaderEpoch": (OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse, 4),
    "FindCoordinator": (FindCoordinatorRequest, FindCoordinatorResponse, 3),
    "InitProducerId": (InitProducerIdRequest, InitProducerIdResponse, 4),
    "AddPartitionsToTxn": (AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, 3),
    "AddOffsetsToTxn": (AddOffsetsToTxnRequest, AddOffsetsToTxnResponse, 3),
    "TxnOffsetCommit": (TxnOffsetCommitRequest, TxnOffsetCommitResponse, 3),
    "EndTxn": (EndTxnRequest, EndTxnResponse, 3),
    "OffsetFetch": (OffsetFetchRequest, OffsetFetchResponse, 7),
    "OffsetFetchOfGroups": (OffsetFetchRequest, OffsetFetchResponse, 8),
    "DescribeConfigs": (DescribeConfigsRequest, DescribeConfigsResponse, 4),
    "DescribeProducers": (DescribeProducersRequest, DescribeProducersResponse, 0),
    "DescribeTransactions": (DescribeTransactionsRequest, DescribeTransactionsResponse, 0),
    "ListTransactions": (ListTransactionsRequest, ListTransactionsResponse, 0),
    "WriteTxnMarkers": (WriteTxnMarkersRequest, WriteTxnMarkersResponse, 1),
    "SaslHandshake": (SaslHandshakeRequest, SaslHandshakeResponse, 1),
    "SaslAuthenticate": (SaslAuthenticateRequest, SaslAuthenticateResponse, 2),
    "DescribeAcls": (DescribeAclsRequest, DescribeAclsResponse, 2),
    "DescribeClientQuotas": (DescribeClientQuotasRequest, DescribeClientQuotasResponse, 1),
    "AlterClientQuotas": (AlterClientQuotasRequest, AlterClientQuotasResponse, 1),
    "ListGroups": (ListGroupsRequest, ListGroupsResponse, 4),
    "DeleteGroups": (DeleteGroupsRequest, DeleteGroupsResponse, 2),
    "DeleteTopics": (DeleteTopicsRequest, DeleteTopicsResponse, 6),
    "DescribeGroups": (DescribeGroupsRequest, DescribeGroupsResponse, 5),
    "Heartbeat": (HeartbeatRequest, HeartbeatResponse, 4),
    "OffsetCommit": (OffsetCommitRequest, OffsetCommitResponse, 8),
    # From these versions on, the quota of controller mutations (KIP-599) refuses single topics with THROTTLING_QUOTA_EXCEEDED.
    # With older ones, the broker carries everything out and does not read from the connection for a while.
    "CreateTopics": (CreateTopicsRequest, CreateTopicsResponse, 6),
    "CreatePartitions": (CreatePartitionsRequest, CreatePartitionsResponse, 3),
    "IncrementalAlterConfigs": (IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse, 1),
    "DeleteRecords": (DeleteRecordsRequest, DeleteRecordsResponse, 2),
    "CreateAcls": (CreateAclsRequest, CreateAclsResponse, 2),
    "DeleteAcls": (DeleteAclsRequest, DeleteAclsResponse, 2),
}
_PRODUCE = 0
_PRODUCE_SINCE_3_7 = 10
_BROKER_REGISTRATION = 62
"""With which brokers register at a controller: only nodes that are controllers offer it, and those alone offer no Metadata."""
_HOT_PATH = ((_PRODUCE, "Produce", 9), (fetch.API_KEY, "Fetch", fetch.API_VERSION))
_SINCE = {
    "DescribeAcls": "2.8",
    "DescribeClientQuotas": "2.8",
    "AlterClientQuotas": "2.8",
    "DescribeTransactions": "3.0",
    "ListTransactions": "3.0",
    "ListLocalOffsets": "3.5",
    "OffsetFetchOfGroups": "3.0",
    "ListGroups": "2.6",
    "DeleteGroups": "2.4",
    "DeleteTopics": "2.8",
    "DescribeGroups": "2.4",
    "Heartbeat": "2.4",
    "OffsetCommit": "2.4",
    "WriteTxnMarkers": "2.8",
    "CreateTopics": "2.8",
    "CreatePartitions": "2.8",
    "IncrementalAlterConfigs": "2.8",
    "DeleteRecords": "2.8",
    "CreateAcls": "2.8",
    "DeleteAcls": "2.8",
}
"""May be missing: no decision of the mirror depends on the answer."""
_TOO_OLD = "is too old: source and target need Kafka 2.8 or later"
_ALWAYS_HEADER_0 = "ApiVersions"
_OFFERED_BY_ALL = {"SaslHandshake", "SaslAuthenticate"}
"""Their versions are those of Kafka 2.5; listeners without SASL may leave them out."""


@dataclass(slots=True)
class LastAnswer:
    """The last response to a repeated request: a response of the same bytes is the same object, and is not decoded again."""

    body: bytes = b""
    answer: Any = None


def request_class(api: str) -> Any:
    """Return the class of the fixed version: nested types are its attributes."""
    request, _, version = _USED[api]
    return request[version]


def call(connection: Connection, api: str, deadline: Deadline, *, last: LastAnswer | None = None, **fields: Any) -> Any:
    """Send a request and return the response, decoded. `last` is compared with it and keeps it.

    Raises RetriableError on network errors and on responses that cannot be decoded, BrokerTooOldError.
    """
    send(connection, api, deadline, **fields)
    return receive(connection, api, deadline, last=last)


def send(connection: Connection, api: str, deadline: Deadline, **fields: Any) -> None:
    """Send a request; each has to be followed by a `receive`, in the same order. Raises as `call`."""
    require_offered(connection, api)
    request_type, _, version = _USED[api]
    request = request_type[version](**fields)
    correlation_id = connection.next_correlation_id()
    request.with_header(correlation_id, connection.client_id)
    connection.send(correlation_id, [bytes(request.encode(framed=True, header=True))], deadline)


def require_offered(connection: Connection, api: str) -> None:
    """Raise BrokerTooOldError if the broker does not offer the fixed version of a request that may be missing."""
    if api in connection.missing_apis:
        raise BrokerTooOldError(f"broker {connection.transport.peer} offers no {api}: Kafka {_SINCE[api]} or later is needed")


def receive(connection: Connection, api: str, deadline: Deadline, *, last: LastAnswer | None = None) -> Any:
    """Return the response to the oldest request that was sent. Raises as `call`."""
    return decode(connection, api, connection.receive(deadline), last=last)


def decode(connection: Connection, api: str, frame: memoryview, *, last: LastAnswer | None = None) -> Any:
    """Return a response that was received. Raises RetriableError, and closes the connection, if it cannot be decoded."""
    request_type, response_type, version = _USED[api]
    is_flexible = api != _ALWAYS_HEADER_0 and request_type[version].flexible_version_q(version)
    try:
        body = bytes(frame[4 + _tag_section_bytes(frame[4:]) :] if is_flexible else frame[4:])
        if last is None:
            return response_type[version].decode(body)
        if body != last.body:
            last.body, last.answer = b"", response_type[version].decode(body)
            last.body = body
        return last.answer
    except (IndexError, ValueError, struct.error, TypeError, OverflowError, AssertionError) as error:
        connection.close()
        raise RetriableError("PROTOCOL", f"{connection.transport.peer} sent an unreadable answer to {api}: {error}") from error


def _tag_section_bytes(body: memoryview) -> int:
    """Return the size of the tags of a response header, which brokers leave empty today. Raises ValueError for others."""
    if len(body) and body[0] == 0:
        return 1
    raise ValueError("tags in a response header")


def _gap(api: str, version: int, offered: tuple[int, int] | None) -> str:
    """Describe a version that is not offered. `offered`: lowest and highest version."""
    return f"{api} {offered[0]} to {offered[1]} (needed: {version})" if offered else f"no {api} (needed: {version})"


def check_versions(connection: Connection, deadline: Deadline) -> None:
    """Refuse a broker that does not offer the fixed versions, and note on the connection the other versions that it lacks.

    A connection may be to a source or to a target: every broker has to offer all of them.
    """
    answer = call(connection, "ApiVersions", deadline, client_software_name="shallow-mirror", client_software_version=__version__)
    peer = connection.transport.peer
    if answer.error_code:
        raise BrokerTooOldError(f"broker {peer} {_TOO_OLD}: it does not answer ApiVersions 3")
    offered = {api_key.api_key: (api_key.min_version, api_key.max_version) for api_key in answer.api_keys}
    if _BROKER_REGISTRATION in offered and MetadataRequest.API_KEY not in offered:
        raise NotABrokerError(
            f"{peer} is the address of a KRaft controller, not of a broker: set bootstrap.servers to the listeners of brokers "
            "(in their server.properties: advertised.listeners, not controller.quorum.*)"
        )
    wanted = [(request.API_KEY, api, version) for api, (request, _, version) in _USED.items() if api not in _OFFERED_BY_ALL]
    too_old: list[str] = []
    too_new: list[str] = []
    missing = set()
    for key, api, version in [*wanted, *_HOT_PATH]:
        low, high = offered.get(key, (0, -1))
        if low <= version <= high:
            continue
        if api in _SINCE:
            missing.add(api)
        else:
            (too_new if version < low else too_old).append(_gap(api, version, offered.get(key)))
    if too_new:
        raise ConfigError(
            f"broker {peer} is newer than this version of shallow-mirror knows: install a later one; "
            f"the broker offers {', '.join(too_new + too_old)}"
        )
    if too_old:
        raise BrokerTooOldError(f"broker {peer} {_TOO_OLD}; it offers {', '.join(too_old)}")
    connection.missing_apis = frozenset(missing)
    connection.caps_min_insync_replicas = offered[_PRODUCE][1] >= _PRODUCE_SINCE_3_7
    low, high = offered[fetch.API_KEY]
    connection.fetches_by_topic_id = high >= fetch.API_VERSION_BY_ID
    connection.has_leader_fetch = low <= fetch.API_VERSION_OF_LEADER
