"""A restore drill: transactions, three groups, a cut at a random time; the target is what the source was, and groups continue."""

from __future__ import annotations

import random
import time
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.support import archive_runs, restore_runs
from tests.support.archive_traffic import PARTITIONS
from tests.support.mirror_runs import create_topic, delete_topic, read_values

from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.verify import verify_restore

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(300)]

PHASES = 4
QUIET_S = 0.5
GROUPS = ("ahead", "between", "behind")

Values = list[list[str]]
"""By partition."""


class Group:
    """Reads committed records of a topic, and commits behind each reading. Its own list of what it has read."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.has_read: Values = [[] for _ in range(PARTITIONS)]

    def read(self, bootstrap: str, topic: str, partition: int, most: int) -> None:
        """Continue at the committed offset with so many records at most, up to the end of the log."""
        settings = {
            "bootstrap.servers": bootstrap,
            "group.id": self.name,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
        with closing(Consumer(settings)) as consumer:
            consumer.assign([self._committed(consumer, topic, partition)])
            last = None
            give_up_at = time.monotonic() + 30
            for _ in range(most):
                message = None
                while message is None:
                    assert time.monotonic() < give_up_at
                    message = consumer.poll(1.0)
                if message.error() is not None:
                    break  # the end of the log
                self.has_read[partition].append(message.value().decode())
                last = message
            if last is not None:
                consumer.commit(message=last, asynchronous=False)

    def _committed(self, consumer: Consumer, topic: str, partition: int) -> TopicPartition:
        (committed,) = consumer.committed([TopicPartition(topic, partition)], timeout=30)
        return TopicPartition(topic, partition, committed.offset)


def write_phase(producer: Producer, topic: str, phase: int, choice: random.Random) -> None:
    """Write some transactions over all partitions; one in three is aborted."""
    for number in range(6):
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            for i in range(choice.randint(1, 15)):
                producer.produce(topic, f"{phase}.{number}.{i}", partition=partition)
        if number % 3 == 1:
            producer.flush(30)
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def test_a_restore_up_to_a_random_time_is_the_source_of_that_time_and_its_groups_continue(
    source_cluster: LocalKafka, target_cluster: LocalKafka, topic_name: str, tmp_path: Path, spark: Any
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    choice = random.Random(seed)
    source, target, restored = source_cluster.bootstrap, target_cluster.bootstrap, f"east.{topic_name}"
    create_topic(source, topic_name, PARTITIONS)
    archive = archive_runs.config(tmp_path, source, [topic_name])
    groups = {name: Group(f"{name}-{topic_name}") for name in GROUPS}
    producer = Producer({"bootstrap.servers": source, "transactional.id": f"drill-{topic_name}"})
    producer.init_transactions(30)
    cut_phase = choice.randrange(PHASES - 1)
    for phase in range(PHASES):
        write_phase(producer, topic_name, phase, choice)
        for name, group in groups.items():
            for partition in range(PARTITIONS):
                if phase <= cut_phase or name == "ahead":
                    most = {"ahead": 1_000, "between": choice.randint(0, 40), "behind": choice.randint(0, 3)}[name]
                    if phase <= cut_phase:
                        group.read(source, topic_name, partition, most)
                    else:
                        Group(group.name).read(source, topic_name, partition, most)
        archive_runs.archive_all(archive, spark)
        if phase == cut_phase:
            until = time.time() + choice.uniform(0, QUIET_S)
            time.sleep(2 * QUIET_S)
            expected = [read_values(source, topic_name, partition) for partition in range(PARTITIONS)]
    delete_topic(source, topic_name)

    settings = restore_runs.config(
        tmp_path,
        archive,
        target,
        until={"time": datetime.fromtimestamp(until, UTC).isoformat()},
        groups={"include": [f".*-{topic_name}"]},
    )
    restore_runs.restore(settings, spark)
    assert [read_values(target, restored, partition) for partition in range(PARTITIONS)] == expected, seed
    report = verify_restore(settings, is_deep=True)
    assert report.is_equal, report.sentences()
    assert report.record_count == sum(len(values) for values in expected)
    for group in groups.values():
        for partition in range(PARTITIONS):
            group.read(target, restored, partition, 10_000)
        assert group.has_read == expected, (seed, group.name)
