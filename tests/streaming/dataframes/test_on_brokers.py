"""DataFrames of Spark to a real broker, read by librdkafka."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from tests.support.mirror_runs import CrashAt, KillWorkerOnce

from shallow_mirror import ConfigError, ExactlyOnceKafkaSink, RecordRefusedError
from shallow_mirror.local_kafka.cluster import LocalKafkaCluster
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.sinks import Observer, observe_nothing

pytestmark = [pytest.mark.brokers, pytest.mark.spark]

PARTITIONS = 3
Headers = list[tuple[str, bytes | None]]
Read = tuple[int, bytes | None, bytes | None, Headers, int]
"""Partition, key, value, headers, timestamp in ms."""


class Topic:
    """A topic of three partitions."""

    def __init__(self, cluster: LocalKafka | LocalKafkaCluster, name: str, tables: Path) -> None:
        self.bootstrap, self.name, self._tables = cluster.bootstrap, name, tables
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        kept = {"retention.ms": "-1"}  # whatever the timestamps are
        admin.create_topics([NewTopic(name, PARTITIONS, 1, config=kept)])[name].result()

    def sink(self, observer: Observer = observe_nothing, **settings: Any) -> ExactlyOnceKafkaSink:
        arguments = {"name": self.name, "tables": str(self._tables), "topic": self.name, "slots": 4, **settings}
        return ExactlyOnceKafkaSink(observer=observer, client={"bootstrap.servers": self.bootstrap}, **arguments)

    def read(self) -> list[Read]:
        """Return all committed records, those of a partition in order."""
        config = {
            "bootstrap.servers": self.bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
        with contextlib.closing(Consumer(config)) as consumer:
            reading = set(range(PARTITIONS))
            consumer.assign([TopicPartition(self.name, partition, 0) for partition in reading])
            records = []
            while reading:
                for message in consumer.consume(1000, 1.0):
                    if message.error() is not None:
                        assert message.error().name() == "_PARTITION_EOF", message.error()
                        reading.discard(message.partition())
                    else:
                        key, value, headers = message.key(), message.value(), message.headers() or []
                        records.append((message.partition(), key, value, headers, message.timestamp()[1]))
        return records

    def values(self) -> list[str]:
        return [(value or b"").decode() for _, _, value, _, _ in self.read()]


@pytest.fixture
def topic(target_cluster: LocalKafka, topic_name: str, tmp_path: Path) -> Topic:
    return Topic(target_cluster, topic_name[-80:], tmp_path / "tables")


class Query:
    """A query over JSON files, each of them a micro-batch."""

    def __init__(self, spark: Any, folder: Path) -> None:
        self._spark, self._folder = spark, folder
        folder.mkdir()
        self._written = 0

    def add(self, count: int) -> None:
        ids = self._spark.range(self._written, self._written + count, 1, 2)
        ids.selectExpr("cast(id as string) id").coalesce(1).write.mode("append").json(str(self._folder / "rows"))
        self._written += count

    @property
    def expected(self) -> list[str]:
        return sorted(map(str, range(self._written)))

    def run(self, sink: ExactlyOnceKafkaSink, checkpoint: str = "checkpoint") -> None:
        rows = self._spark.readStream.schema("id string").option("maxFilesPerTrigger", 1).json(str(self._folder / "rows"))
        with sink:
            query = (
                rows.selectExpr("id key", "id value")
                .repartition(3)
                .writeStream.foreachBatch(sink)
                .option("checkpointLocation", str(self._folder / checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()


@pytest.fixture
def query(spark: Any, tmp_path: Path) -> Query:
    return Query(spark, tmp_path / "query")


def java_partitions(bootstrap: str, topic: str, keys: Sequence[bytes]) -> dict[bytes, int]:
    """Return the partition that librdkafka's port of Java's partitioner gives each key."""
    chosen: dict[bytes, int] = {}
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"})
    for key in keys:
        producer.produce(topic, b"", key, on_delivery=lambda _error, message: chosen.update({message.key(): message.partition()}))
    producer.flush(10)
    return chosen


@pytest.mark.smoke
@pytest.mark.parametrize(
    "codec", ["none", pytest.param("gzip", marks=pytest.mark.long), pytest.param("snappy", marks=pytest.mark.long), "lz4", "zstd"]
)
def test_every_field_arrives_in_every_codec_where_java_would_put_it(spark: Any, topic: Topic, codec: str) -> None:
    rows = spark.range(0, 500, 1, 3).selectExpr(
        "case when id % 7 = 0 then null else concat('customer ', id) end key",
        "case when id % 11 = 0 then null else cast(repeat(id, 40) as binary) end value",
        "case when id % 3 = 0 then null else array(struct('a' as key, cast(cast(id as string) as binary) as value), "
        "struct('b' as key, cast(null as binary) as value)) end headers",
        "timestamp_millis(1700000000000 + id) timestamp",
    )
    with topic.sink(codec=codec, batch_bytes=4096) as sink:
        assert sink.write(rows, job_id="1")
        assert not sink.write(rows, job_id="1")
    got = {at: (key, value, headers) for _, key, value, headers, at in topic.read()}
    assert len(got) == 500
    for row in rows.selectExpr("*", "unix_millis(timestamp) ms").collect():
        headers = [] if row.headers is None else [(header.key, header.value and bytes(header.value)) for header in row.headers]
        assert got[row.ms] == (row.key and row.key.encode(), row.value and bytes(row.value), headers)
    keys = {key: partition for partition, key, *_ in topic.read() if key is not None}
    assert keys == java_partitions(topic.bootstrap, topic.name, list(keys))


@pytest.mark.smoke
def test_a_query_that_fails_and_starts_again_writes_each_row_once(
    topic: Topic, query: Query, crash_points: None, tmp_path: Path
) -> None:
    query.add(20)
    for point in ("RunSlots", "Decide", "EndTxn"):
        query.add(30)
        with pytest.raises(Exception, match=point):
            query.run(topic.sink(CrashAt(point)))
    query.add(10)
    query.run(topic.sink(KillWorkerOnce("task.receipt", tmp_path / "killed")))
    assert (tmp_path / "killed").exists()
    query.run(topic.sink())
    assert sorted(topic.values()) == query.expected


def test_a_slot_that_is_aborted_behind_the_decision_is_written_again_and_no_other(
    topic: Topic, query: Query, crash_points: None
) -> None:
    query.add(40)
    with pytest.raises(Exception, match="Decide"):
        query.run(topic.sink(CrashAt("Decide")))
    # As a timeout of the transaction, or a task that Spark has given up, and that takes a new epoch.
    Producer({"bootstrap.servers": topic.bootstrap, "transactional.id": f"{topic.name}-1"}).init_transactions(20)
    assert topic.values() == []
    query.add(10)
    query.run(topic.sink())
    assert sorted(topic.values()) == query.expected


def test_a_lost_checkpoint_repeats_nothing_by_itself(topic: Topic, query: Query) -> None:
    query.add(20)
    query.run(topic.sink())
    with pytest.raises(Exception, match="of another query\\. A new checkpoint begins at batch 0 again"):
        query.run(topic.sink(), "another")
    assert sorted(topic.values()) == query.expected


def test_tables_of_a_backup_are_refused_until_the_lost_run_is_named(topic: Topic, query: Query, tmp_path: Path) -> None:
    query.add(20)
    query.run(topic.sink())
    shutil.copytree(tmp_path / "tables", tmp_path / "backup")
    query.add(30)
    query.run(topic.sink())
    shutil.rmtree(tmp_path / "tables")
    (tmp_path / "backup").rename(tmp_path / "tables")
    query.add(10)
    with pytest.raises(Exception, match="the tables are older than the target") as refused:
        query.run(topic.sink())
    assert "it continues behind batch 1 of query" in str(refused.value)
    named = re.search("lost_run='([^']+)'", str(refused.value))
    assert named is not None
    query.run(topic.sink(lost_run=named[1]))
    assert sorted(topic.values()) == query.expected


def test_columns_and_rows_that_cannot_be_written_are_refused(spark: Any, topic: Topic) -> None:
    rows = spark.range(0, 10, 1, 2)
    with topic.sink(topic=None) as sink:
        with pytest.raises(ConfigError, match=r"no column topic.*\n.*column value: bigint, expected string or binary: cast it"):
            sink.write(rows.selectExpr("id value"), job_id="1")
        with pytest.raises(RecordRefusedError, match=r"row 2 of partition 1 of the DataFrame: its topic is null"):
            sink.write(rows.selectExpr(f"if(id = 7, null, '{topic.name}') topic", "'' value"), job_id="1")
        assert topic.read() == []
        assert sink.write(rows.selectExpr(f"'{topic.name}' topic", "'' value"), job_id="1")
    assert len(topic.read()) == 10


def test_an_error_of_the_code_of_the_dataframe_leaves_nothing_open(spark: Any, topic: Topic) -> None:
    with topic.sink() as sink:
        with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
            sink.write(spark.range(0, 100, 1, 2).selectExpr("cast(1 / (id - 90) as string) value"), job_id="1")
        assert sink.write(spark.range(0, 100, 1, 2).selectExpr("cast(id as string) value"), job_id="1")
    assert len(topic.read()) == 100
