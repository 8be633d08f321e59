"""Several nodes that are one cluster: the loss of one is survived, and none outlives whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.faults.proxy import HeldPort

from shallow_mirror.errors import ConfigError
from shallow_mirror.local_kafka.cluster import LocalKafkaCluster
from shallow_mirror.local_kafka.jars import OLDEST_KAFKA_VERSION
from shallow_mirror.local_kafka.ports import BrokerStartError

QUIET = {"log_level": 0}

pytestmark = pytest.mark.brokers


@pytest.fixture(scope="module")
def three_nodes(no_child_process_is_left: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafkaCluster]:
    with HeldPort() as first, HeldPort() as two, HeldPort() as three:
        proxies = [first.number, two.number, three.number]
        with LocalKafkaCluster(tmp_path_factory.mktemp("three"), proxies=proxies) as cluster:
            yield cluster


def write_to_all_in_sync(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **QUIET})
    for partition in range(3):
        producer.produce(topic, b"v", partition=partition)
    assert producer.flush(60) == 0


def wait_for_status(process: psutil.Process, *, is_stopped: bool) -> None:
    give_up_at = time.monotonic() + 20
    while (process.status() == psutil.STATUS_STOPPED) is not is_stopped:
        assert time.monotonic() < give_up_at, process.status()
        time.sleep(0.01)


@pytest.mark.long
def test_acknowledged_writes_continue_while_one_of_three_nodes_is_killed(three_nodes: LocalKafkaCluster, topic_name: str) -> None:
    admin = AdminClient({"bootstrap.servers": three_nodes.bootstrap, **QUIET})
    admin.create_topics([NewTopic(topic_name, 3, -1)])[topic_name].result(30)
    write_to_all_in_sync(three_nodes.bootstrap, topic_name)
    partitions = admin.list_topics(topic_name, timeout=20).topics[topic_name].partitions
    assert {len(partition.replicas) for partition in partitions.values()} == {3}
    assert {partition.leader for partition in partitions.values()} == {1, 2, 3}
    node = three_nodes.nodes[0]
    before = (node.bootstrap, node.cluster_id)
    node.kill()
    assert not three_nodes.is_running()
    write_to_all_in_sync(three_nodes.bootstrap, topic_name)
    three_nodes.start()
    assert (node.bootstrap, node.cluster_id) == before == (node.bootstrap, three_nodes.cluster_id)
    node.restart()
    assert three_nodes.is_running()
    assert set(admin.list_topics(timeout=20).brokers) == {1, 2, 3}


def test_clients_of_the_proxied_listener_are_directed_to_the_proxies(three_nodes: LocalKafkaCluster) -> None:
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in three_nodes.proxied_ports)
    reported = AdminClient({"bootstrap.servers": bootstrap, **QUIET}).list_topics(timeout=20).brokers
    assert ",".join(f"127.0.0.1:{reported[node.node_id].port}" for node in three_nodes.nodes) == three_nodes.proxied_bootstrap
    direct = AdminClient({"bootstrap.servers": three_nodes.bootstrap, **QUIET}).list_topics(timeout=20).brokers
    assert ",".join(f"127.0.0.1:{direct[node.node_id].port}" for node in three_nodes.nodes) == three_nodes.bootstrap


def test_a_paused_node_does_nothing_until_it_is_resumed_or_stopped(three_nodes: LocalKafkaCluster) -> None:
    node = three_nodes.nodes[1]
    process = psutil.Process(node.pid)
    node.pause()
    wait_for_status(process, is_stopped=True)
    node.resume()
    wait_for_status(process, is_stopped=False)
    node.pause()
    node.stop()
    assert not process.is_running()
    node.start()


def test_a_folder_that_was_used_before_is_the_same_cluster_again(tmp_path: Path) -> None:
    with LocalKafkaCluster(tmp_path, brokers=1) as cluster:
        first = cluster.cluster_id
    with LocalKafkaCluster(tmp_path, brokers=1) as cluster:
        assert cluster.cluster_id == first


def test_a_cluster_whose_node_does_not_come_up_raises_with_its_log_and_leaves_nothing_running(tmp_path: Path) -> None:
    cluster = LocalKafkaCluster(tmp_path, properties={"log.cleaner.dedupe.buffer.size": "1"})
    with pytest.raises(BrokerStartError, match=r"log\.cleaner\.dedupe\.buffer\.size"):
        cluster.start()
    assert not cluster.is_running()
    with pytest.raises(BrokerStartError, match="never started"):
        assert cluster.cluster_id


def test_several_nodes_with_zookeeper_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"needs Kafka 3\.3 or later; 2\.8\.2 runs as one broker only"):
        LocalKafkaCluster(tmp_path, version=OLDEST_KAFKA_VERSION).start()
    assert list(tmp_path.iterdir()) == []


def test_all_nodes_end_when_the_process_that_started_them_is_killed(tmp_path: Path) -> None:
    script = f"""
import time
from pathlib import Path
from shallow_mirror.local_kafka.cluster import LocalKafkaCluster
with LocalKafkaCluster(Path({str(tmp_path)!r})) as cluster:
    print(*[node.pid for node in cluster.nodes], flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stdout is not None
        nodes = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(nodes) == 3
        os.kill(parent.pid, signal.SIGKILL)
        assert not psutil.wait_procs(nodes, timeout=20)[1]
