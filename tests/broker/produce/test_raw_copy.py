"""Raw batches from one real cluster to another, without Spark: bytes, transactions, receipts, evidence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient
from tests.support.deadlines import deadline
from tests.support.mirror_runs import create_topic, wait_for
from tests.support.receipts import write_receipt

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.fetch import RangeReader, ReadRange
from shallow_mirror.broker.produce import ProducePipeline, ProduceRefusedError, Receipt, read_receipt
from shallow_mirror.broker.produce.txn import EndTxnAnswer, add_partitions, end_txn, init_producer_id
from shallow_mirror.errors import DataLossError, ProducerEpochFencedError, TopicRecreatedError
from shallow_mirror.types import IsolationLevel, SlotTxn, TopicPartition
from shallow_mirror.wire import BATCH_HEADER_BYTES
from shallow_mirror.wire.batches import restamp

pytestmark = pytest.mark.brokers
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def cluster_of(node: Any) -> Cluster:
    return Cluster(ClientConfig.from_properties({"bootstrap.servers": node.bootstrap}))


def create(node: Any, name: str, **configs: str) -> None:
    create_topic(node.bootstrap, name, 2, configs)


def write(node: Any, topic: str, count: int = 200) -> None:
    for codec in CODECS:
        producer = Producer({"bootstrap.servers": node.bootstrap, "compression.type": codec, "linger.ms": 5})
        for number in range(count):
            key = None if number % 7 == 0 else f"{codec}-{number}".encode()
            value = None if number % 11 == 0 else b"value " * 20
            producer.produce(topic, value, key, partition=number % 2, headers=[("codec", codec)])
        producer.flush()


def read_all(cluster: Cluster, topic: str) -> dict[TopicPartition, list[bytes]]:
    """Whole batches as bytes, by partition."""
    topic_partitions = [TopicPartition(topic, partition) for partition in range(2)]
    ends = cluster.list_offsets(dict.fromkeys(topic_partitions, -1), IsolationLevel.READ_COMMITTED, deadline(60_000))
    ranges = [ReadRange(topic_partition, 0, ends[topic_partition].offset, 100.0) for topic_partition in topic_partitions]
    reader = RangeReader(cluster, ranges, isolation=IsolationLevel.READ_COMMITTED, fetch_bytes=1 << 16, deadline=deadline(60_000))
    batches: dict[TopicPartition, list[bytes]] = {topic_partition: [] for topic_partition in topic_partitions}
    for response in reader:
        for part in response:
            for start, size in zip(part.index.pos.tolist(), part.index.size_bytes.tolist(), strict=True):
                batches[part.topic_partition].append(bytes(part.records[start : start + size]))
    return batches


def records(node: Any, topic: str) -> list[list[Any]]:
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": "check",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([ConfluentPartition(topic, partition, 0) for partition in range(2)])
    records: list[list[Any]] = [[], []]
    ended = 0
    while ended < 2:
        message = consumer.poll(10)
        assert message is not None
        if message.error():
            ended += 1
        else:
            records[message.partition()].append((message.key(), message.value(), message.timestamp(), message.headers()))
    consumer.close()
    return records


def copy(source: Cluster, target: Cluster, topic: str, txn: SlotTxn) -> dict[TopicPartition, list[int]]:
    topic_partitions = [TopicPartition(topic, partition) for partition in range(2)]
    ends = source.list_offsets(dict.fromkeys(topic_partitions, -1), IsolationLevel.READ_COMMITTED, deadline(60_000))
    window = ProducePipeline(
        target, txn.transactional_id, in_flight_requests=5, in_flight_bytes=1 << 20, deadline=deadline(60_000)
    )
    add_partitions(target, txn, topic_partitions, deadline(60_000))
    ranges = [ReadRange(topic_partition, 0, ends[topic_partition].offset, 100.0) for topic_partition in topic_partitions]
    sequences, placed = dict.fromkeys(topic_partitions, 0), {topic_partition: list[int]() for topic_partition in topic_partitions}
    reader = RangeReader(source, ranges, isolation=IsolationLevel.READ_COMMITTED, fetch_bytes=1 << 16, deadline=deadline(60_000))
    for response in reader:
        queues = {}
        for part in response:
            sequences[part.topic_partition] = restamp(
                part.records,
                part.index,
                np.arange(len(part.index)),
                producer_id=txn.producer_id,
                producer_epoch=txn.producer_epoch,
                first_sequence=sequences[part.topic_partition],
            )
            spans = zip(part.index.pos.tolist(), part.index.size_bytes.tolist(), strict=True)
            queues[part.topic_partition] = [part.records[start : start + size] for start, size in spans]
        for topic_partition, offsets in window.produce_all(queues).items():
            placed[topic_partition] += offsets
    return placed


def test_batches_of_every_codec_arrive_with_the_same_payload_bytes(two_clusters: Any, topic_name: str) -> None:
    create(two_clusters.source, topic_name)
    create(two_clusters.target, topic_name)
    write(two_clusters.source, topic_name)
    source, target = cluster_of(two_clusters.source), cluster_of(two_clusters.target)
    txn = init_producer_id(target, f"copy-{topic_name}", 60_000, deadline(60_000))
    copy(source, target, topic_name, txn)
    write_receipt(target, txn, TopicPartition(topic_name, 0), decision=4, map_id="map", run_id="run", deadline=deadline(60_000))
    assert records(two_clusters.target, topic_name) == [[], []]
    assert end_txn(target, txn, True, deadline(60_000)) is EndTxnAnswer.ENDED
    assert end_txn(target, txn, True, deadline(60_000)) is EndTxnAnswer.ENDED
    before, after = read_all(source, topic_name), read_all(target, topic_name)
    for topic_partition, batches in before.items():
        copied = [batch for batch in after[topic_partition] if not batch[22] & 0x20]
        assert [batch[BATCH_HEADER_BYTES:] for batch in copied] == [batch[BATCH_HEADER_BYTES:] for batch in batches]
    assert records(two_clusters.target, topic_name) == records(two_clusters.source, topic_name)
    fence = init_producer_id(target, txn.transactional_id, 60_000, deadline(60_000))
    assert fence.producer_epoch > txn.producer_epoch
    receipt = read_receipt(target, txn.transactional_id, TopicPartition(topic_name, 0), deadline(60_000))
    assert receipt == Receipt(txn.producer_id, txn.producer_epoch, 4, "map", "run")
    assert end_txn(target, txn, True, deadline(60_000)) is EndTxnAnswer.AMBIGUOUS
    source.close()
    target.close()


def test_an_aborted_copy_leaves_nothing_and_no_receipt(two_clusters: Any, topic_name: str) -> None:
    create(two_clusters.source, topic_name)
    create(two_clusters.target, topic_name)
    write(two_clusters.source, topic_name, count=20)
    source, target = cluster_of(two_clusters.source), cluster_of(two_clusters.target)
    txn = init_producer_id(target, f"copy-{topic_name}", 60_000, deadline(60_000))
    copy(source, target, topic_name, txn)
    write_receipt(target, txn, TopicPartition(topic_name, 0), decision=4, map_id="map", run_id="run", deadline=deadline(60_000))
    init_producer_id(target, txn.transactional_id, 60_000, deadline(60_000))
    assert read_receipt(target, txn.transactional_id, TopicPartition(topic_name, 0), deadline(60_000)) is None
    assert records(two_clusters.target, topic_name) == [[], []]
    with pytest.raises(ProducerEpochFencedError):
        copy(source, target, topic_name, txn)
    source.close()
    target.close()


def test_a_batch_above_the_targets_limit_is_refused_by_name(two_clusters: Any, topic_name: str) -> None:
    create(two_clusters.source, topic_name)
    create(two_clusters.target, topic_name, **{"max.message.bytes": "500"})
    producer = Producer({"bootstrap.servers": two_clusters.source.bootstrap})
    producer.produce(topic_name, b"x" * 2_000, partition=0)
    producer.flush()
    source, target = cluster_of(two_clusters.source), cluster_of(two_clusters.target)
    txn = init_producer_id(target, f"copy-{topic_name}", 60_000, deadline(60_000))
    with pytest.raises(ProduceRefusedError, match="MESSAGE_TOO_LARGE"):
        copy(source, target, topic_name, txn)
    source.close()
    target.close()


def test_a_position_beyond_the_log_end_is_data_loss_with_both_offsets(two_clusters: Any, topic_name: str) -> None:
    create(two_clusters.source, topic_name)
    source = cluster_of(two_clusters.source)
    ranges = [ReadRange(TopicPartition(topic_name, 0), 7, 9, 1.0)]
    reader = RangeReader(source, ranges, isolation=IsolationLevel.READ_COMMITTED, fetch_bytes=1 << 16, deadline=deadline(60_000))
    with pytest.raises(DataLossError, match=r"expected offset 7.*ends at 0"):
        list(reader)
    source.close()


def test_a_topic_that_was_created_again_is_refused_by_its_id_and_never_read(two_clusters: Any, topic_name: str) -> None:
    node, topic_partition = two_clusters.source, TopicPartition(topic_name, 0)
    source, admin = cluster_of(node), AdminClient({"bootstrap.servers": node.bootstrap})
    create(node, topic_name)
    write(node, topic_name, 4)
    topic_id = source.metadata([topic_name], deadline(60_000)).topics[topic_name].topic_id

    def read() -> int:
        ranges = [ReadRange(topic_partition, 0, 10, 1.0, topic_id)]
        reader = RangeReader(
            source, ranges, isolation=IsolationLevel.READ_COMMITTED, fetch_bytes=1 << 16, deadline=deadline(60_000)
        )
        return sum(int(part.index.headers["records_count"].sum()) for response in reader for part in response)

    assert read() == 10
    admin.delete_topics([topic_name])[topic_name].result()
    wait_for("the end of the topic", lambda: topic_name not in admin.list_topics(timeout=10).topics)
    create(node, topic_name)
    write(node, topic_name, 4)
    with pytest.raises(TopicRecreatedError, match=f"expected offset 0: .*topic id {topic_id} became"):
        read()
    source.close()


def test_a_range_ends_at_its_end_also_when_later_batches_were_fetched_along(two_clusters: Any, topic_name: str) -> None:
    create(two_clusters.source, topic_name)
    producer = Producer({"bootstrap.servers": two_clusters.source.bootstrap})
    for _ in range(4):
        producer.produce(topic_name, b"x", partition=0)
        producer.flush()
    source = cluster_of(two_clusters.source)
    topic_partition = TopicPartition(topic_name, 0)
    ranges = [ReadRange(topic_partition, 0, 2, 1.0)]
    reader = RangeReader(source, ranges, isolation=IsolationLevel.READ_COMMITTED, fetch_bytes=1 << 16, deadline=deadline(60_000))
    fetched = [len(part.index) for response in reader for part in response]
    assert sum(fetched) == 4
    assert reader.positions() == {topic_partition: 2}
    source.close()
