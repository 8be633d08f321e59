"""Driver: topics of the target: created, given partitions and settings, deleted, and freed of records."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from shallow_mirror.broker.admin.item_requests import (
    Answer,
    Answers,
    Undecided,
    answers_by_name,
    ask_controller,
    ask_for_items,
)
from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.connection_pool import CONTROL
from shallow_mirror.broker.cluster.metadata_cache import group_by_leader
from shallow_mirror.broker.net.error_codes import (
    INVALID_PARTITIONS,
    TOPIC_ALREADY_EXISTS,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from shallow_mirror.broker.net.requests import call, request_class
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.types import TopicPartition

RECORDS_PER_REQUEST = 5_000
"""Topics, partitions and settings that one request creates: a KRaft controller refuses requests that write more than 10,000
records to its log, or create more than 10,000 partitions (POLICY_VIOLATION)."""

_OFFSET_OUT_OF_RANGE = 1
_TOPIC_RESOURCE = 2
_SET, _DELETE = 0, 1
"""Operations of IncrementalAlterConfigs."""

_K = TypeVar("_K", bound=Hashable)


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """`replication_factor` None: the cluster's default."""

    name: str
    partitions: int
    replication_factor: int | None
    configs: Mapping[str, str]


def ensure_topics(cluster: Cluster, specs: Sequence[TopicSpec], deadline: Deadline) -> None:
    """Create topics that do not exist. Raises ConfigError with every refusal, RetriableError when the cluster does not answer."""
    topic = request_class("CreateTopics").CreatableTopic
    by_name = {spec.name: spec for spec in specs}

    def creatable(spec: TopicSpec) -> object:
        return topic(
            name=spec.name,
            num_partitions=spec.partitions,
            replication_factor=-1 if spec.replication_factor is None else spec.replication_factor,
            assignments=[],
            configs=[topic.CreatableTopicConfig(name=key, value=value) for key, value in sorted(spec.configs.items())],
        )

    results = ask_controller(
        cluster,
        "CreateTopics",
        list(by_name),
        lambda names, attempt: {
            "topics": [creatable(by_name[name]) for name in names],
            "timeout_ms": int(attempt.remaining_ms()),
            "validate_only": False,
        },
        lambda _, response: answers_by_name(response.topics, lambda entry: str(entry.name)),
        deadline,
        weight=lambda name: 1 + by_name[name].partitions + len(by_name[name].configs),
        most=RECORDS_PER_REQUEST,
    )
    _require_done(results, "CreateTopics", "created", {TOPIC_ALREADY_EXISTS})


def add_partitions(cluster: Cluster, partitions: Mapping[str, int], deadline: Deadline) -> None:
    """Give each topic so many partitions. A lower number changes nothing. Raises as `ensure_topics`."""
    topic = request_class("CreatePartitions").CreatePartitionsTopic
    results = ask_controller(
        cluster,
        "CreatePartitions",
        list(partitions),
        lambda names, attempt: {
            "topics": [topic(name=name, count=partitions[name], assignments=None) for name in names],
            "timeout_ms": int(attempt.remaining_ms()),
            "validate_only": False,
        },
        lambda _, response: answers_by_name(response.results, lambda entry: str(entry.name)),
        deadline,
        weight=lambda name: 1 + partitions[name],
        most=RECORDS_PER_REQUEST,
    )
    _require_done(results, "CreatePartitions", "given more partitions", {INVALID_PARTITIONS})


def delete_topics(cluster: Cluster, names: Sequence[str], deadline: Deadline) -> None:
    """Delete topics; those that do not exist are passed over. Raises as `ensure_topics`."""
    topic = request_class("DeleteTopics").DeleteTopicState
    results = ask_controller(
        cluster,
        "DeleteTopics",
        list(dict.fromkeys(names)),
        lambda wanted, attempt: {
            "topics": [topic(name=name, topic_id=uuid.UUID(int=0)) for name in wanted],
            "timeout_ms": int(attempt.remaining_ms()),
        },
        lambda _, response: answers_by_name(response.responses, lambda entry: str(entry.name)),
        deadline,
        done={UNKNOWN_TOPIC_OR_PARTITION},
    )
    _require_done(results, "DeleteTopics", "deleted", {UNKNOWN_TOPIC_OR_PARTITION})


def delete_topic_by_id(cluster: Cluster, name: str, topic_id: str, deadline: Deadline) -> None:
    """Delete the topic with this id; nothing if it is gone already. A topic that has its name by now stays.

    `name` is for messages. Raises as `ensure_topics`, and BrokerTooOldError.
    """
    topic = request_class("DeleteTopics").DeleteTopicState
    wanted = uuid.UUID(bytes=base64.urlsafe_b64decode(topic_id + "=="))
    results = ask_controller(
        cluster,
        "DeleteTopics",
        [name],
        lambda _, attempt: {"topics": [topic(name=None, topic_id=wanted)], "timeout_ms": int(attempt.remaining_ms())},
        lambda names, response: answers_by_name(response.responses, lambda _: names[0]),
        deadline,
        done={UNKNOWN_TOPIC_ID},
    )
    _require_done(results, "DeleteTopics", "deleted", {UNKNOWN_TOPIC_ID})


def delete_records(cluster: Cluster, starts: Mapping[TopicPartition, int], deadline: Deadline) -> None:
    """Delete the records below an offset of each topic-partition, which its log begins with then. Raises as `ensure_topics`."""

    def ask(keys: Sequence[TopicPartition], attempt: Deadline) -> Answers[TopicPartition]:
        known = cluster.known_topics({key.topic for key in keys}, attempt)
        answers = {key: Answer(UNKNOWN_TOPIC_OR_PARTITION) for key in keys if key.topic not in known}
        throttle_ms = 0
        leaders, errors = cluster.leaders_and_errors([key for key in keys if key.topic in known], attempt)
        for node_id, partitions in group_by_leader(leaders).items():
            try:
                of_leader, throttled_ms = _delete_records_of(cluster, node_id, partitions, starts, attempt)
            except RetriableError as error:
                # The other leaders are asked all the same.
                errors |= {TopicPartition(name, index): error for name, members in partitions.items() for index in members}
            else:
                answers |= of_leader
                throttle_ms = max(throttle_ms, throttled_ms)
        return Answers(answers, errors, throttle_ms)

    # A new leader knows its high watermark, up to which records can be deleted, only once its followers have asked it.
    brief = (UNKNOWN_TOPIC_OR_PARTITION, _OFFSET_OUT_OF_RANGE)
    results = ask_for_items(cluster, starts, ask, deadline, brief=brief)
    named = {f"{key.topic}-{key.partition}": result for key, result in results.items()}
    topics = {f"{key.topic}-{key.partition}": key.topic for key in starts}
    _require_done(named, "DeleteRecords", "freed of its leading fillers", topics=topics)


def _delete_records_of(
    cluster: Cluster,
    node_id: int,
    partitions: Mapping[str, Sequence[int]],
    starts: Mapping[TopicPartition, int],
    deadline: Deadline,
) -> tuple[dict[TopicPartition, Answer], int]:
    """Return the answers of one leader, and for how long it throttles. Raises RetriableError."""
    topic = request_class("DeleteRecords").DeleteRecordsTopic
    response = call(
        cluster.connection(node_id, CONTROL, deadline),
        "DeleteRecords",
        deadline,
        topics=[
            topic(
                name=name,
                partitions=[
                    topic.DeleteRecordsPartition(partition_index=index, offset=starts[TopicPartition(name, index)])
                    for index in members
                ],
            )
            for name, members in partitions.items()
        ],
        timeout_ms=int(deadline.remaining_ms()),
    )
    answers = {
        TopicPartition(answered.name, entry.partition_index): Answer(int(entry.error_code))
        for answered in response.topics
        for entry in answered.partitions
    }
    return answers, int(response.throttle_time_ms)


def set_topic_configs(cluster: Cluster, changes: Mapping[str, Mapping[str, str | None]], deadline: Deadline) -> dict[str, str]:
    """Set these settings and leave the others alone; None removes one, so that the default of the brokers applies.

    Return by topic why that failed; empty: all were set. Raises ConfigError if the cluster refuses this client.
    """
    resource = request_class("IncrementalAlterConfigs").AlterConfigsResource

    def alterable(name: str) -> object:
        return resource(
            resource_type=_TOPIC_RESOURCE,
            resource_name=name,
            configs=[
                resource.AlterableConfig(name=key, config_operation=_DELETE if value is None else _SET, value=value)
                for key, value in sorted(changes[name].items())
            ],
        )

    results = ask_controller(
        cluster,
        "IncrementalAlterConfigs",
        list(changes),
        lambda names, _: {"resources": [alterable(name) for name in names], "validate_only": False},
        lambda _, response: answers_by_name(response.responses, lambda entry: str(entry.resource_name)),
        deadline,
        weight=lambda name: len(changes[name]),
        most=RECORDS_PER_REQUEST,
    )
    return {
        name: str(result) if isinstance(result, Undecided) else result.reason("IncrementalAlterConfigs", topic=name)
        for name, result in results.items()
        if isinstance(result, Undecided) or result.code
    }


def _require_done(
    results: Mapping[str, Answer | Undecided],
    api: str,
    what: str,
    passing: Collection[int] = (),
    *,
    topics: Mapping[str, str] | None = None,
) -> None:
    """Raise ConfigError with every refusal, RetriableError for the first item without a definite answer.

    `topics`: of the items, if those are not topics.
    """
    problems = []
    for name, result in results.items():
        if isinstance(result, Undecided):
            raise RetriableError(result.error_name, f"target topic {name} was not {what}: {result.detail}")
        if result.code and result.code not in passing:
            topic = name if topics is None else topics[name]
            problems.append(f"target topic {name} cannot be {what}: {result.reason(api, topic=topic)}")
    if problems:
        raise ConfigError(problems)
