"""confluent_kafka's AdminClient against strict clusters of the same process: what a mirror and its operator ask of topics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AlterConfigOpType
from tests.fakes.cluster_state import ClusterState
from tests.fakes.partition_log import PartitionLog
from tests.operators.direct_transport import Network

from shallow_mirror.broker.admin import topic_admin

_UNKNOWN_TOPIC, _TOPIC_ALREADY_EXISTS, _INVALID_PARTITIONS, _OFFSET_OUT_OF_RANGE = 3, 36, 37, 1


def add_partitions(cluster: ClusterState, topic: str, partitions: int) -> None:
    """As CreatePartitions: they begin empty, led by the only node."""
    with cluster.lock:
        first = cluster.logs[topic, 0]
        count = sum(name == topic for name, _ in cluster.logs)
        for partition in range(count, partitions):
            cluster.logs[topic, partition] = PartitionLog(1, first.configs)


class StrictAdmin:
    """Stands in for `AdminClient`; every future is done when it is returned."""

    def __init__(self, network: Network, settings: dict[str, Any]) -> None:
        host = str(settings["bootstrap.servers"]).split(",")[0].rpartition(":")[0]
        self._network, self._cluster = network, network.cluster_at(host)

    def create_topics(self, topics: Sequence[Any], **_times: float) -> dict[str, Future[None]]:
        return {topic.topic: self._done(self._create, topic) for topic in topics}

    def create_partitions(self, wanted: Sequence[Any], **_times: float) -> dict[str, Future[None]]:
        return {each.topic: self._done(self._grow, each) for each in wanted}

    def delete_topics(self, names: Sequence[str], **_times: float) -> dict[str, Future[None]]:
        return {name: self._done(self._delete, name) for name in names}

    def delete_records(self, topic_partitions: Sequence[Any], **_times: float) -> dict[Any, Future[None]]:
        return {topic_partition: self._done(self._delete_records, topic_partition) for topic_partition in topic_partitions}

    def incremental_alter_configs(self, resources: Sequence[Any], **_times: float) -> dict[Any, Future[None]]:
        return {resource: self._done(self._alter, resource) for resource in resources}

    def _done(self, effect: Any, argument: Any) -> Future[None]:
        future = Future[None]()
        self._network.before_admin_effect()
        try:
            with self._cluster.lock:
                effect(argument)
        except KafkaException as error:
            future.set_exception(error)
        else:
            future.set_result(None)
        self._network.after_admin_effect()
        return future

    def _create(self, topic: Any) -> None:
        if topic.topic in self._cluster.topic_ids:
            raise _refused(_TOPIC_ALREADY_EXISTS)
        self._cluster.create_topic(topic.topic, topic.num_partitions, **(topic.config or {}))

    def _grow(self, wanted: Any) -> None:
        self._require(wanted.topic)
        if wanted.new_total_count <= sum(name == wanted.topic for name, _ in self._cluster.logs):
            raise _refused(_INVALID_PARTITIONS)
        add_partitions(self._cluster, wanted.topic, wanted.new_total_count)

    def _delete(self, name: str) -> None:
        self._require(name)
        self._cluster.delete_topic(name)

    def _delete_records(self, topic_partition: Any) -> None:
        self._require(topic_partition.topic)
        log = self._cluster.log(topic_partition.topic, topic_partition.partition)
        offset = log.high_watermark if topic_partition.offset == -1 else topic_partition.offset
        if not log.log_start_offset <= offset <= log.high_watermark:
            raise _refused(_OFFSET_OUT_OF_RANGE)
        log.delete_records_before(offset)

    def _alter(self, resource: Any) -> None:
        self._require(resource.name)
        configs = self._cluster.log(resource.name).configs
        for change in resource.incremental_configs:
            if change.incremental_operation is AlterConfigOpType.DELETE:
                configs.pop(change.name, None)
            else:
                configs[change.name] = change.value

    def _require(self, topic: str) -> None:
        if topic not in self._cluster.topic_ids:
            raise _refused(_UNKNOWN_TOPIC)


def _refused(code: int) -> KafkaException:
    return KafkaException(KafkaError(code))


@contextmanager
def strict_admin(network: Network) -> Iterator[None]:
    """Let every admin client of the block talk to `network`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_admin, "AdminClient", lambda settings: StrictAdmin(network, settings))
        yield
