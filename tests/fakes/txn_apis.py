"""From a decoded request to a coordinator to its response: one function an API. The caller holds the cluster's lock."""

from __future__ import annotations

from functools import partial
from typing import Any

from tests.fakes.attempts import attempt
from tests.fakes.changes import Change
from tests.fakes.cluster_state import GROUP, TXN, ClusterState
from tests.fakes.coordinators import MAX_TIMEOUT_MS, OFFSETS_PLACE, Committed, PartitionKey, Txn
from tests.fakes.kafka_codec import VERSIONS, response_type
from tests.fakes.record_rules import RefusedError


def find_coordinator(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    def coordinator() -> int:
        if not state.coordinators_exist:
            state.coordinators_exist = True
            raise RefusedError(15)
        node = state.coordinator_nodes[body.key_type]
        if node not in state.nodes:
            raise RefusedError(15)
        return node

    code, node, _ = attempt(change, coordinator)
    host, port = state.nodes[node] if node is not None else ("", -1)
    return response_type("FindCoordinator")(
        throttle_time_ms=change.throttle_ms,
        error_code=code,
        error_message=None,
        node_id=-1 if node is None else node,
        host=host,
        port=port,
    )


def init_producer_id(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    def initialised() -> tuple[int, int]:
        if body.transactional_id is not None:
            state.require_coordinator(TXN, node_id)
        return state.transactions.init_producer_id(
            body.transactional_id, body.transaction_timeout_ms, body.producer_id, body.producer_epoch
        )

    code, pair, _ = attempt(change, initialised)
    producer_id, producer_epoch = pair if pair is not None and not code else (-1, -1)
    return response_type("InitProducerId")(
        throttle_time_ms=change.throttle_ms, error_code=code, producer_id=producer_id, producer_epoch=producer_epoch
    )


def add_partitions(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    response = response_type("AddPartitionsToTxn")
    topic = response.AddPartitionsToTxnTopicResult
    topic_partitions = [(requested.name, index) for requested in body.v3_and_below_topics for index in requested.partitions]
    missing = {topic_partition: 3 for topic_partition in topic_partitions if topic_partition not in state.logs}
    forced = {topic_partition: change.error_code for topic_partition in topic_partitions if change.only == topic_partition}
    refused = {**missing, **forced}

    def added() -> None:
        state.require_coordinator(TXN, node_id)
        state.transactions.add(
            body.v3_and_below_transactional_id, body.v3_and_below_producer_id, body.v3_and_below_producer_epoch, topic_partitions
        )

    if refused:
        codes = {topic_partition: refused.get(topic_partition, 55) for topic_partition in topic_partitions}
    else:
        code, _, _ = attempt(change, added)
        codes = dict.fromkeys(topic_partitions, code)
    results: dict[str, list[Any]] = {}
    for (name, index), code in codes.items():
        result = topic.AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
        results.setdefault(name, []).append(result)
    return response(
        throttle_time_ms=change.throttle_ms,
        results_by_topic_v3_and_below=[topic(name=name, results_by_partition=members) for name, members in results.items()],
    )


def add_offsets(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    def added() -> None:
        state.require_coordinator(TXN, node_id)
        state.transactions.add(body.transactional_id, body.producer_id, body.producer_epoch, [OFFSETS_PLACE])

    code, _, _ = attempt(change, added)
    return response_type("AddOffsetsToTxn")(throttle_time_ms=change.throttle_ms, error_code=code)


def txn_offset_commit(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    response = response_type("TxnOffsetCommit")
    topic = response.TxnOffsetCommitResponseTopic

    def committed(topic_partition: PartitionKey, part: Any) -> None:
        state.log_of(topic_partition)
        state.require_coordinator(GROUP, node_id)
        if body.member_id and body.member_id not in state.groups.members.get(body.group_id, ()):
            raise RefusedError(25)
        state.verify_offsets_txn(body.transactional_id, body.producer_id, body.producer_epoch)
        value = Committed(part.committed_offset, part.committed_metadata)
        state.groups.commit(body.group_id, topic_partition, value, body.producer_id, body.producer_epoch)

    def answered(name: str, part: Any) -> Any:
        topic_partition = (name, part.partition_index)
        code, _, _ = attempt(change, lambda: committed(topic_partition, part), topic_partition)
        return topic.TxnOffsetCommitResponsePartition(partition_index=part.partition_index, error_code=code)

    topics = [
        topic(name=requested.name, partitions=[answered(requested.name, part) for part in requested.partitions])
        for requested in body.topics
    ]
    return response(throttle_time_ms=change.throttle_ms, topics=topics)


def end_txn(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    def ended() -> None:
        state.require_coordinator(TXN, node_id)
        state.transactions.end(body.transactional_id, body.producer_id, body.producer_epoch, is_commit=body.committed)
        state.lock.notify_all()

    code, _, _ = attempt(change, ended)
    return response_type("EndTxn")(throttle_time_ms=change.throttle_ms, error_code=code)


def write_txn_markers(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    """As a leader is asked by a coordinator, or by an operator: nothing compares it with what coordinators know."""
    response = response_type("WriteTxnMarkers")
    result = response.WritableTxnMarkerResult
    topic = result.WritableTxnMarkerTopicResult

    def written(topic_partition: PartitionKey, marker: Any) -> None:
        log = state.log_of(topic_partition)
        log.check_leader(node_id, -1)
        log.check_marker(marker.producer_id, marker.producer_epoch, marker.coordinator_epoch)
        log.append_marker(
            marker.producer_id,
            marker.producer_epoch,
            is_commit=marker.transaction_result,
            coordinator_epoch=marker.coordinator_epoch,
            now_ms=state.now_ms(),
        )
        state.lock.notify_all()

    def answered(name: str, index: int, marker: Any) -> Any:
        code, _, _ = attempt(change, lambda: written((name, index), marker), (name, index))
        return topic.WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)

    return response(
        markers=[
            result(
                producer_id=marker.producer_id,
                topics=[
                    topic(
                        name=requested.name,
                        partitions=[answered(requested.name, index, marker) for index in requested.partition_indexes],
                    )
                    for requested in marker.topics
                ],
            )
            for marker in body.markers
        ]
    )


def describe_groups(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    response = response_type("DescribeGroups")
    member = response.DescribedGroup.DescribedGroupMember

    def described(name: str) -> Any:
        code, _, _ = attempt(change, lambda: state.require_coordinator(GROUP, node_id))
        return response.DescribedGroup(
            error_code=code,
            error_message=None,
            group_id=name,
            group_state="" if code else state.groups.state_of(name),
            protocol_type="consumer" if name in state.groups.members else "",
            protocol_data="",
            members=[
                member(
                    member_id=f"{client_id}-1",
                    group_instance_id=None,
                    client_id=client_id,
                    client_host="/127.0.0.1",
                    member_metadata=b"",
                    member_assignment=b"",
                )
                for client_id in (() if code else state.groups.members.get(name, ()))
            ],
            authorized_operations=set(),
        )

    return response(throttle_time_ms=change.throttle_ms, groups=[described(name) for name in body.groups])


def delete_groups(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    """Delete groups without members."""
    response = response_type("DeleteGroups")

    def deleted(group: str) -> None:
        state.require_coordinator(GROUP, node_id)
        keys = [key for key in state.groups.offsets if key[0] == group]
        if group in state.groups.members:
            raise RefusedError(68)
        if not keys:
            raise RefusedError(69)
        for key in keys:
            del state.groups.offsets[key]

    results = []
    for name in body.groups_names:
        code, _, _ = attempt(change, partial(deleted, name))
        results.append(response.DeletableGroupResult(group_id=name, error_code=code))
    return response(throttle_time_ms=change.throttle_ms, results=results)


def heartbeat(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    """Nobody who asks is a member of a group."""

    def refused() -> None:
        state.require_coordinator(GROUP, node_id)
        raise RefusedError(25)

    code, _, _ = attempt(change, refused)
    return response_type("Heartbeat")(throttle_time_ms=change.throttle_ms, error_code=code)


def offset_fetch(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    """Of one group; from version 8 on of several, each with an error code of its own: `only` may name it, with partition -1."""
    response = response_type("OffsetFetch", body.version)
    throttle_ms = change.throttle_ms
    if body.version == VERSIONS["OffsetFetch"]:
        topic = response.OffsetFetchResponseTopic
        code, asked = _asked_of_group(state, node_id, body.group_id, body.topics, change)
        topics = _fetched_topics(state, body.group_id, asked, topic, topic.OffsetFetchResponsePartition, body, change)
        return response(throttle_time_ms=throttle_ms, topics=topics, error_code=code)
    group = response.OffsetFetchResponseGroup
    topic = group.OffsetFetchResponseTopics
    groups = []
    for requested in body.groups:
        code, asked = _asked_of_group(state, node_id, requested.group_id, requested.topics, change)
        part = topic.OffsetFetchResponsePartitions
        topics = _fetched_topics(state, requested.group_id, asked, topic, part, body, change)
        groups.append(group(group_id=requested.group_id, topics=topics, error_code=code))
    return response(throttle_time_ms=throttle_ms, groups=groups)


def _asked_of_group(
    state: ClusterState, node_id: int, group: str, topics: Any, change: Change
) -> tuple[int, dict[str, list[int]]]:
    """Return the group's error code, and its partitions by topic: all that it has an offset of where no topics are named."""
    code, _, _ = attempt(change, lambda: state.require_coordinator(GROUP, node_id), (group, -1))
    if code:
        return code, {}
    if topics is not None:
        return 0, {topic.name: list(topic.partition_indexes) for topic in topics}
    indices: dict[str, list[int]] = {}
    for owner, (name, index) in state.groups.offsets:
        if owner == group:
            indices.setdefault(name, []).append(index)
    return 0, indices


def _fetched_topics(
    state: ClusterState, group: str, asked: dict[str, list[int]], topic: Any, part: Any, body: Any, change: Change
) -> list[Any]:
    none = Committed(-1, "")

    def offset_of(topic_partition: PartitionKey) -> Committed:
        if body.require_stable and state.groups.is_unstable(group, topic_partition):
            raise RefusedError(88)
        return state.groups.offsets.get((group, topic_partition), none)

    def answered(topic_partition: PartitionKey) -> Any:
        forced = change if change.only is not None else Change()
        code, committed, _ = attempt(forced, lambda: offset_of(topic_partition), topic_partition)
        committed = none if committed is None or code else committed
        return part(
            partition_index=topic_partition[1],
            committed_offset=committed.offset,
            committed_leader_epoch=-1,
            metadata=committed.metadata,
            error_code=code,
        )

    return [topic(name=name, partitions=[answered((name, index)) for index in indexes]) for name, indexes in asked.items()]


def offset_commit(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    """Of clients that are no members: any generation is refused, and any commit for a group that has members."""
    response = response_type("OffsetCommit")
    topic = response.OffsetCommitResponseTopic

    def code_of(topic_partition: PartitionKey, requested: Any) -> int:
        def commit() -> None:
            state.require_coordinator(GROUP, node_id)
            if body.generation_id_or_member_epoch >= 0 or body.member_id or body.group_id in state.groups.members:
                raise RefusedError(25)
            if topic_partition not in state.logs:
                raise RefusedError(3)
            state.groups.commit_now(
                body.group_id, topic_partition, Committed(requested.committed_offset, requested.committed_metadata)
            )

        return attempt(change, commit, topic_partition)[0]

    topics = [
        topic(
            name=requested.name,
            partitions=[
                topic.OffsetCommitResponsePartition(
                    partition_index=partition.partition_index,
                    error_code=code_of((requested.name, partition.partition_index), partition),
                )
                for partition in requested.partitions
            ],
        )
        for requested in body.topics
    ]
    return response(throttle_time_ms=change.throttle_ms, topics=topics)


def list_transactions(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    """Those that this broker coordinates and the filters leave; a forced error code is of the whole response."""
    response = response_type("ListTransactions")

    def listed() -> list[Any]:
        if state.coordinator_nodes[TXN] != node_id:
            return []
        return [
            response.TransactionState(
                transactional_id=name, producer_id=txn.producer_id, transaction_state=txn.state.value.title().replace(" ", "")
            )
            for name, txn in state.transactions.txns.items()
            if not body.producer_id_filters or txn.producer_id in body.producer_id_filters
        ]

    code, states, _ = attempt(change, listed)
    return response(
        throttle_time_ms=change.throttle_ms, error_code=code, unknown_state_filters=[], transaction_states=states or []
    )


def describe_transactions(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    response = response_type("DescribeTransactions")

    def described(name: str) -> Any:
        def look() -> Txn:
            state.require_coordinator(TXN, node_id)
            if name not in state.transactions.txns:
                raise RefusedError(105)
            return state.transactions.txns[name]

        code, txn, _ = attempt(change, look)
        return response.TransactionState(
            error_code=code,
            transactional_id=name,
            transaction_state="" if txn is None else txn.state.value.title().replace(" ", ""),
            transaction_timeout_ms=-1 if txn is None else MAX_TIMEOUT_MS,
            transaction_start_time_ms=-1,
            producer_id=-1 if txn is None else txn.producer_id,
            producer_epoch=-1 if txn is None else txn.producer_epoch,
            topics=[],
        )

    return response(throttle_time_ms=change.throttle_ms, transaction_states=[described(name) for name in body.transactional_ids])


def list_groups(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    """Only the coordinator of the groups has any."""
    response = response_type("ListGroups")
    is_here = state.coordinator_nodes[GROUP] == node_id
    names = state.groups.names() if is_here and not change.code_of(None) else []
    groups = [
        response.ListedGroup(
            group_id=name,
            protocol_type="consumer" if name in state.groups.members else "",
            group_state=state.groups.state_of(name),
        )
        for name in names
    ]
    return response(throttle_time_ms=change.throttle_ms, error_code=change.code_of(None), groups=groups)
