"""Driver and reading commands: requests about many groups at once, in few writes.

Error codes, and responses that are missing, are left to the callers: they ask again for one group alone.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.cluster_metadata import CoordinatorKind
from shallow_mirror.broker.net.begun_call import BegunCall, begin_together
from shallow_mirror.broker.net.connection import Connection
from shallow_mirror.broker.net.requests import decode, request_class, require_offered, send
from shallow_mirror.broker.produce.txn.coordinator_requests import BegunRequest
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.protocol import WireError, group_offsets

_OFFSETS = "OffsetFetchOfGroups"
_LENGTH = struct.Struct(">i")

BegunCommit = BegunCall[object]
"""A request to commit offsets of one group that was sent. Its response is None if all were committed; else it is decoded."""

BegunOffsets = BegunCall[dict[str, group_offsets.GroupOffsets]] | BegunRequest
"""A request for the offsets of several groups that was sent, with their responses by group; or for those of one."""


def begin_offsets(
    cluster: Cluster, groups: Sequence[str], deadline: Deadline, purposes: Sequence[str], *, waits_for_txns: bool
) -> dict[str, BegunOffsets]:
    """Request the offsets of groups: with one request to each coordinator (KIP-709), or one for each group before Kafka 3.0.

    `purposes`: of the connections to each coordinator, which share the requests.
    """
    begun: dict[str, BegunOffsets] = {}
    attempt = deadline.sooner(cluster.config.request_timeout_ms)
    for together in _by_coordinator(cluster, dict.fromkeys(groups, purposes[0])):
        connect = partial(cluster.coordinator, CoordinatorKind.GROUP, together[0], attempt, purposes[0])
        if _offers(connect):
            shared = BegunCall(connect, partial(_send_groups, together, attempt, waits_for_txns), _receive_groups)
            begun |= dict.fromkeys(together, shared)
            continue
        for at, group in enumerate(together):
            fields = {"group_id": group, "topics": None, "require_stable": waits_for_txns}
            purpose = purposes[at % len(purposes)]
            begun[group] = BegunRequest(cluster, CoordinatorKind.GROUP, group, "OffsetFetch", fields, deadline, purpose=purpose)
    return begun


def _offers(connect: Callable[[], Connection]) -> bool:
    try:
        return _OFFSETS not in connect().missing_apis
    except RetriableError:
        return True  # the request fails in the same way, once for all of the groups


def _send_groups(groups: Sequence[str], deadline: Deadline, waits_for_txns: bool, connection: Connection) -> None:
    group = request_class(_OFFSETS).OffsetFetchRequestGroup
    requested = [group(group_id=name, topics=None) for name in groups]
    send(connection, _OFFSETS, deadline, groups=requested, require_stable=waits_for_txns)


def _receive_groups(connection: Connection, deadline: Deadline) -> dict[str, group_offsets.GroupOffsets]:
    frame = connection.receive(deadline)
    try:
        return group_offsets.parse_offsets_of_groups(frame)
    except WireError as error:
        connection.close()
        peer = connection.transport.peer
        raise RetriableError("PROTOCOL", f"{peer} sent an unreadable answer to OffsetFetch: {error}") from error


def begin_commits(
    cluster: Cluster,
    offsets: Mapping[str, Mapping[TopicPartition, tuple[int, str]]],
    deadline: Deadline,
    purposes: Sequence[str],
) -> dict[str, BegunCommit]:
    """Send a request for each group, those of one connection in one write. `offsets` with the metadata, by group.

    `purposes`: of the connections to each coordinator, which share the groups.
    """
    attempt = deadline.sooner(cluster.config.request_timeout_ms)
    purpose_of = {group: purposes[at % len(purposes)] for at, group in enumerate(offsets)}
    begun: dict[str, BegunCommit] = {}
    for together in _by_coordinator(cluster, purpose_of):
        requests = [group_offsets.build_commit_request(group, offsets[group]) for group in together]
        calls = begin_together(
            partial(cluster.coordinator, CoordinatorKind.GROUP, together[0], attempt, purpose_of[together[0]]),
            partial(_send_commits, requests, attempt),
            [partial(_receive_commit, request) for request in requests],
        )
        begun |= zip(together, calls, strict=True)
    return begun


def _send_commits(requests: Sequence[group_offsets.CommitRequest], deadline: Deadline, connection: Connection) -> None:
    require_offered(connection, "OffsetCommit")
    correlation_ids = [connection.next_correlation_id() for _ in requests]
    parts = []
    for correlation_id, request in zip(correlation_ids, requests, strict=True):
        header = group_offsets.build_commit_header(correlation_id, connection.client_id)
        parts += [_LENGTH.pack(len(header) + len(request.body)), header, request.body]
    connection.send_several(correlation_ids, [b"".join(parts)], deadline)


def _receive_commit(request: group_offsets.CommitRequest, connection: Connection, deadline: Deadline) -> object:
    frame = connection.receive(deadline)
    return None if group_offsets.is_accepted(request, frame) else decode(connection, "OffsetCommit", frame)


def _by_coordinator(cluster: Cluster, purpose_of: Mapping[str, str]) -> list[list[str]]:
    """Return groups of the same connection together; one whose coordinator has to be found first alone."""
    grouped: defaultdict[tuple[int | str, str], list[str]] = defaultdict(list)
    for group, purpose in purpose_of.items():
        node_id = cluster.known_coordinator(CoordinatorKind.GROUP, group)
        grouped[group if node_id is None else node_id, purpose].append(group)
    return list(grouped.values())
