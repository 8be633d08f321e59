"""A DataFrame sink through Spark Connect, whose server runs a copy of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.streaming.dataframes.test_on_brokers import Query, Topic
from tests.support.connect_server import client_of, connect_server

from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.local_kafka.ports import free_ports

pytest.importorskip("grpc", reason="needs pyspark[connect]: make sparks")
pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.long]


def test_a_copy_of_the_sink_writes_each_micro_batch_once(target_cluster: LocalKafka, topic_name: str, tmp_path: Path) -> None:
    topic, (port,) = Topic(target_cluster, topic_name, tmp_path / "tables"), free_ports(1)
    with connect_server(tmp_path, port):
        spark = client_of(port)
        query = Query(spark, tmp_path / "query")
        query.add(20)
        query.add(10)
        query.run(topic.sink())
        newest = sorted((tmp_path / "query/checkpoint/commits").glob("[0-9]*"))[-1]
        newest.unlink()  # Spark runs the micro-batch again
        (newest.parent / f".{newest.name}.crc").unlink()
        query.add(5)
        query.run(topic.sink())
        spark.stop()
    assert sorted(topic.values()) == query.expected
