"""From a decoded request to a response: one function an API, `admin_apis` and `txn_apis` included. The caller holds the cluster's lock."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.fakes import admin_apis, txn_apis
from tests.fakes.attempts import attempt
from tests.fakes.changes import Change
from tests.fakes.cluster_state import ClusterState
from tests.fakes.coordinators import PartitionKey
from tests.fakes.kafka_codec import API_KEYS, NEWER_VERSIONS, VERSIONS, Request, UnreadableRequestError, response_type
from tests.fakes.partition_log import FIRST_VERSION_WITH_RACK, Appended, Read
from tests.fakes.record_rules import HEADER_BYTES, Header, RefusedError, header_of, one_batch

_TOPIC_RESOURCE, _BROKER_RESOURCE = 2, 4
_EARLIEST_LOCAL = -4
_OTHER_REPLICAS = 100
"""Node ids of followers, which are no nodes of the fake."""
_SECURITY_DISABLED = 54
_INVALID_REQUEST = 42
_QUOTA_KEYS = {"producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate"}
_ILLEGAL_SASL_STATE = 34
_ALL_ON_TOPICS, _ALL_ON_CLUSTER = {3, 4, 5, 6, 7, 8, 10, 11}, {5, 7, 8, 9, 10, 11, 12}
"""Operations that anybody may perform: without an authorizer, or as a super user. Clients of the fake are."""


def respond(state: ClusterState, node_id: int, request: Request, change: Change) -> Any:
    if request.api in state.not_offered:
        raise UnreadableRequestError(f"{request.api} is not offered")
    if request.body.version > VERSIONS[request.api] and not state.is_newest:
        raise UnreadableRequestError(f"{request.api} version {request.body.version} is not offered")
    return _HANDLERS[request.api](state, node_id, request.body, change)


def api_versions(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    entry = response_type("ApiVersions").ApiVersion
    highest = {api: max(version, *newer) for api, version in VERSIONS.items() if (newer := NEWER_VERSIONS.get(api))}
    newest = VERSIONS | (highest if state.is_newest else {})
    ranges = [
        entry(api_key=key, min_version=0, max_version=newest[api])
        for api, key in sorted(API_KEYS.items())
        if api not in state.not_offered
    ]
    return response_type("ApiVersions")(
        error_code=change.code_of(None), api_keys=ranges, throttle_time_ms=0, supported_features=[], finalized_features_epoch=-1
    )


def _sasl_handshake(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    """As a listener without SASL."""
    return response_type("SaslHandshake")(error_code=change.code_of(None) or _ILLEGAL_SASL_STATE, mechanisms=[])


def _metadata(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    response = response_type("Metadata")
    names = sorted(state.topic_ids) if body.topics is None else [topic.name for topic in body.topics]
    for name in names:
        if name not in state.topic_ids and body.allow_auto_topic_creation:
            state.create_topic(name)
            state.auto_created.append(name)
    on_topics = {"authorized_operations": _ALL_ON_TOPICS} if body.include_topic_authorized_operations else {}
    on_cluster = {"authorized_operations": _ALL_ON_CLUSTER} if body.include_cluster_authorized_operations else {}
    return response(
        throttle_time_ms=change.throttle_ms,
        brokers=[
            response.MetadataResponseBroker(node_id=node, host=host, port=port, rack=None)
            for node, (host, port) in sorted(state.nodes.items())
        ],
        cluster_id=state.cluster_id,
        controller_id=min(state.nodes) if state.controller_id is None else state.controller_id,
        topics=[_topic_metadata(state, name, change, on_topics) for name in names],
        **on_cluster,
    )


def _topic_metadata(state: ClusterState, name: str, change: Change, more: dict[str, Any]) -> Any:
    topic = response_type("Metadata").MetadataResponseTopic
    forced = change.code_of((name, -1)) or change.code_of(None)
    code = forced or (0 if name in state.topic_ids else 3)
    partitions = []
    for (owner, partition), log in sorted(state.logs.items()):
        if owner != name or code:
            continue
        is_up = log.leader in state.nodes
        partitions.append(
            topic.MetadataResponsePartition(
                error_code=0 if is_up else 5,
                partition_index=partition,
                leader_id=log.leader if is_up else -1,
                leader_epoch=log.leader_epoch,
                replica_nodes=[log.leader, *log.followers, *range(_OTHER_REPLICAS, _OTHER_REPLICAS + log.replicas - 1)],
                isr_nodes=[log.leader, *log.followers, *range(_OTHER_REPLICAS, _OTHER_REPLICAS + log.in_sync - 1)],
                offline_replicas=[],
            )
        )
    topic_id = state.topic_ids.get(name, uuid.UUID(int=0)) if not code else uuid.UUID(int=0)
    return topic(error_code=code, name=name, topic_id=topic_id, is_internal=False, partitions=partitions, **more)


def _list_offsets(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    response = response_type("ListOffsets", body.version)
    topic, partition = response.ListOffsetsTopicResponse, response.ListOffsetsTopicResponse.ListOffsetsPartitionResponse
    asked = [(topic.name, part.partition_index) for topic in body.topics for part in topic.partitions]

    def listed(topic_partition: PartitionKey, part: Any) -> tuple[int, int, int]:
        if asked.count(topic_partition) > 1:
            raise RefusedError(42)
        if part.timestamp == _EARLIEST_LOCAL and body.version == VERSIONS["ListOffsets"]:
            raise RefusedError(35)
        log = state.log_of(topic_partition)
        log.check_leader(node_id, part.current_leader_epoch)
        return *log.offset_at(part.timestamp, body.isolation_level), log.leader_epoch

    def answered(name: str, part: Any) -> Any:
        topic_partition = (name, part.partition_index)
        code, listed_offset, _ = attempt(change, lambda: listed(topic_partition, part), topic_partition)
        offset, timestamp, epoch = (-1, -1, -1) if listed_offset is None or code else listed_offset
        return partition(
            partition_index=part.partition_index, error_code=code, timestamp=timestamp, offset=offset, leader_epoch=epoch
        )

    topics = [
        topic(name=requested.name, partitions=[answered(requested.name, part) for part in requested.partitions])
        for requested in body.topics
    ]
    return response(throttle_time_ms=change.throttle_ms, topics=topics)


def _offset_for_leader_epoch(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    response = response_type("OffsetForLeaderEpoch")
    topic, partition = response.OffsetForLeaderTopicResult, response.OffsetForLeaderTopicResult.EpochEndOffset

    def end_of_epoch(topic_partition: PartitionKey, part: Any) -> tuple[int, int]:
        log = state.log_of(topic_partition)
        log.check_leader(node_id, part.current_leader_epoch)
        return log.end_of_epoch(part.leader_epoch)

    def answered(name: str, part: Any) -> Any:
        topic_partition = (name, part.partition)
        code, end, _ = attempt(change, lambda: end_of_epoch(topic_partition, part), topic_partition)
        epoch, offset = (-1, -1) if end is None or code else end
        return partition(partition=part.partition, error_code=code, leader_epoch=epoch, end_offset=offset)

    topics = [
        topic(topic=requested.topic, partitions=[answered(requested.topic, part) for part in requested.partitions])
        for requested in body.topics
    ]
    return response(throttle_time_ms=change.throttle_ms, topics=topics)


def _fetch(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    """Wait, as a broker does, until there is enough or the time is over."""
    response = response_type("Fetch", body.version)
    if (body.session_id, body.session_epoch) != (0, -1):
        return response(throttle_time_ms=0, error_code=70, session_id=0, responses=[])
    if change.throttle_ms or (change.error_code and change.only is None):
        return response(throttle_time_ms=change.throttle_ms, error_code=change.error_code, session_id=0, responses=[])
    answered: list[tuple[PartitionKey, int, Read | None]] = []

    def is_enough() -> bool:
        answered[:] = _read_all(state, node_id, body, change)
        size = sum(len(read.records) for _, _, read in answered if read is not None)
        is_over = state.is_stopping or node_id not in state.nodes
        return (
            is_over
            or size >= body.min_bytes
            or any(code or (read and (read.diverging or read.preferred_replica >= 0)) for _, code, read in answered)
        )

    state.lock.wait_for(is_enough, timeout=max(body.max_wait_ms, 0) / 1000)
    topics: dict[str, list[Any]] = {}
    for (name, index), code, read in answered:
        kind = response.FetchableTopicResponse.PartitionData
        part = _fetched(state, node_id, kind, (name, index), code, read, body.isolation_level)
        topics.setdefault(name, []).append(part)
    ids = {_name_of(state, body, topic): topic.topic_id for topic in body.topics}
    return response(
        throttle_time_ms=0,
        error_code=0,
        session_id=0,
        responses=[
            response.FetchableTopicResponse(topic=name, topic_id=ids[name], partitions=members)
            for name, members in topics.items()
        ],
    )


def _name_of(state: ClusterState, body: Any, topic: Any) -> str:
    """Return the name of a topic id; the id's own text where no topic has it."""
    if body.version <= VERSIONS["Fetch"]:
        return str(topic.topic)
    return next((name for name, known_id in state.topic_ids.items() if known_id == topic.topic_id), str(topic.topic_id))


def _read_all(state: ClusterState, node_id: int, body: Any, change: Change) -> list[tuple[PartitionKey, int, Read | None]]:
    answered: list[tuple[PartitionKey, int, Read | None]] = []
    left = body.max_bytes

    def read(topic_partition: PartitionKey, part: Any) -> Read:
        if topic_partition[0] not in state.topic_ids and body.version > VERSIONS["Fetch"]:
            raise RefusedError(100)
        log = state.log_of(topic_partition)
        log.check_replica(node_id, part.current_leader_epoch, body.version)
        rack = body.rack_id if body.version >= FIRST_VERSION_WITH_RACK else ""
        preferred = log.preferred_replica(node_id, rack, part.fetch_offset, body.version)
        if preferred >= 0:
            return Read(b"", [], preferred_replica=preferred)
        return log.read(
            part.fetch_offset,
            body.isolation_level,
            min(part.partition_max_bytes, max(left, 0)),
            is_first=left == body.max_bytes,
            last_fetched_epoch=part.last_fetched_epoch if body.version >= VERSIONS["Fetch"] else -1,
            node_id=node_id,
        )

    for topic in body.topics:
        for part in topic.partitions:
            topic_partition = (_name_of(state, body, topic), part.partition)
            code, done, _ = attempt(change, partial(read, topic_partition, part), topic_partition)
            left -= 0 if done is None else len(done.records)
            answered.append((topic_partition, code, done))
    return answered


def _fetched(
    state: ClusterState,
    node_id: int,
    part: Any,
    topic_partition: PartitionKey,
    code: int,
    read: Read | None,
    isolation_level: int,
) -> Any:
    if code or read is None:
        return part(
            partition_index=topic_partition[1],
            error_code=code,
            high_watermark=-1,
            last_stable_offset=-1,
            log_start_offset=-1,
            aborted_transactions=None,
            preferred_read_replica=-1,
            records=b"",
        )
    log = state.logs[topic_partition]
    aborted = [
        part.AbortedTransaction(producer_id=aborted_txn.producer_id, first_offset=aborted_txn.first_offset)
        for aborted_txn in read.aborted
    ]
    tagged = {}
    if read.diverging is not None:
        tagged["diverging_epoch"] = part.EpochEndOffset(epoch=read.diverging[0], end_offset=read.diverging[1])
    return part(
        partition_index=topic_partition[1],
        error_code=0,
        high_watermark=log.high_watermark_at(node_id),
        last_stable_offset=log.last_stable_offset_at(node_id),
        log_start_offset=log.log_start_offset,
        aborted_transactions=aborted if isolation_level else None,
        preferred_read_replica=read.preferred_replica,
        records=read.records,
        **tagged,
    )


def _produce(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    """Produce; a partition that is named twice is answered once, for the later of its batches."""
    batches = {(topic.name, part.index): part.records for topic in body.topic_data for part in topic.partition_data}
    if None in batches.values():
        raise UnreadableRequestError("Produce without records: real brokers never answer it")
    whole = _whole_request_code(body, batches)

    def appended(topic_partition: PartitionKey) -> Appended:
        if whole:
            raise RefusedError(whole)
        log = state.log_of(topic_partition)
        batch = one_batch(batches[topic_partition])
        if body.acks not in (-1, 0, 1):
            raise RefusedError(21)
        if len(batch) < HEADER_BYTES:
            raise RefusedError(2, "shorter than a header")
        header = header_of(batch)
        if body.transactional_id is not None and header.is_transactional:
            state.verify_partition(body.transactional_id, header, topic_partition)
        log.check_leader(node_id, -1)
        return log.append(batch, state.now_ms())

    topics: dict[str, list[Any]] = {}
    for topic_partition in batches:
        code, done, refused = attempt(change, partial(appended, topic_partition), topic_partition)
        topics.setdefault(topic_partition[0], []).append(_produced(topic_partition[1], code, done, refused))
    state.lock.notify_all()
    response = response_type("Produce")
    return response(
        responses=[response.TopicProduceResponse(name=name, partition_responses=members) for name, members in topics.items()],
        throttle_time_ms=change.throttle_ms,
    )


def _whole_request_code(body: Any, batches: dict[PartitionKey, Any]) -> int:
    headers = [header for records in batches.values() if (header := _header_of_first(records)) is not None]
    transactional = {(header.producer_id, header.producer_epoch) for header in headers if header.is_transactional}
    if transactional and body.transactional_id is None:
        return 53
    return 49 if len(transactional) > 1 else 0


def _header_of_first(records: bytes | None) -> Header | None:
    try:
        batch = one_batch(records)
    except RefusedError:
        return None
    return header_of(batch) if len(batch) >= HEADER_BYTES else None


def _produced(index: int, code: int, done: Appended | None, refused: RefusedError | None) -> Any:
    part = response_type("Produce").TopicProduceResponse.PartitionProduceResponse
    blamed = [] if refused is None else refused.record_errors
    offsets = done if done is not None and not code else Appended(-1, -1, -1)
    return part(
        index=index,
        error_code=code,
        base_offset=offsets.base_offset,
        log_append_time_ms=offsets.log_append_time_ms,
        log_start_offset=offsets.log_start_offset,
        record_errors=[
            part.BatchIndexAndErrorMessage(batch_index=i, batch_index_error_message=refused.message if refused else None)
            for i in blamed
        ],
        error_message=None if refused is None or not refused.message else refused.message,
    )


def _describe_configs(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    response = response_type("DescribeConfigs")
    result = response.DescribeConfigsResult

    def settings(resource: Any) -> dict[str, str]:
        if resource.resource_type == _BROKER_RESOURCE and resource.resource_name == str(node_id):
            return state.broker_configs
        if resource.resource_type != _TOPIC_RESOURCE:
            raise RefusedError(42)
        configs = state.log_of((resource.resource_name, 0)).configs
        keys = resource.configuration_keys
        return {name: value for name, value in configs.items() if keys is None or name in keys}

    def answered(resource: Any) -> Any:
        code, values, _ = attempt(change, lambda: settings(resource), (resource.resource_name, -1))
        configs = [
            result.DescribeConfigsResourceResult(
                name=name,
                value=value,
                read_only=False,
                config_source=5,
                is_sensitive=False,
                synonyms=[],
                config_type=2,
                documentation=None,
            )
            for name, value in sorted((values or {}).items() if not code else ())
        ]
        return result(
            error_code=code,
            error_message=None,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
            configs=configs,
        )

    return response(throttle_time_ms=change.throttle_ms, results=[answered(resource) for resource in body.resources])


def _describe_producers(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    response = response_type("DescribeProducers")
    topic, part = response.TopicResponse, response.TopicResponse.PartitionResponse

    def described(topic_partition: PartitionKey) -> list[Any]:
        log = state.log_of(topic_partition)
        log.check_leader(node_id, -1)
        return [
            part.ProducerState(
                producer_id=producer_id,
                producer_epoch=entry.epoch,
                last_sequence=entry.seen[-1].last_sequence if entry.seen else -1,
                last_timestamp=entry.last_timestamp,
                coordinator_epoch=entry.coordinator_epoch,
                current_txn_start_offset=-1 if entry.txn_start is None else entry.txn_start,
            )
            for producer_id, entry in log.producers.items()
        ]

    def answered(topic_partition: PartitionKey) -> Any:
        code, producers, _ = attempt(change, lambda: described(topic_partition), topic_partition)
        return part(partition_index=topic_partition[1], error_code=code, error_message=None, active_producers=producers or [])

    topics = [
        topic(name=requested.name, partitions=[answered((requested.name, index)) for index in requested.partition_indexes])
        for requested in body.topics
    ]
    return response(throttle_time_ms=change.throttle_ms, topics=topics)


def _describe_acls(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    """Of one kind of resources at a time; without an authorizer there are none to describe."""
    response = response_type("DescribeAcls")
    code = change.code_of(None) or (_SECURITY_DISABLED if state.acls is None else 0)
    resources = [
        response.DescribeAclsResource(
            resource_type=kind,
            resource_name=name,
            pattern_type=pattern,
            acls=[response.DescribeAclsResource.AclDescription(**entry) for entry in entries],
        )
        for (kind, name, pattern), entries in (state.acls or {}).items()
        if kind == body.resource_type_filter and not code
    ]
    return response(throttle_time_ms=change.throttle_ms, error_code=code, error_message=None, resources=resources)


def _describe_client_quotas(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    """All of them: no filter is modelled."""
    response = response_type("DescribeClientQuotas")
    entry = response.EntryData
    code = change.code_of(None) or (_INVALID_REQUEST if body.components else 0)
    entries = [
        entry(
            entity=[entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity],
            values=[entry.ValueData(key=key, value=value) for key, value in values.items()],
        )
        for entity, values in state.quotas.items()
    ]
    return response(throttle_time_ms=change.throttle_ms, error_code=code, error_message=None, entries=None if code else entries)


def _alter_client_quotas(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    """Refuse what ClientQuotaControlManager refuses: an entity twice, unknown types and keys, values that are not above zero."""
    response = response_type("AlterClientQuotas")
    answered = response.EntryData
    seen: set[Any] = set()
    entries = []
    for requested in body.entries:
        entity = tuple(sorted((part.entity_type, part.entity_name) for part in requested.entity))
        code = change.code_of(None) or _code_of_quota(entity, requested.ops, is_twice=entity in seen)
        seen.add(entity)
        if code == 0 and not body.validate_only:
            values = state.quotas.setdefault(entity, {})
            for op in requested.ops:
                if op.remove:
                    values.pop(op.key, None)
                else:
                    values[op.key] = op.value
        parts = [answered.EntityData(entity_type=kind, entity_name=name) for kind, name in entity]
        entries.append(answered(error_code=code, error_message="by the fake" if code else None, entity=parts))
    return response(throttle_time_ms=change.throttle_ms, entries=entries)


def _code_of_quota(entity: tuple[tuple[str, str | None], ...], ops: Any, *, is_twice: bool) -> int:
    kinds = {kind for kind, _ in entity}
    is_entity = bool(kinds) and len(kinds) == len(entity) and kinds <= {"user", "client-id"}
    is_valid = all(op.remove or (op.key in _QUOTA_KEYS and op.value > 0) for op in ops)
    return 0 if is_entity and is_valid and not is_twice else _INVALID_REQUEST


_HANDLERS: dict[str, Callable[[ClusterState, int, Any, Change], Any]] = {
    "ApiVersions": api_versions,
    "Metadata": _metadata,
    "ListOffsets": _list_offsets,
    "OffsetForLeaderEpoch": _offset_for_leader_epoch,
    "Fetch": _fetch,
    "Produce": _produce,
    "FindCoordinator": txn_apis.find_coordinator,
    "InitProducerId": txn_apis.init_producer_id,
    "AddPartitionsToTxn": txn_apis.add_partitions,
    "AddOffsetsToTxn": txn_apis.add_offsets,
    "TxnOffsetCommit": txn_apis.txn_offset_commit,
    "EndTxn": txn_apis.end_txn,
    "DescribeTransactions": txn_apis.describe_transactions,
    "ListTransactions": txn_apis.list_transactions,
    "WriteTxnMarkers": txn_apis.write_txn_markers,
    "OffsetFetch": txn_apis.offset_fetch,
    "OffsetCommit": txn_apis.offset_commit,
    "ListGroups": txn_apis.list_groups,
    "DescribeGroups": txn_apis.describe_groups,
    "DeleteGroups": txn_apis.delete_groups,
    "Heartbeat": txn_apis.heartbeat,
    "DescribeConfigs": _describe_configs,
    "DescribeAcls": _describe_acls,
    "DescribeClientQuotas": _describe_client_quotas,
    "AlterClientQuotas": _alter_client_quotas,
    "DescribeProducers": _describe_producers,
    "SaslHandshake": _sasl_handshake,
    **admin_apis.HANDLERS,
}
