"""From a decoded administrative request to a response, as KRaft's controllers answer. The caller holds the cluster's lock.

With `controller_id` of the cluster set, only that node answers, as with ZooKeeper; otherwise every node forwards. A test forces the
code of one topic by `error(code, (name, -1))`, of one topic-partition by `error(code, (name, partition))`.
"""

from __future__ import annotations

import re
import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.fakes.attempts import attempt
from tests.fakes.changes import Change
from tests.fakes.cluster_state import AclKey, ClusterState
from tests.fakes.kafka_codec import UnreadableRequestError, response_type
from tests.fakes.partition_log import PartitionLog
from tests.fakes.record_rules import DEFAULT_CONFIGS, RefusedError

_OFFSET_OUT_OF_RANGE, _UNKNOWN_TOPIC, _INVALID_TOPIC, _NOT_CONTROLLER = 1, 3, 17, 41
_TOPIC_ALREADY_EXISTS, _INVALID_PARTITIONS, _INVALID_REPLICATION_FACTOR, _INVALID_CONFIG = 36, 37, 38, 40
_INVALID_REQUEST, _POLICY_VIOLATION, _SECURITY_DISABLED, _UNKNOWN_TOPIC_ID = 42, 44, 54, 100

MOST_PARTITIONS_AT_ONCE = 10_000
_HIGH_WATERMARK = -1
_TOPIC_RESOURCE = 2
_SET, _DELETE = 0, 1
_NO_ID = uuid.UUID(int=0)
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_FLAGS = {"preallocate", "unclean.leader.election.enable", "remote.storage.enable", "message.downconversion.enable"}
_NUMBERS = {
    "delete.retention.ms",
    "file.delete.delay.ms",
    "flush.messages",
    "flush.ms",
    "index.interval.bytes",
    "local.retention.bytes",
    "local.retention.ms",
    "max.compaction.lag.ms",
    "max.message.bytes",
    "message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms",
    "message.timestamp.difference.max.ms",
    "min.compaction.lag.ms",
    "min.insync.replicas",
    "retention.bytes",
    "retention.ms",
    "segment.bytes",
    "segment.index.bytes",
    "segment.jitter.ms",
    "segment.ms",
}
_TEXTS = {
    "cleanup.policy": {"delete", "compact", "compact,delete", "delete,compact"},
    "compression.type": {"producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"},
    "message.timestamp.type": {"CreateTime", "LogAppendTime"},
}
_OTHERS = {"min.cleanable.dirty.ratio", "follower.replication.throttled.replicas", "leader.replication.throttled.replicas"}

_CLUSTER_RESOURCE, _CLUSTER_NAME = 4, "kafka-cluster"
_RESOURCES, _PATTERNS, _OPERATIONS, _EFFECTS = range(2, 8), (3, 4), range(2, 15), (2, 3)


def create_topics(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    response = response_type("CreateTopics")
    named = Counter(topic.name for topic in body.topics)
    total = sum(1 if topic.num_partitions == -1 else topic.num_partitions for topic in body.topics)

    def created(topic: Any) -> None:
        _require_controller(state, node_id)
        if named[topic.name] > 1:
            raise RefusedError(_INVALID_REQUEST, "Duplicate topic name.")
        if total > MOST_PARTITIONS_AT_ONCE:
            raise RefusedError(_POLICY_VIOLATION, "Excessively large number of partitions per request.")
        configs = {config.name: config.value for config in topic.configs}
        _check_new_topic(state, topic, configs)
        if not body.validate_only:
            partitions = 1 if topic.num_partitions == -1 else topic.num_partitions
            state.create_topic(topic.name, partitions, **configs)
            for log in [state.log(topic.name, partition) for partition in range(partitions)]:
                log.replicas = log.in_sync = 1 if topic.replication_factor == -1 else topic.replication_factor

    results = []
    for topic in {topic.name: topic for topic in body.topics}.values():
        code, _, refused = attempt(change, partial(created, topic), (topic.name, -1))
        results.append(
            response.CreatableTopicResult(
                name=topic.name,
                topic_id=_NO_ID,
                error_code=code,
                error_message=_message(refused),
                topic_config_error_code=0,
                num_partitions=-1,
                replication_factor=-1,
                configs=None if code else [],
            )
        )
    state.lock.notify_all()
    return response(throttle_time_ms=change.throttle_ms, topics=results)


def _check_new_topic(state: ClusterState, topic: Any, configs: dict[str, str]) -> None:
    if topic.assignments:
        raise UnreadableRequestError("CreateTopics with assignments is not modelled")
    if topic.name in (".", "..") or not _LEGAL_NAME.fullmatch(topic.name):
        raise RefusedError(_INVALID_TOPIC, "Topic name is invalid")
    if topic.name in state.topic_ids:
        raise RefusedError(_TOPIC_ALREADY_EXISTS, f"Topic '{topic.name}' already exists.")
    if topic.name.replace(".", "_") in {name.replace(".", "_") for name in state.topic_ids}:
        raise RefusedError(_INVALID_TOPIC, f"Topic '{topic.name}' collides with existing topic")
    if topic.num_partitions < -1 or topic.num_partitions == 0:
        raise RefusedError(_INVALID_PARTITIONS, "Number of partitions was set to an invalid non-positive value.")
    if topic.replication_factor < -1 or topic.replication_factor == 0:
        raise RefusedError(
            _INVALID_REPLICATION_FACTOR, "Replication factor must be larger than 0, or -1 to use the default value."
        )
    if topic.replication_factor > len(state.nodes):
        raise RefusedError(
            _INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {topic.replication_factor} time(s): The target replication factor of "
            f"{topic.replication_factor} cannot be reached because only {len(state.nodes)} broker(s) are registered.",
        )
    for name, value in configs.items():
        _check_config(state, name, value)
    problem = state.topic_policy(topic.name, configs)
    if problem is not None:
        raise RefusedError(_POLICY_VIOLATION, problem)


def _check_config(state: ClusterState, name: str, value: str | None) -> None:
    known = _FLAGS | _NUMBERS | _TEXTS.keys() | _OTHERS
    if name not in known or name in state.unknown_configs:
        raise RefusedError(_INVALID_CONFIG, f"Unknown topic config name: {name}")
    if value is None:
        raise RefusedError(_INVALID_CONFIG, f"Null value not supported for topic configs: {name}")
    is_valid = (
        (name not in _NUMBERS or re.fullmatch(r"-?\d+", value))
        and (name not in _FLAGS or value in ("true", "false"))
        and (name not in _TEXTS or value in _TEXTS[name])
    )
    if not is_valid:
        raise RefusedError(_INVALID_CONFIG, f"Invalid value {value} for configuration {name}")


def create_partitions(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    response = response_type("CreatePartitions")
    named = Counter(topic.name for topic in body.topics)

    def grown(topic: Any) -> None:
        _require_controller(state, node_id)
        if named[topic.name] > 1:
            raise RefusedError(_INVALID_REQUEST, "Duplicate topic name.")
        if topic.assignments is not None:
            raise UnreadableRequestError("CreatePartitions with assignments is not modelled")
        _require_topic(state, topic.name)
        has = sum(name == topic.name for name, _ in state.logs)
        if topic.count <= has:
            raise RefusedError(_INVALID_PARTITIONS, f"Topic already has {has} partition(s).")
        if not body.validate_only:
            add_partitions(state, topic.name, topic.count)

    results = []
    for topic in {topic.name: topic for topic in body.topics}.values():
        code, _, refused = attempt(change, partial(grown, topic), (topic.name, -1))
        results.append(response.CreatePartitionsTopicResult(name=topic.name, error_code=code, error_message=_message(refused)))
    return response(throttle_time_ms=change.throttle_ms, results=results)


def add_partitions(state: ClusterState, topic: str, partitions: int) -> None:
    """Give a topic so many partitions in all: the new ones begin empty, with leaders round the nodes."""
    with state.lock:
        first, nodes = state.log(topic), sorted(state.nodes)
        for partition in range(sum(name == topic for name, _ in state.logs), partitions):
            state.logs[topic, partition] = PartitionLog(nodes[partition % len(nodes)], first.configs)
            state.logs[topic, partition].replicas = state.logs[topic, partition].in_sync = first.replicas


def delete_topics(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    """Delete topics by name or by id."""
    response = response_type("DeleteTopics")

    def deleted(topic: Any) -> None:
        _require_controller(state, node_id)
        has_id = topic.topic_id not in (None, _NO_ID)
        if has_id is (topic.name is not None):
            raise RefusedError(_INVALID_REQUEST, "Neither topic name nor id were specified, or both.")
        name = topic.name
        if has_id:
            name = next((name for name, known in state.topic_ids.items() if known == topic.topic_id), None)
            if name is None:
                raise RefusedError(_UNKNOWN_TOPIC_ID, "This server does not host this topic ID.")
        _require_topic(state, name)
        state.delete_topic(name)

    results = []
    for topic in body.topics:
        code, _, refused = attempt(change, partial(deleted, topic), (topic.name, -1))
        results.append(
            response.DeletableTopicResult(
                name=topic.name, topic_id=topic.topic_id or _NO_ID, error_code=code, error_message=_message(refused)
            )
        )
    state.lock.notify_all()
    return response(throttle_time_ms=change.throttle_ms, responses=results)


def delete_records(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    response = response_type("DeleteRecords")
    topic_result = response.DeleteRecordsTopicResult

    def deleted(name: str, part: Any) -> int:
        log = state.log_of((name, part.partition_index))
        log.check_leader(node_id, -1)
        if "delete" not in log.configs["cleanup.policy"].split(","):
            raise RefusedError(_POLICY_VIOLATION)
        offset = log.high_watermark if part.offset == _HIGH_WATERMARK else part.offset
        if offset < 0 or offset > log.high_watermark:
            raise RefusedError(_OFFSET_OUT_OF_RANGE)
        log.delete_records_before(max(offset, log.log_start_offset))
        return log.log_start_offset

    def answered(name: str, part: Any) -> Any:
        code, start, _ = attempt(change, partial(deleted, name, part), (name, part.partition_index))
        low_watermark = -1 if code or start is None else start
        return topic_result.DeleteRecordsPartitionResult(
            partition_index=part.partition_index, low_watermark=low_watermark, error_code=code
        )

    topics = [
        topic_result(name=topic.name, partitions=[answered(topic.name, part) for part in topic.partitions])
        for topic in body.topics
    ]
    return response(throttle_time_ms=change.throttle_ms, topics=topics)


def incremental_alter_configs(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    """Alter settings of topics: those of a resource all together, or none."""
    response = response_type("IncrementalAlterConfigs")
    named = Counter((resource.resource_type, resource.resource_name) for resource in body.resources)

    def altered(resource: Any) -> None:
        _require_controller(state, node_id)
        if resource.resource_type != _TOPIC_RESOURCE:
            raise UnreadableRequestError("only settings of topics are modelled")
        if named[resource.resource_type, resource.resource_name] > 1:
            raise RefusedError(_INVALID_REQUEST, "Each resource must appear at most once")
        if len({config.name for config in resource.configs}) < len(resource.configs):
            raise RefusedError(_INVALID_REQUEST, "Error due to duplicate config keys")
        _require_topic(state, resource.resource_name)
        for config in resource.configs:
            if config.config_operation not in (_SET, _DELETE):
                raise RefusedError(_INVALID_REQUEST, f"Unknown operation type {config.config_operation}")
            if config.config_operation == _SET and config.value is None:
                raise RefusedError(_INVALID_REQUEST, f"Null value not supported for : {config.name}")
            if config.config_operation == _SET:
                _check_config(state, config.name, config.value)
        configs = state.log(resource.resource_name).configs
        for config in () if body.validate_only else resource.configs:
            if config.config_operation == _SET:
                configs[config.name] = config.value
            elif config.name in DEFAULT_CONFIGS:
                configs[config.name] = DEFAULT_CONFIGS[config.name]
            else:
                configs.pop(config.name, None)

    results = []
    for resource in body.resources:
        code, _, refused = attempt(change, partial(altered, resource), (resource.resource_name, -1))
        results.append(
            response.AlterConfigsResourceResponse(
                error_code=code,
                error_message=_message(refused),
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return response(throttle_time_ms=change.throttle_ms, responses=results)


def create_acls(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    response = response_type("CreateAcls")

    def created(creation: Any) -> None:
        acls = _acls_of(state, node_id)
        _check_acl(creation)
        entries = acls.setdefault((creation.resource_type, creation.resource_name, creation.resource_pattern_type), [])
        entry = _entry(creation)
        if entry not in entries:
            entries.append(entry)

    results = []
    for creation in body.creations:
        code, _, refused = attempt(change, partial(created, creation), (creation.resource_name, -1))
        results.append(response.AclCreationResult(error_code=code, error_message=_message(refused)))
    return response(throttle_time_ms=change.throttle_ms, results=results)


def _check_acl(creation: Any) -> None:
    is_cluster = creation.resource_type == _CLUSTER_RESOURCE
    if not creation.resource_name:
        raise RefusedError(_INVALID_REQUEST, "Invalid empty resource name")
    if is_cluster and creation.resource_name != _CLUSTER_NAME:
        raise RefusedError(_INVALID_REQUEST, f"The only valid name for the CLUSTER resource is {_CLUSTER_NAME}")
    is_known = (
        creation.resource_type in _RESOURCES
        and creation.resource_pattern_type in _PATTERNS
        and creation.operation in _OPERATIONS
        and creation.permission_type in _EFFECTS
    )
    if not is_known:
        raise RefusedError(_INVALID_REQUEST, "Invalid ACL: an element of it is unknown, or matches several")
    if ":" not in creation.principal:
        raise RefusedError(_INVALID_REQUEST, f"Could not parse principal from `{creation.principal}`")


def delete_acls(state: ClusterState, node_id: int, body: Any, change: Change) -> Any:
    """Delete by filters without wildcards: exactly one ACL each, or none."""
    response = response_type("DeleteAcls")
    result = response.DeleteAclsFilterResult

    def deleted(wanted: Any) -> list[Any]:
        acls = _acls_of(state, node_id)
        if None in (wanted.resource_name_filter, wanted.principal_filter, wanted.host_filter):
            raise UnreadableRequestError("filters that match several ACLs are not modelled")
        key: AclKey = (wanted.resource_type_filter, wanted.resource_name_filter, wanted.pattern_type_filter)
        entry = {
            "principal": wanted.principal_filter,
            "host": wanted.host_filter,
            "operation": wanted.operation,
            "permission_type": wanted.permission_type,
        }
        if entry not in acls.get(key, []):
            return []
        acls[key].remove(entry)
        if not acls[key]:
            del acls[key]
        kind, name, pattern = key
        matching = result.DeleteAclsMatchingAcl
        return [matching(error_code=0, error_message=None, resource_type=kind, resource_name=name, pattern_type=pattern, **entry)]

    results = []
    for wanted in body.filters:
        code, matching, refused = attempt(change, partial(deleted, wanted), (wanted.resource_name_filter, -1))
        results.append(result(error_code=code, error_message=_message(refused), matching_acls=matching or []))
    return response(throttle_time_ms=change.throttle_ms, filter_results=results)


def _acls_of(state: ClusterState, node_id: int) -> dict[AclKey, list[dict[str, Any]]]:
    _require_controller(state, node_id)
    if state.acls is None:
        raise RefusedError(_SECURITY_DISABLED, "No Authorizer is configured.")
    return state.acls


def _entry(creation: Any) -> dict[str, Any]:
    return {
        "principal": creation.principal,
        "host": creation.host,
        "operation": creation.operation,
        "permission_type": creation.permission_type,
    }


def _require_controller(state: ClusterState, node_id: int) -> None:
    if state.controller_id not in (None, node_id):
        raise RefusedError(_NOT_CONTROLLER, "This is not the correct controller for this cluster.")


def _require_topic(state: ClusterState, name: str) -> None:
    if name not in state.topic_ids:
        raise RefusedError(_UNKNOWN_TOPIC, "This server does not host this topic-partition.")


def _message(refused: RefusedError | None) -> str | None:
    return None if refused is None else refused.message or None


HANDLERS: dict[str, Callable[[ClusterState, int, Any, Change], Any]] = {
    "CreateTopics": create_topics,
    "CreatePartitions": create_partitions,
    "DeleteTopics": delete_topics,
    "DeleteRecords": delete_records,
    "IncrementalAlterConfigs": incremental_alter_configs,
    "CreateAcls": create_acls,
    "DeleteAcls": delete_acls,
}
