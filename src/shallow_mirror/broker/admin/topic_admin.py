"""Driver: topic administration through confluent-kafka."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.net.error_codes import is_forbidden, refusal
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.types import TopicPartition

_UNKNOWN_TOPIC = 3
_TOPIC_ALREADY_EXISTS = 36
_INVALID_PARTITIONS = 37
_NOT_LET_IN = {KafkaError._AUTHENTICATION, KafkaError._SSL}


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """`replication_factor` None: the cluster's default."""

    name: str
    partitions: int
    replication_factor: int | None
    configs: Mapping[str, str]


def ensure_topics(client: ClientConfig, specs: Sequence[TopicSpec], *, timeout_s: float) -> None:
    """Create what does not exist. Raises ConfigError with every refusal, RetriableError when the cluster does not answer."""
    admin = _admin(client)
    futures = admin.create_topics(
        [
            NewTopic(
                spec.name,
                num_partitions=spec.partitions,
                replication_factor=spec.replication_factor or -1,
                config=dict(spec.configs),
            )
            for spec in specs
        ],
        operation_timeout=timeout_s,
        request_timeout=timeout_s,
    )
    _require_done(futures, "CreateTopics", "created", {_TOPIC_ALREADY_EXISTS}, timeout_s)


def add_partitions(client: ClientConfig, partitions: Mapping[str, int], *, timeout_s: float) -> None:
    """Give each topic so many partitions. A lower number changes nothing. Raises as `ensure_topics`."""
    admin = _admin(client)
    futures = admin.create_partitions(
        [NewPartitions(name, count) for name, count in partitions.items()],
        operation_timeout=timeout_s,
        request_timeout=timeout_s,
    )
    _require_done(futures, "CreatePartitions", "given more partitions", {_INVALID_PARTITIONS}, timeout_s)


def delete_topics(client: ClientConfig, names: Sequence[str], *, timeout_s: float) -> None:
    """Delete topics; those that do not exist are passed over. Raises as `ensure_topics`."""
    admin = _admin(client)
    futures = admin.delete_topics(list(names), operation_timeout=timeout_s, request_timeout=timeout_s)
    _require_done(futures, "DeleteTopics", "deleted", {_UNKNOWN_TOPIC}, timeout_s)


def delete_records(client: ClientConfig, starts: Mapping[TopicPartition, int], *, timeout_s: float) -> None:
    """Delete what lies below an offset of each topic-partition, which its log begins with then. Raises as `ensure_topics`."""
    admin = _admin(client)
    wanted = [ClientTopicPartition(key.topic, key.partition, offset) for key, offset in starts.items()]
    futures = admin.delete_records(wanted, operation_timeout=timeout_s, request_timeout=timeout_s)
    by_partition = {f"{key.topic}-{key.partition}": future for key, future in futures.items()}
    _require_done(by_partition, "DeleteRecords", "freed of its leading fillers", set(), timeout_s)


def set_topic_configs(
    client: ClientConfig, changes: Mapping[str, Mapping[str, str | None]], *, timeout_s: float
) -> dict[str, str]:
    """Set these settings and leave the others alone; None removes one, so that the default of the brokers applies.

    Return by topic why that failed; empty: all were set.
    """
    admin = _admin(client)
    resources = {
        name: ConfigResource(
            ConfigResource.Type.TOPIC,
            name,
            incremental_configs=[
                ConfigEntry(
                    key,
                    value,
                    incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
                )
                for key, value in sorted(settings.items())
            ],
        )
        for name, settings in changes.items()
    }
    futures = admin.incremental_alter_configs(list(resources.values()), request_timeout=timeout_s)
    problems = {}
    for name, resource in resources.items():
        try:
            futures[resource].result(timeout_s + 1)
        except KafkaException as error:
            failure = error.args[0]
            is_acl_missing = is_forbidden(failure.code())
            problems[name] = (
                refusal(failure.code(), "IncrementalAlterConfigs", topic=name)
                if is_acl_missing
                else f"{failure.name()}: {failure.str()}"
            )
        except TimeoutError:  # the client itself is late
            problems[name] = f"no answer within {timeout_s:.0f} s"
    return problems


def _admin(client: ClientConfig) -> AdminClient:
    """Return an admin client; keep it in a variable until its futures are done: they end with it."""
    return AdminClient({**client.as_confluent(), "log_level": "0"})


def _require_done(futures: Mapping[str, Future[Any]], api: str, what: str, passing: Set[int], timeout_s: float) -> None:
    problems = []
    for name, future in futures.items():
        try:
            future.result(timeout_s + 1)
        except KafkaException as error:
            failure = error.args[0]
            if failure.code() in passing:
                continue
            if failure.code() in _NOT_LET_IN:
                raise ConfigError(f"target topic {name} was not {what}: {failure.str()}") from error
            if failure.retriable() or failure.code() < 0:
                raise RetriableError(failure.name(), f"target topic {name} was not {what}: {failure.str()}") from error
            reason = refusal(failure.code(), api, topic=name) if is_forbidden(failure.code()) else failure.str()
            problems.append(f"target topic {name} cannot be {what}: {reason}")
        except TimeoutError as error:  # the client itself is late
            raise RetriableError("REQUEST_TIMED_OUT", f"target topic {name} was not {what} within {timeout_s:.0f} s") from error
    if problems:
        raise ConfigError(problems)
