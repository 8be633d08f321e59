from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from tests.readers.written_log import WrittenLog
from tests.support.mirror_runs import wait_for

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.demo.checker import compare, end_offsets, open_partitions, partitions_of, read_histories
from shallow_mirror.demo.history import DifferenceKind
from shallow_mirror.types import IsolationLevel, TopicPartition

pytestmark = pytest.mark.brokers


def create(bootstrap: str, topic: str) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for created in admin.create_topics([NewTopic(topic, 2, 1, config={"retention.ms": "-1"})]).values():
        created.result(30)
    wait_for(f"topic {topic}", lambda: topic in admin.list_topics(timeout=20).topics)  # not every broker knows it at once
    return admin


def write(
    bootstrap: str, topic: str, values: Iterable[str], transactional_id: str | None = None, commit: bool | None = None
) -> Any:
    """`commit` None leaves the transaction open."""
    producer = Producer({"bootstrap.servers": bootstrap, **({"transactional.id": transactional_id} if transactional_id else {})})
    if transactional_id:
        producer.init_transactions(30)
        producer.begin_transaction()
    for value in values:
        producer.produce(topic, value, b"key", 0, timestamp=1_714_521_600_000, headers=[("h", b"1"), ("n", None)])
    assert producer.flush(30) == 0
    if transactional_id and commit is not None:
        producer.commit_transaction(30) if commit else producer.abort_transaction(30)
    return producer


def test_faults_planted_on_real_clusters_are_found(two_clusters: Any, topic_name: str) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    copy = f"{topic_name}-copy"
    create(source, topic_name)
    create(target, copy)
    write(source, topic_name, "abc")
    write(source, topic_name, "XY", f"{topic_name}-txn", commit=False)
    write(source, topic_name, "def", f"{topic_name}-txn", commit=True)
    write(target, copy, "abcXdZfff")
    comparison = compare(source, target, {topic_name: copy}, lambda topic, partition, offset: ("data", True, offset))
    assert comparison.source_records == {topic_name: 6}
    assert comparison.target_records == {topic_name: 9}
    assert comparison.counts == {
        DifferenceKind.ABORTED_VISIBLE: 1,
        DifferenceKind.CHANGED: 1,
        DifferenceKind.DUPLICATED: 2,
        DifferenceKind.MISTRANSLATED: 2,
    }
    assert comparison.translated_offsets == 5


def test_a_topic_without_a_copy_is_all_lost(two_clusters: Any, topic_name: str) -> None:
    source = two_clusters.source.bootstrap
    create(source, topic_name)
    write(source, topic_name, "abc")
    comparison = compare(source, two_clusters.target.bootstrap, {topic_name: "nowhere"})
    assert comparison.counts == {DifferenceKind.LOST: 3}


def test_an_open_transaction_is_seen_and_is_a_difference(two_clusters: Any, topic_name: str) -> None:
    source = two_clusters.source.bootstrap
    admin = create(source, topic_name)
    topic_partitions = partitions_of(admin, [topic_name])
    assert len(topic_partitions) == 2
    write(source, topic_name, "abc")
    assert open_partitions(admin, topic_partitions) == []
    producer = write(source, topic_name, "de", f"{topic_name}-txn")
    assert open_partitions(admin, topic_partitions) == [TopicPartition(topic_name, 0)]
    assert end_offsets(admin, topic_partitions, IsolationLevel.READ_COMMITTED)[TopicPartition(topic_name, 0)] == 3
    assert compare(source, source, {topic_name: topic_name}).counts == {DifferenceKind.OPEN_TXN: 1}
    producer.abort_transaction(30)
    assert compare(source, source, {topic_name: topic_name}).differences == ()


def test_a_history_ends_where_it_is_to_end_also_behind_an_aborted_transaction(two_clusters: Any, topic_name: str) -> None:
    """Offsets 0 to 2, an aborted 3 and 4 with the marker 5, then 6 to 8; of the other partition there is nothing to read."""
    source = two_clusters.source.bootstrap
    create(source, topic_name)
    write(source, topic_name, "abc")
    write(source, topic_name, "XY", f"{topic_name}-txn", commit=False)
    write(source, topic_name, "def")
    full, empty = TopicPartition(topic_name, 0), TopicPartition(topic_name, 1)

    def offsets_of(start: int, end: int) -> list[int]:
        histories = read_histories(
            source, [topic_name], IsolationLevel.READ_COMMITTED, lambda _: None, starts={full: start}, ends={full: end, empty: 0}
        )
        assert len(histories[empty]) == 0
        offsets: list[int] = histories[full].offsets.tolist()
        return offsets

    assert offsets_of(1, 3) == [1, 2]
    assert offsets_of(0, 5) == [0, 1, 2]
    assert offsets_of(2, 8) == [2, 6, 7]
    assert offsets_of(2, 20) == [2, 6, 7, 8]
    assert offsets_of(4, 4) == []


def test_fillers_that_come_one_by_one_are_passed_over(two_clusters: Any, topic_name: str) -> None:
    """From the eleventh fetch response without a record on, librdkafka reports each as an error."""
    bootstrap = two_clusters.target.bootstrap
    target = Cluster(ClientConfig.from_properties({"bootstrap.servers": bootstrap}))
    log, fillers = WrittenLog(target.config, target, topic_name, {}), 15
    log.add_records(["first"])

    def append_while_it_is_read() -> None:
        for _ in range(fillers):
            log.add_fillers(1)
            time.sleep(0.2)  # sooner than an empty response comes, at which reading ends
        log.add_records(["last"])

    appending = threading.Thread(target=append_while_it_is_read, daemon=True)

    def begin_to_append(records: int) -> None:
        if records and appending.ident is None:
            appending.start()

    with closing(target):
        histories = read_histories(
            bootstrap, [topic_name], IsolationLevel.READ_UNCOMMITTED, begin_to_append, ends={log.key: fillers + 2}
        )
        appending.join()
    assert histories[log.key].offsets.tolist() == [0, fillers + 1]
