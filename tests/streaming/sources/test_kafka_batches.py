"""The public source on a real cluster: its rows against what a consumer and the broker itself say."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import (
    DataFrame,
    functions as F,  # noqa: N812
)
from tests.support.mirror_runs import create_topic, wait_for_markers
from tests.support.one_batch import one_batch_producer

from shallow_mirror.streaming.sources import kafka_batches
from shallow_mirror.streaming.spark import spark_session
from shallow_mirror.wire import verify_crc
from shallow_mirror.wire.batches import index_batches

PARTITIONS = 2
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

pytestmark = [pytest.mark.brokers, pytest.mark.spark]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    made = spark_session.local_session(
        "batches", cores=2, log_file=tmp_path_factory.mktemp("spark") / "spark.log", archives_classes=True
    )
    kafka_batches.register_kafka_batches(made)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def source(source_cluster: Any) -> str:
    return str(source_cluster.bootstrap)


def create(bootstrap: str, topic: str) -> None:
    create_topic(bootstrap, topic, PARTITIONS)


def write(bootstrap: str, topic: str) -> None:
    """Plain batches of every codec, and a committed, an aborted and again a committed transaction, in each partition."""
    for codec in CODECS:
        plain = one_batch_producer(bootstrap, topic, **{"compression.type": codec})
        _produce(plain, topic, codec)
        plain.flush()
    writer = one_batch_producer(bootstrap, topic, **{"transactional.id": f"{topic}-writer", "compression.type": "lz4"})
    writer.init_transactions()
    for number, is_committed in enumerate((True, False, True)):
        writer.begin_transaction()
        _produce(writer, topic, f"txn {number}")
        writer.flush()
        (writer.commit_transaction if is_committed else writer.abort_transaction)()
    wait_for_markers(bootstrap, topic)


def _produce(producer: Producer, topic: str, text: str) -> None:
    for number in range(20):
        producer.produce(topic, f"{text} {number} ".encode() * 50, str(number).encode(), partition=number % PARTITIONS)


def read_committed(bootstrap: str, topic: str) -> list[tuple[int, int, int]]:
    """(partition, offset, timestamp) of every committed record."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "check", "isolation.level": "read_committed", "enable.partition.eof": True}
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    rows, ended = [], 0
    while ended < PARTITIONS:
        message = consumer.poll(10)
        assert message is not None
        if message.error():
            ended += 1
        else:
            rows.append((message.partition(), message.offset(), message.timestamp()[1]))
    consumer.close()
    return sorted(rows)


def batches_of(spark: Any, bootstrap: str, topic: str, **options: str) -> DataFrame:
    reader = spark.read.format(kafka_batches.NAME).option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    return reader.options(**options).load()


def test_a_batch_query_gives_every_committed_record_s_batch_and_covers_every_offset_when_asked(
    spark: Any, source: str, topic_name: str, repository: Path
) -> None:
    create(source, topic_name)
    write(source, topic_name)
    every = batches_of(spark, source, topic_name, batches="all").orderBy("partition", "base_offset").cache()
    rows = every.collect()
    reached: dict[int, int] = defaultdict(int)
    for row in rows:
        assert row.base_offset == reached[row.partition]
        reached[row.partition] = row.last_offset + 1
        index = index_batches(memoryview(row.payload))
        assert (len(index), index.stop) == (1, None)
        assert verify_crc(memoryview(row.payload))
        assert (row.size_bytes, row.crc) == (len(row.payload), int(index.headers["crc"][0]))
    ends = Consumer({"bootstrap.servers": source, "group.id": "ends"})
    assert reached == {number: ends.get_watermark_offsets(TopicPartition(topic_name, number))[1] for number in range(PARTITIONS)}
    ends.close()
    per_kind = every.groupBy("kind").agg(F.count("*").alias("batches"), F.sum("records_count").alias("records"))
    expected = spark.createDataFrame(
        [("data", 2 * 7, 2 * 70), ("commit", 4, 4), ("aborted", 2, 20), ("abort", 2, 2)],
        "kind string, batches long, records long",
    )
    assert_df_equality(per_kind, expected, ignore_row_order=True, ignore_nullable=True)
    assert {row.codec for row in rows} == set(CODECS)
    committed = batches_of(spark, source, topic_name)
    assert_df_equality(committed, every.where("kind = 'data'"), ignore_row_order=True, ignore_nullable=True)
    records = read_committed(source, topic_name)
    covered = {(row.partition, offset) for row in committed.collect() for offset in range(row.base_offset, row.last_offset + 1)}
    assert covered == {(partition, offset) for partition, offset, _ in records}
    assert max(row.max_timestamp_ms for row in committed.collect()) == max(timestamp for _, _, timestamp in records)
    section = (repository / "docs" / "how-to" / "batches.md").read_text(encoding="utf-8").split("## Records of a batch")[1]
    example: dict[str, Any] = {"__name__": "__main__", "batches": every}
    exec(compile(section.split("```python")[1].split("```")[0], "batches.md", "exec"), example)
    assert sorted((row.partition, row.offset, row.timestamp_ms) for row in example["orders"].collect()) == records
    every.unpersist()


def test_read_uncommitted_hands_out_aborted_batches_as_data(spark: Any, source: str, topic_name: str) -> None:
    create(source, topic_name)
    write(source, topic_name)
    uncommitted = batches_of(spark, source, topic_name, isolationLevel="read_uncommitted")
    assert uncommitted.agg(F.sum("records_count")).collect()[0][0] == 2 * 80


def test_offsets_in_json_bound_a_batch_query_and_an_end_beyond_the_log_is_refused(
    spark: Any, source: str, topic_name: str
) -> None:
    create(source, topic_name)
    write(source, topic_name)
    (first,) = batches_of(spark, source, topic_name).where("partition = 0").orderBy("base_offset").limit(1).collect()
    inside = first.last_offset
    bounds = {
        "startingOffsets": json.dumps({topic_name: {"0": inside, "1": -1}}),
        "endingOffsets": json.dumps({topic_name: {"0": inside + 1, "1": -1}}),
    }
    (only,) = batches_of(spark, source, topic_name, **bounds).collect()
    assert (only.base_offset, only.last_offset) == (first.base_offset, first.last_offset)
    with pytest.raises(PySparkException, match="is not between 0 and the log's end"):
        batches_of(spark, source, topic_name, endingOffsets=json.dumps({topic_name: {"0": 10**6, "1": -1}})).collect()
    with pytest.raises(PySparkException, match=f"{topic_name}-0: 500000 is beyond the log's end"):
        batches_of(spark, source, topic_name, startingOffsets=json.dumps({topic_name: {"0": 500_000, "1": -2}})).collect()
    with pytest.raises(PySparkException, match=f"{topic_name}-0: 1 is before the start {inside}; the log's end is"):
        batches_of(spark, source, topic_name, **bounds | {"endingOffsets": json.dumps({topic_name: {"0": 1, "1": -1}})}).collect()
    with pytest.raises(PySparkException, match=f"endingOffsets: there is no partition {topic_name}-7"):
        batches_of(spark, source, topic_name, endingOffsets=json.dumps({topic_name: {"0": 1, "1": 1, "7": 1}})).collect()
    assert batches_of(spark, source, topic_name, startingOffsets="latest").collect() == []
    with pytest.raises(PySparkException, match="-1 has none"):
        batches_of(spark, source, topic_name, startingOffsets=json.dumps({topic_name: {"0": 0}})).collect()


def stream_into_rows(spark: Any, bootstrap: str, topic: str, checkpoint: Path, **options: str) -> list[list[Any]]:
    micro_batches: list[list[Any]] = []

    def collect(frame: DataFrame, _spark_batch_id: int) -> None:
        micro_batches.append(frame.select("partition", "base_offset", "last_offset", "records_count", "kind").collect())

    stream = spark.readStream.format(kafka_batches.NAME).option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    query = (
        stream.options(**options)
        .load()
        .writeStream.foreachBatch(collect)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    return micro_batches


def test_a_stream_gives_each_batch_once_in_bounded_micro_batches_and_continues_where_its_checkpoint_ends(
    spark: Any, source: str, topic_name: str, tmp_path: Path
) -> None:
    create(source, topic_name)
    write(source, topic_name)
    options = {"startingOffsets": "earliest", "batches": "all", "maxOffsetsPerTrigger": "37"}
    first = stream_into_rows(spark, source, topic_name, tmp_path / "checkpoint", **options)
    assert len(first) > 2 * 80 // 37
    write(source, topic_name)
    second = stream_into_rows(spark, source, topic_name, tmp_path / "checkpoint", **options)
    rows = sorted(tuple(row) for micro_batch in (*first, *second) for row in micro_batch)
    every = batches_of(spark, source, topic_name, batches="all")
    expected = sorted(
        tuple(row) for row in every.select("partition", "base_offset", "last_offset", "records_count", "kind").collect()
    )
    assert rows == expected


def test_what_was_deleted_ends_the_query_or_is_a_row_of_kind_expired(spark: Any, source: str, topic_name: str) -> None:
    create(source, topic_name)
    write(source, topic_name)
    bounds = {"startingOffsets": json.dumps({topic_name: {"0": 0, "1": -1}}), "batches": "all"}
    before = batches_of(spark, source, topic_name, **bounds).orderBy("base_offset").collect()
    third = before[2].base_offset
    strict = batches_of(spark, source, topic_name, **bounds)
    lenient = batches_of(spark, source, topic_name, failOnDataLoss="false", **bounds)
    admin = AdminClient({"bootstrap.servers": source})
    for future in admin.delete_records([TopicPartition(topic_name, 0, third)]).values():
        future.result(20)
    with pytest.raises(PySparkException, match=f"expected offset 0, source log starts at {third}"):
        strict.collect()
    rows = lenient.orderBy("base_offset").collect()
    assert (rows[0].kind, rows[0].base_offset, rows[0].last_offset, rows[0].payload) == ("expired", 0, third - 1, None)
    assert rows[1:] == before[2:]


def test_a_mistake_in_an_option_names_the_option_before_anything_is_read(spark: Any, source: str) -> None:
    with pytest.raises(AnalysisException, match="did you mean subscribe"):
        spark.read.format(kafka_batches.NAME).options(**{"kafka.bootstrap.servers": source, "subscrbe": "t"}).load().collect()


def test_a_topic_by_name_must_exist_a_pattern_may_match_nothing(spark: Any, source: str, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="subscribe: there is no topic missing"):
        batches_of(spark, source, "missing").count()
    with pytest.raises(PySparkException, match="subscribe: there is no topic missing"):
        stream_into_rows(spark, source, "missing", tmp_path / "checkpoint")
    options = {"kafka.bootstrap.servers": source, "subscribePattern": "missing.*"}
    assert spark.read.format(kafka_batches.NAME).options(**options).load().count() == 0
