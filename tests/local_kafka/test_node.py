from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from shallow_mirror.local_kafka.jars import OLD_KAFKA_VERSION, OLDEST_KAFKA_VERSION
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.local_kafka.ports import PORT_RANGE, BrokerStartError, free_ports

QUIET = {"log_level": 0}


def produce_one(bootstrap: str, topic: str, value: bytes) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, **QUIET})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(20)
    # No transaction: a broker killed right after a commit was answered may come back without the markers.
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **QUIET})
    producer.produce(topic, value)
    assert producer.flush(20) == 0


def read_one(bootstrap: str, topic: str) -> bytes | None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "auto.offset.reset": "earliest", **QUIET})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(20)
        return None if message is None else message.value()
    finally:
        consumer.close()


def test_free_ports_differ_lie_below_the_ephemeral_ones_and_are_free() -> None:
    ports = free_ports(5, random.Random(7))
    assert len(set(ports)) == 5
    assert all(PORT_RANGE[0] <= port < PORT_RANGE[1] for port in ports)


def test_a_port_with_a_listener_is_not_free() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_ports(1, random.Random(8))[0]))
        taken.listen()
        assert taken.getsockname()[1] not in free_ports(1, random.Random(8))


def test_a_broker_that_was_never_started_has_no_address(tmp_path: Path) -> None:
    node = LocalKafka(tmp_path)
    node.stop()
    attributes: list[Callable[[], object]] = [lambda: node.bootstrap, lambda: node.cluster_id, lambda: node.pid]
    for ask in attributes:
        with pytest.raises(BrokerStartError):
            ask()


@pytest.mark.brokers
def test_a_broker_that_does_not_answer_within_its_own_timeout_is_killed(tmp_path: Path) -> None:
    looks = itertools.count()
    node = LocalKafka(tmp_path, start_timeout_s=200.0, clock=lambda: 150.0 * next(looks))
    with pytest.raises(BrokerStartError, match=r"did not answer within 200\.0 s"):
        node.start()
    assert not node.is_running()


@pytest.mark.brokers
def test_two_clusters_are_two_and_take_transactions(
    source_cluster: LocalKafka, target_cluster: LocalKafka, topic_name: str
) -> None:
    assert source_cluster.bootstrap != target_cluster.bootstrap
    assert source_cluster.cluster_id != target_cluster.cluster_id
    produce_one(source_cluster.bootstrap, topic_name, b"v")
    assert read_one(source_cluster.bootstrap, topic_name) == b"v"
    other = AdminClient({"bootstrap.servers": target_cluster.bootstrap, **QUIET})
    assert topic_name not in other.list_topics(timeout=20).topics


@pytest.mark.brokers
def test_a_killed_broker_restarts_with_its_address_identity_and_data(tmp_path: Path) -> None:
    with LocalKafka(tmp_path, properties={"num.partitions": "3"}) as node:
        produce_one(node.bootstrap, "t", b"kept")
        compressing = Producer({"bootstrap.servers": node.bootstrap, "compression.type": "lz4", **QUIET})
        compressing.produce("t", bytes(10_000))
        assert compressing.flush(20) == 0
        before = (node.bootstrap, node.cluster_id)
        first_pid = node.pid
        node.kill()
        assert list((tmp_path / "tmp").glob("liblz4*")), "what a killed broker cannot delete lies in its own folder"
        assert not psutil.pid_exists(first_pid)
        assert not node.is_running()
        node.restart()
        assert (node.bootstrap, node.cluster_id) == before
        assert node.pid != first_pid
        assert read_one(node.bootstrap, "t") == b"kept"
        pid = node.pid
    assert not psutil.pid_exists(pid)
    assert "Kafka Server started" in node.log_tail(200)


@pytest.mark.brokers
@pytest.mark.long
def test_the_old_version_starts_and_says_so_in_its_log(tmp_path: Path) -> None:
    with LocalKafka(tmp_path, OLD_KAFKA_VERSION) as node:
        produce_one(node.bootstrap, "t", b"old")
        assert read_one(node.bootstrap, "t") == b"old"
    assert "Kafka Server started" in node.log_tail(200)


@pytest.mark.brokers
@pytest.mark.long
def test_a_broker_with_zookeeper_survives_being_killed_and_takes_its_zookeeper_along(tmp_path: Path) -> None:
    before = set(psutil.Process().children(recursive=True))
    with LocalKafka(tmp_path, OLDEST_KAFKA_VERSION) as node:
        produce_one(node.bootstrap, "t", b"oldest")
        address = (node.bootstrap, node.cluster_id)
        node.kill()
        assert set(psutil.Process().children(recursive=True)) == before
        node.start()
        assert (node.bootstrap, node.cluster_id) == address
        assert read_one(node.bootstrap, "t") == b"oldest"
    assert set(psutil.Process().children(recursive=True)) == before
    assert "started (kafka.server.KafkaServer)" in node.log_tail(200)


@pytest.mark.brokers
def test_a_broker_that_does_not_come_up_raises_with_the_end_of_its_log(tmp_path: Path) -> None:
    node = LocalKafka(tmp_path, properties={"log.cleaner.dedupe.buffer.size": "1"})
    with pytest.raises(BrokerStartError, match=r"log\.cleaner\.dedupe\.buffer\.size"):
        node.start()
    assert not node.is_running()


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        port = free_ports(1)[0]
        taken.bind(("127.0.0.1", port))
        taken.listen()
        yield port


def first_then_free(first: Sequence[int]) -> Callable[[int], Sequence[int]]:
    choices: list[Sequence[int]] = [first]
    return lambda count: choices.pop() if choices else free_ports(count)


@pytest.mark.brokers
def test_ports_taken_between_choice_and_start_are_replaced(tmp_path: Path, taken_port: int) -> None:
    with LocalKafka(tmp_path, choose_ports=first_then_free([taken_port, free_ports(1)[0]])) as node:
        assert node.bootstrap != f"127.0.0.1:{taken_port}"


@pytest.mark.brokers
def test_another_broker_at_our_port_is_not_taken_for_ours(tmp_path: Path, source_cluster: LocalKafka) -> None:
    others_port = int(source_cluster.bootstrap.split(":")[1])
    with LocalKafka(tmp_path, choose_ports=first_then_free([others_port, free_ports(1)[0]])) as node:
        assert node.bootstrap != source_cluster.bootstrap
        assert node.cluster_id != source_cluster.cluster_id


@pytest.mark.brokers
def test_a_broker_ends_when_the_process_that_started_it_is_killed(tmp_path: Path) -> None:
    script = f"""
import os, sys, time
from pathlib import Path
from shallow_mirror.local_kafka.node import LocalKafka
with LocalKafka(Path({str(tmp_path)!r})) as node:
    if os.fork() == 0:
        time.sleep(30)
        os._exit(0)
    print(node.pid, flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, start_new_session=True) as parent:
        assert parent.stdout is not None
        broker = psutil.Process(int(parent.stdout.readline()))
        children = psutil.Process(parent.pid).children()
        os.kill(parent.pid, signal.SIGKILL)
        gone, _ = psutil.wait_procs([broker], timeout=10)
        os.killpg(parent.pid, signal.SIGKILL)
    assert gone, "the broker outlived its parent by 10 s"
    assert not psutil.wait_procs(children, timeout=10)[1]
