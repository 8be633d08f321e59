"""A source whose older batches are in remote storage (KIP-405), on a real broker with the storage of Kafka's own tests."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.support.mirror_runs import conf_file, create_topic, read_partitions, wait_for
from tests.verify.mirror_main import catch_up

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.local_kafka import start_clusters, stop_clusters
from shallow_mirror.local_kafka.jars import PREVIOUS_KAFKA_VERSION, JarSet, Module, jars_of
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.types import TopicPartition
from shallow_mirror.verify import verify_mirror

pytestmark = [pytest.mark.brokers, pytest.mark.long, pytest.mark.timeout(600)]

# The storage is a class of the broker's own tests and fits one release: that of the last one with published tests.
STORAGE = JarSet(
    name=f"tiered-storage-{PREVIOUS_KAFKA_VERSION}",
    modules=(
        Module(
            organisation="org.apache.kafka",
            name="kafka-storage",
            version=PREVIOUS_KAFKA_VERSION,
            transitive=False,
            classifier="test",
        ),
    ),
)
PARTITIONS, RECORDS = 3, 6_000
MOVED_AT_ONCE = {
    "remote.storage.enable": "true",
    "segment.bytes": str(1 << 20),
    "local.retention.bytes": "1",
    "local.retention.ms": "1",
}


@pytest.fixture
def clusters(no_child_process_is_left: None, tmp_path: Path) -> Iterator[list[LocalKafka]]:
    """Start a source with remote storage, which answers before data has come from there, and a target."""
    jars = jars_of(STORAGE)
    settings = {
        "remote.log.storage.system.enable": "true",
        "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
        "remote.log.storage.manager.class.path": f"{jars[0].parent}/*",
        "remote.log.storage.manager.impl.prefix": "rsm.config.",
        "rsm.config.dir": str(tmp_path / "remote"),
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
        "log.retention.check.interval.ms": "500",
        "log.initial.task.delay.ms": "500",
        "remote.log.manager.task.interval.ms": "500",
        "remote.fetch.max.wait.ms": "1",
    }
    source = start_clusters(tmp_path / "source", 1, PREVIOUS_KAFKA_VERSION, properties=settings)
    nodes = [*source, *start_clusters(tmp_path / "target", 1)]
    yield nodes
    stop_clusters(nodes)


def write(bootstrap: str, topic: str) -> None:
    dice, producer = random.Random(3), Producer({"bootstrap.servers": bootstrap, "linger.ms": 20, "log_level": 0})
    for n in range(RECORDS):
        producer.produce(topic, dice.randbytes(1_000), f"{n}", partition=n % PARTITIONS)
        if n % 500 == 0:
            assert producer.flush(60) == 0
    assert producer.flush(60) == 0


def test_a_tiered_topic_arrives_whole_also_when_its_broker_answers_before_the_remote_storage_does(
    clusters: list[LocalKafka], tmp_path: Path, topic_name: str
) -> None:
    source, target = (node.bootstrap for node in clusters)
    create_topic(source, topic_name, PARTITIONS, settings=MOVED_AT_ONCE)
    write(source, topic_name)
    topic_partitions = [(topic_name, partition) for partition in range(PARTITIONS)]
    asked = Cluster(ClientConfig.from_properties({"bootstrap.servers": source}))

    def is_moved() -> bool:
        starts = asked.local_log_starts(
            [TopicPartition(*topic_partition) for topic_partition in topic_partitions], Deadline.after_ms(30_000, time.monotonic)
        )
        return all(start > 0 for start in starts.values())

    wait_for("the move to the remote storage", is_moved)
    asked.close()
    conf = conf_file(tmp_path, source, target, [topic_name], topics={"create": True})
    catch_up(conf)
    originals, copies = read_partitions(source, topic_partitions), read_partitions(target, topic_partitions)
    assert sum(map(len, originals.values())) == RECORDS
    assert copies == originals
    assert verify_mirror(MirrorConfig.load(conf)).is_equal
