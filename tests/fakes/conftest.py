from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.fakes.peers import Peer
from tests.fakes.raw_client import RawClient
from tests.fakes.strict_broker import StrictCluster


class OwnerOfFake:
    def __init__(self, cluster: StrictCluster) -> None:
        self._cluster = cluster

    def create(self, topic: str, partitions: int, configs: dict[str, Any]) -> None:
        self._cluster.create_topic(topic, partitions, **configs)

    def delete(self, topic: str) -> None:
        self._cluster.delete_topic(topic)

    def delete_records_before(self, topic: str, offset: int) -> None:
        self._cluster.log(topic).delete_records_before(offset)

    def let_time_out(self, transactional_id: str) -> None:
        self._cluster.time_out(transactional_id)


class OwnerOfReal:
    def __init__(self, bootstrap: str) -> None:
        self._admin = AdminClient({"bootstrap.servers": bootstrap})

    def create(self, topic: str, partitions: int, configs: dict[str, str]) -> None:
        for future in self._admin.create_topics([NewTopic(topic, partitions, 1, config=configs)]).values():
            future.result()

    def delete(self, topic: str) -> None:
        for future in self._admin.delete_topics([topic]).values():
            future.result()

    def delete_records_before(self, topic: str, offset: int) -> None:
        for future in self._admin.delete_records([TopicPartition(topic, 0, offset)]).values():
            future.result()

    def let_time_out(self, transactional_id: str) -> None:
        """Do nothing: a real coordinator aborts the transaction when its timeout has passed."""


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.brokers)])
def peer(request: pytest.FixtureRequest, topic_name: str) -> Iterator[Peer]:
    topic = topic_name.replace("[", "-").replace("]", "-")[-90:]
    if request.param == "fake":
        with StrictCluster() as cluster, RawClient(cluster.bootstrap) as client:
            yield Peer(client, topic, OwnerOfFake(cluster))
        return
    bootstrap = request.getfixturevalue("target_cluster").bootstrap
    with RawClient(bootstrap) as client:
        yield Peer(client, topic, OwnerOfReal(bootstrap))
