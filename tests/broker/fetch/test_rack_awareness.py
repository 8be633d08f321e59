"""Two real brokers in two racks: records are read from the replica in the client's rack, and from the leader when that is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping

import pytest
from confluent_kafka.admin import NewTopic
from tests.support.mirror_runs import admin, wait_for, write

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.clients.batch_consumer import BatchConsumer
from shallow_mirror.broker.fetch import RangeReader, ReadRange
from shallow_mirror.deadline import Deadline
from shallow_mirror.local_kafka.cluster import LocalKafkaCluster
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.types import IsolationLevel, TopicPartition

pytestmark = pytest.mark.brokers

ORDERS_0 = TopicPartition("t", 0)
LEADER, FOLLOWER = 1, 2
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


class ClusterInRacks(LocalKafkaCluster):
    """Node n is in rack `rack-n`."""

    def _node(self, node_id: int, chosen: Mapping[int, tuple[int, int, int]], cluster_id: str) -> LocalKafka:
        node = super()._node(node_id, chosen, cluster_id)
        node._properties["broker.rack"] = f"rack-{node_id}"
        return node


@pytest.fixture(scope="module")
def racks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafkaCluster]:
    properties = {"replica.selector.class": SELECTOR, "min.insync.replicas": "1"}
    with ClusterInRacks(tmp_path_factory.mktemp("racks"), 2, properties=properties) as cluster:
        client = admin(cluster.bootstrap)
        client.create_topics([NewTopic("t", 1, replica_assignment=[[LEADER, FOLLOWER]])])["t"].result(30)
        yield cluster
        cluster.kill()  # one that is left alone, without a quorum, does not leave in order


def opened(racks: LocalKafkaCluster, rack: str) -> Cluster:
    properties: dict[str, object] = {"bootstrap.servers": racks.bootstrap, "request.timeout.ms": 10_000}
    return Cluster(ClientConfig.from_properties(properties | ({"client.rack": rack} if rack else {})))


def read(cluster: Cluster, end: int) -> list[int]:
    deadline = Deadline.after_ms(60_000, time.monotonic)
    topic_id = cluster.metadata(["t"], deadline).topics["t"].topic_id
    reader = RangeReader(
        cluster,
        [ReadRange(ORDERS_0, 0, end, 100.0, topic_id)],
        isolation=IsolationLevel.READ_COMMITTED,
        fetch_bytes=1 << 16,
        deadline=deadline,
    )
    return [base for response in reader for part in response for base in part.index.headers["base_offset"].tolist()]


def node_read_from(cluster: Cluster) -> int:
    deadline = Deadline.after_ms(10_000, time.monotonic)
    sources, _ = cluster.read_sources_and_errors([ORDERS_0], deadline)
    return sources[ORDERS_0].path.node_id


def in_sync(racks: LocalKafkaCluster) -> Callable[[], bool]:
    return lambda: len(admin(racks.bootstrap).list_topics("t", 10).topics["t"].partitions[0].isrs) == 2


def test_records_are_read_from_the_replica_in_the_clients_rack_and_from_the_leader_when_it_is_down(
    racks: LocalKafkaCluster,
) -> None:
    wait_for("the follower", in_sync(racks))
    for value in "abc":
        write(racks.bootstrap, "t", [value])
    with_rack, without_rack = opened(racks, f"rack-{FOLLOWER}"), opened(racks, "")
    assert read(with_rack, 3) == read(without_rack, 3) == [0, 1, 2]
    assert (node_read_from(with_rack), node_read_from(without_rack)) == (FOLLOWER, LEADER)
    with BatchConsumer(with_rack.config) as consumer:
        consumer.assign({ORDERS_0: "earliest"})
        polled: list[int] = []
        while len(polled) < 3:
            polled += [batch.base_offset for batch in consumer.poll_batches(1 << 20, 5_000)]
        assert polled == [0, 1, 2]
        assert node_read_from(consumer._cluster) == FOLLOWER
    racks.nodes[FOLLOWER - 1].kill()
    assert read(with_rack, 3) == [0, 1, 2]
    assert node_read_from(with_rack) == LEADER
    with_rack.close()
    without_rack.close()
