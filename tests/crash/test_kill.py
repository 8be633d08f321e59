"""SIGKILL of the whole mirror at every step of the contract, on real clusters, with records written in between."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from shallow_mirror.checkpoints.offset_map import OffsetMap

PROCESS = Path(__file__).with_name("mirror_process.py")
PARTITIONS = 3

# step of the contract -> (point, n-th time it is passed). Recovery ends, settles and initialises as well: A>B is B after A.
STEPS = {
    "2 after the ownership check": ("TakeDecision", 1),
    "3 after InitProducerId": ("task.initialised", 1),
    "4 after the first produce": ("task.produced", 1),
    "4 after the receipt": ("task.receipt", 1),
    "5 after every slot answered": ("RunSlots", 1),
    "6 after the decision": ("Decide", 1),
    "7 after the first of two EndTxn": ("RunSlots>EndTxn", 1),
    "7 after settling the first slot": ("RunSlots>AwaitVisible", 1),
    "8 after Spark's commit, in the next micro-batch": ("TakeDecision", 2),
}
OF_EVERY_TRANSFER = (
    "4 after the first produce",
    "7 after the first of two EndTxn",
    "8 after Spark's commit, in the next micro-batch",
)

CONF = """
mirror: killed
source: {{alias: east, client: {{bootstrap.servers: "{source}"}}}}
target: {{alias: west, client: {{bootstrap.servers: "{target}"}}}}
topics: {{include: ["{topic}"]}}
read: {{transfer: {transfer}, micro_batch_bytes: 1048576}}
write: {{slots: 2, slot_bytes: 262144, transaction_timeout_ms: 60000}}
tables: tables
checkpoint: spark_checkpoint
trigger: 0 seconds
"""

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.timeout(600)]


def write_records(bootstrap: str, topic: str, round_number: int) -> None:
    """Committed, aborted and plain records of about 3 MB, so that a round is more than one micro-batch."""
    for transaction, is_committed in enumerate((True, False, True)):
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": "writer", "compression.type": "lz4"})
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(300):
            key = f"{round_number}-{transaction}-{number}".encode()
            value = os.urandom(2_000) + key
            producer.produce(topic, value, key, partition=number % PARTITIONS, headers=[("round", str(round_number))])
        producer.flush()
        (producer.commit_transaction if is_committed else producer.abort_transaction)()
    plain = Producer({"bootstrap.servers": bootstrap, "compression.type": "zstd"})
    for number in range(300):
        plain.produce(topic, os.urandom(2_000), b"plain-%d" % number, partition=number % PARTITIONS)
    plain.flush()


def read_committed(bootstrap: str, topic: str) -> dict[int, list[tuple[Any, ...]]]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "check", "isolation.level": "read_committed", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    records: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    ended: set[int] = set()
    while len(ended) < PARTITIONS:
        message = consumer.poll(10)
        assert message is not None
        if message.error():
            ended.add(message.partition())
        else:
            records[message.partition()].append((message.key(), message.value(), message.timestamp(), message.headers()))
    consumer.close()
    return records


def run_mirror(folder: Path, *crash: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(PROCESS), str(folder / "mirror.yaml"), *crash],
        cwd=folder,
        start_new_session=True,
        text=True,
        capture_output=True,
        timeout=240,
        check=False,
    )


@pytest.mark.parametrize(("transfer", "steps"), [("direct", tuple(STEPS)), ("through-spark", OF_EVERY_TRANSFER)])
def test_a_kill_at_every_step_loses_and_repeats_nothing(
    transfer: str, steps: tuple[str, ...], two_clusters: Any, topic_name: str, tmp_path: Path
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    admin = AdminClient({"bootstrap.servers": source})
    for future in admin.create_topics([NewTopic(topic_name, PARTITIONS, 1)]).values():
        future.result()
    (tmp_path / "mirror.yaml").write_text(CONF.format(source=source, target=target, topic=topic_name, transfer=transfer))
    for round_number, step in enumerate(steps):
        write_records(source, topic_name, round_number)
        killed = run_mirror(tmp_path, STEPS[step][0], str(STEPS[step][1]))
        assert killed.returncode == -9, f"{step}: {killed.stderr[-4000:]}"
    finished = run_mirror(tmp_path)
    assert finished.returncode == 0, finished.stderr[-4000:]
    expected, copied = read_committed(source, topic_name), read_committed(target, topic_name)
    assert {partition: len(records) for partition, records in copied.items()} == {
        partition: len(records) for partition, records in expected.items()
    }
    assert copied == expected
    slots = {row["transactional_id"] for row in OffsetMap.open(str(tmp_path / "tables")).settled_rows().to_pylist()}
    assert {"killed-0", "killed-1"} <= slots
