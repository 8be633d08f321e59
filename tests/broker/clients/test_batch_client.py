"""The batch client between two real clusters, judged by what confluent-kafka reads and by the stored bytes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient
from tests.support.mirror_runs import create_topic, wait_for_markers

from shallow_mirror.broker.clients.batch_client import (
    BatchConsumer,
    BatchProducer,
    Codec,
    FetchedBatch,
    IsolationLevel,
    StaleBatchError,
    TopicPartition,
    TxnState,
    TxnStateError,
)
from shallow_mirror.errors import BatchRefusedError, ConfigError, DataLossError, ProducerEpochFencedError, RetriableError
from shallow_mirror.wire import BATCH_HEADER_BYTES
from shallow_mirror.wire.protocol import ProduceFrames

pytestmark = pytest.mark.brokers
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 2
PATIENCE_MS = 30_000


def client(node: Any) -> dict[str, object]:
    return {"bootstrap.servers": node.bootstrap}


def create(node: Any, name: str, **configs: str) -> None:
    create_topic(node.bootstrap, name, PARTITIONS, configs)


def in_txn(transactional_id: str) -> dict[str, Any]:
    return {"transactional.id": transactional_id}


def write(node: Any, topic: str, codec: str = "none", count: int = 50, **more: Any) -> Producer:
    """Write records of all shapes into both partitions."""
    producer = Producer({"bootstrap.servers": node.bootstrap, "compression.type": codec, "linger.ms": 5, **more})
    if "transactional.id" in more:
        producer.init_transactions(30)
        producer.begin_transaction()
    for number in range(count):
        producer.produce(
            topic,
            None if number % 11 == 0 else b"value " * 20,
            None if number % 7 == 0 else f"{codec}-{number}".encode(),
            partition=number % PARTITIONS,
            headers=[("codec", codec), ("empty", b""), ("none", None)],
        )
    assert producer.flush(30) == 0
    return producer


def records(node: Any, topic: str) -> list[list[Any]]:
    """Return what a read_committed consumer reads, by partition: everything of a record but its offset."""
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": "check",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    records: list[list[Any]] = [[] for _ in range(PARTITIONS)]
    try:
        consumer.assign([ConfluentPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        ended = 0
        while ended < PARTITIONS:
            message = consumer.poll(30)
            assert message is not None
            if message.error():
                ended += 1
            else:
                records[message.partition()].append((message.key(), message.value(), message.timestamp(), message.headers()))
    finally:
        consumer.close()
    return records


def topic_partitions(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, partition) for partition in range(PARTITIONS)]


def ends(node: Any, topic: str, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED) -> dict[TopicPartition, int]:
    with BatchConsumer(client(node), isolation=isolation) as consumer:
        consumer.assign(dict.fromkeys(topic_partitions(topic), "latest"))
        return {topic_partition: consumer.position(topic_partition) for topic_partition in topic_partitions(topic)}


def batches(node: Any, topic: str, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED) -> Iterator[FetchedBatch]:
    """All batches of the topic up to its present end; each is valid until the next is asked for."""
    up_to = ends(node, topic)
    with BatchConsumer(client(node), isolation=isolation) as consumer:
        consumer.assign(dict.fromkeys(up_to, "earliest"))
        while any(consumer.position(topic_partition) < end for topic_partition, end in up_to.items()):
            yield from consumer.poll_batches(1 << 16, 1_000)


def payloads(node: Any, topic: str) -> dict[TopicPartition, list[bytes]]:
    payloads: dict[TopicPartition, list[bytes]] = {topic_partition: [] for topic_partition in topic_partitions(topic)}
    for batch in batches(node, topic):
        payloads[batch.topic_partition].append(bytes(batch.view[BATCH_HEADER_BYTES:]))
    return payloads


def copy(source: Any, producer: BatchProducer, topic: str) -> Mapping[TopicPartition, int]:
    """Every visible batch to the partition of the same name; returns the positions it reached."""
    up_to = ends(source, topic)
    with BatchConsumer(client(source)) as consumer:
        consumer.assign(dict.fromkeys(up_to, "earliest"))
        while any(consumer.position(topic_partition) < end for topic_partition, end in up_to.items()):
            for batch in consumer.poll_batches(1 << 15, 1_000):
                producer.send_batch(batch.topic_partition, batch)
            producer.flush()
        return {topic_partition: consumer.position(topic_partition) for topic_partition in up_to}


def test_a_topic_of_all_codecs_is_copied_byte_by_byte(two_clusters: Any, topic_name: str) -> None:
    create(two_clusters.source, topic_name)
    create(two_clusters.target, topic_name)
    for codec in CODECS:
        write(two_clusters.source, topic_name, codec, count=200)
    with BatchProducer(client(two_clusters.target)) as producer:
        copy(two_clusters.source, producer, topic_name)
    kinds_seen = {(batch.codec, batch.is_control) for batch in batches(two_clusters.target, topic_name)}
    assert kinds_seen == {(codec, False) for codec in Codec}
    assert payloads(two_clusters.target, topic_name) == payloads(two_clusters.source, topic_name)
    assert records(two_clusters.target, topic_name) == records(two_clusters.source, topic_name)
    assert sum(map(len, records(two_clusters.target, topic_name))) == 200 * len(CODECS)


def test_the_example_of_the_readme_copies_a_partition(
    two_clusters: Any, topic_name: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    section = (repository / "docs" / "how-to" / "batch-client.md").read_text(encoding="utf-8")
    example = section.split("```python")[1].split("```")[0]
    create(two_clusters.source, topic_name)
    create(two_clusters.target, topic_name)
    write(two_clusters.source, topic_name, "snappy", count=100)
    for written, real in (
        ("127.0.0.1:19092", two_clusters.source.bootstrap),
        ("127.0.0.1:29092", two_clusters.target.bootstrap),
        ('"orders"', f'"{topic_name}"'),
    ):
        assert written in example
        example = example.replace(written, real)
    exec(compile(example, "README.md", "exec"), {})
    assert "SNAPPY" in capsys.readouterr().out
    assert records(two_clusters.target, topic_name)[0] == records(two_clusters.source, topic_name)[0]


def test_batches_of_a_transaction_are_seen_after_its_commit_and_those_of_an_aborted_one_never(
    two_clusters: Any, topic_name: str
) -> None:
    create(two_clusters.source, topic_name)
    create(two_clusters.target, topic_name)
    write(two_clusters.source, topic_name, "zstd")
    with BatchProducer(client(two_clusters.target), f"t-{topic_name}") as producer:
        for commit in (False, True, False):
            producer.begin_txn()
            copy(two_clusters.source, producer, topic_name)
            before = records(two_clusters.target, topic_name)
            producer.end_txn(commit=commit)
            assert sum(map(len, before)) in (0, 50)
    wait_for_markers(two_clusters.target.bootstrap, topic_name)
    assert records(two_clusters.target, topic_name) == records(two_clusters.source, topic_name)
    states = [
        (batch.is_control, batch.is_transactional)
        for batch in batches(two_clusters.target, topic_name, IsolationLevel.READ_UNCOMMITTED)
        if batch.topic_partition.partition == 0
    ]
    assert states.count((True, True)) == 3
    assert (False, False) not in states


def test_read_committed_leaves_out_aborted_data_and_markers_while_the_position_moves_on(
    two_clusters: Any, topic_name: str
) -> None:
    create(two_clusters.source, topic_name)
    write(two_clusters.source, topic_name)
    for fate in ("commit", "abort"):
        producer = write(two_clusters.source, topic_name, "lz4", **in_txn(f"{fate}-{topic_name}"))
        getattr(producer, f"{fate}_transaction")(30)
    wait_for_markers(two_clusters.source.bootstrap, topic_name)
    polled_batches = list(batches(two_clusters.source, topic_name))
    assert sum(batch.record_count for batch in polled_batches) == 100
    assert not any(batch.is_control for batch in polled_batches)
    with BatchProducer(client(two_clusters.source)) as producer:
        create(two_clusters.source, f"{topic_name}-copy")
        up_to = ends(two_clusters.source, topic_name)
        reached = dict.fromkeys(up_to, 0)
        with BatchConsumer(client(two_clusters.source)) as consumer:
            consumer.assign(dict.fromkeys(up_to, 0))
            while reached != up_to:
                for batch in consumer.poll_batches(1 << 20, 1_000):
                    producer.send_batch(TopicPartition(f"{topic_name}-copy", batch.topic_partition.partition), batch)
                producer.flush()
                reached = {topic_partition: consumer.position(topic_partition) for topic_partition in up_to}
    assert records(two_clusters.source, f"{topic_name}-copy") == records(two_clusters.source, topic_name)
    every = list(batches(two_clusters.source, topic_name, IsolationLevel.READ_UNCOMMITTED))
    assert sum(batch.record_count for batch in every if not batch.is_control) == 150
    assert sum(batch.is_control for batch in every) == 2 * PARTITIONS


def test_a_response_that_was_lost_is_no_duplicate_where_the_broker_remembers_the_producer(
    two_clusters: Any, topic_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(two_clusters.source, topic_name)
    create(two_clusters.target, topic_name)
    for codec in CODECS:
        write(two_clusters.source, topic_name, codec)
    parse_appended, parse_all_appended, response_count = ProduceFrames.parse_appended, ProduceFrames.parse_all_appended, 0

    def lose_every_third(frames: ProduceFrames, frame: memoryview) -> Any:
        nonlocal response_count
        response_count += 1
        if response_count % 3 == 0:
            raise RetriableError("NETWORK_EXCEPTION", "the answer was lost")
        return parse_appended(frames, frame)

    def parse_together_up_to_a_third(frames: ProduceFrames, received: Any) -> Any:
        nonlocal response_count
        if response_count % 3 + len(received) >= 3:
            return None
        appended = parse_all_appended(frames, received)
        response_count += len(received) if appended is not None else 0
        return appended

    monkeypatch.setattr(ProduceFrames, "parse_appended", lose_every_third)
    monkeypatch.setattr(ProduceFrames, "parse_all_appended", parse_together_up_to_a_third)
    with BatchProducer(client(two_clusters.target), in_flight_requests=5) as producer:
        copy(two_clusters.source, producer, topic_name)
    assert response_count >= 5
    assert records(two_clusters.target, topic_name) == records(two_clusters.source, topic_name)


def test_batches_are_gone_after_the_next_poll_and_copies_are_not(two_clusters: Any, topic_name: str) -> None:
    create(two_clusters.source, topic_name)
    for _ in range(2):
        write(two_clusters.source, topic_name, count=1)
    with BatchConsumer(client(two_clusters.source)) as consumer:
        consumer.assign({TopicPartition(topic_name, 0): 0})
        (first,) = consumer.poll_batches(1, PATIENCE_MS)
        kept, view, raw = first.copy(), first.view, bytes(first.view)
        (second,) = consumer.poll_batches(1, PATIENCE_MS)
        assert (first.base_offset, second.base_offset) == (0, 1)
        with pytest.raises(StaleBatchError):
            _ = first.view
        with pytest.raises(ValueError, match="released"):
            bytes(view)
        assert kept.view == raw


def test_an_oversized_batch_is_a_definite_error_after_which_an_abort_works(two_clusters: Any, topic_name: str) -> None:
    create(two_clusters.source, topic_name)
    create(two_clusters.target, topic_name, **{"max.message.bytes": "500"})
    write(two_clusters.source, topic_name, count=40)
    write(two_clusters.source, topic_name, count=2)
    with BatchProducer(client(two_clusters.target), f"t-{topic_name}") as producer:
        producer.begin_txn()
        with pytest.raises(BatchRefusedError, match=r"MESSAGE_TOO_LARGE.*Raise max\.message\.bytes") as caught:
            copy(two_clusters.source, producer, topic_name)
        assert (caught.value.topic_partition.topic, caught.value.base_offset) == (topic_name, 0)
        assert producer.state is TxnState.MUST_ABORT
        with pytest.raises(TxnStateError, match="can only be aborted"):
            producer.end_txn(commit=True)
        producer.end_txn(commit=False)
        assert records(two_clusters.target, topic_name) == [[], []]
        producer.begin_txn()
        small = [batch.copy() for batch in batches(two_clusters.source, topic_name) if batch.size_bytes <= 500]
        deliveries = [producer.send_batch(batch.topic_partition, batch) for batch in small]
        producer.end_txn(commit=True)
        assert all(delivery.base_offset >= 0 for delivery in deliveries)
    wait_for_markers(two_clusters.target.bootstrap, topic_name)
    assert [len(partition) for partition in records(two_clusters.target, topic_name)] == [1, 1]


def test_a_producer_that_was_taken_over_is_fenced_and_the_new_one_continues(two_clusters: Any, topic_name: str) -> None:
    create(two_clusters.source, topic_name)
    create(two_clusters.target, topic_name)
    write(two_clusters.source, topic_name)
    name = f"t-{topic_name}"
    with BatchProducer(client(two_clusters.target), name) as old, BatchProducer(client(two_clusters.target), name) as new:
        old.begin_txn()
        copy(two_clusters.source, old, topic_name)
        new.begin_txn()
        with pytest.raises(ProducerEpochFencedError):
            old.end_txn(commit=True)
        copy(two_clusters.source, new, topic_name)
        new.end_txn(commit=True)
        with pytest.raises(TxnStateError, match="took over"):
            old.begin_txn()
    wait_for_markers(two_clusters.target.bootstrap, topic_name)
    assert records(two_clusters.target, topic_name) == records(two_clusters.source, topic_name)


def test_a_position_beyond_the_end_of_the_log_is_data_loss_with_both_offsets(two_clusters: Any, topic_name: str) -> None:
    create(two_clusters.source, topic_name)
    with BatchConsumer(client(two_clusters.source)) as consumer:
        consumer.assign({TopicPartition(topic_name, 0): 7})
        with pytest.raises(DataLossError, match="expected offset 7: the log ends at 0: this offset was never written"):
            consumer.poll_batches(1 << 20, PATIENCE_MS)
        consumer.assign({TopicPartition(topic_name, 0): "latest"})
        assert len(consumer.poll_batches(1 << 20, 0)) == 0


def test_an_unknown_topic_is_a_setting_to_correct_and_is_not_created(two_clusters: Any, topic_name: str) -> None:
    topic_partition = TopicPartition(topic_name, 0)
    with BatchConsumer(client(two_clusters.source)) as consumer:
        with pytest.raises(ConfigError, match="UNKNOWN_TOPIC_OR_PARTITION; create it, or correct the name"):
            consumer.assign({topic_partition: 0})
    assert topic_name not in AdminClient({"bootstrap.servers": two_clusters.source.bootstrap}).list_topics(timeout=10).topics


def test_an_open_transaction_of_the_source_ends_what_read_committed_polls(two_clusters: Any, topic_name: str) -> None:
    create(two_clusters.source, topic_name)
    write(two_clusters.source, topic_name, count=2)
    producer = write(two_clusters.source, topic_name, **in_txn(f"open-{topic_name}"))
    topic_partition = TopicPartition(topic_name, 0)
    try:
        with BatchConsumer(client(two_clusters.source)) as consumer:
            consumer.assign({topic_partition: 0})
            assert sum(batch.record_count for batch in consumer.poll_batches(1 << 20, PATIENCE_MS)) == 1
            assert len(consumer.poll_batches(1 << 20, 100)) == 0
            assert consumer.position(topic_partition) == 1
            producer.commit_transaction(30)
            deadline = time.monotonic() + PATIENCE_MS / 1000
            while (
                consumer.position(topic_partition) < 1 + 25 + 1 and time.monotonic() < deadline
            ):  # the marker comes after the commit's response
                consumer.poll_batches(1 << 20, 500)
            assert consumer.position(topic_partition) == 1 + 25 + 1
    finally:
        producer.flush(5)
