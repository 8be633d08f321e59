"""A DataFrame sink through Spark Connect, whose server runs a copy of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyspark
import pytest
from tests.streaming.dataframes.test_on_brokers import Query, Topic
from tests.support.connect_server import client_of, connect_server, settings_of_delta

from shallow_mirror import WrittenRecords
from shallow_mirror.local_kafka.jars import DELTA_FOR_SPARK
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.local_kafka.ports import free_ports

pytest.importorskip("grpc", reason="needs pyspark[connect]: make sparks")
SCHEMA = "spark_catalog.written"

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.long]


@pytest.mark.parametrize("is_catalog", [False, True], ids=["folder", "catalog"])
def test_a_copy_of_the_sink_writes_each_micro_batch_once(
    target_cluster: LocalKafka, topic_name: str, tmp_path: Path, is_catalog: bool
) -> None:
    if is_catalog and not pyspark.__version__.startswith(DELTA_FOR_SPARK):
        pytest.skip(f"Delta has no jars for Spark {pyspark.__version__}")
    if is_catalog and pyspark.__version__.startswith("4.0"):
        pytest.skip("tables of a catalog through Spark Connect need PySpark 4.1")
    topic, (port,) = Topic(target_cluster, topic_name, tmp_path / "tables"), free_ports(1)
    tables: dict[str, Any] = {"tables": {"schema": SCHEMA}} if is_catalog else {}
    with connect_server(tmp_path, port, further=settings_of_delta() if is_catalog else None):
        spark = client_of(port)
        if is_catalog:
            spark.sql(f"CREATE SCHEMA {SCHEMA} LOCATION '{tmp_path}/schema'")
        query = Query(spark, tmp_path / "query")
        query.add(20)
        query.add(10)
        query.run(topic.sink(**tables))
        newest = sorted((tmp_path / "query/checkpoint/commits").glob("[0-9]*"))[-1]
        newest.unlink()  # Spark runs the micro-batch again
        (newest.parent / f".{newest.name}.crc").unlink()
        query.add(5)
        query.run(topic.sink(**tables))
        if is_catalog:
            written = WrittenRecords.open(f"catalog:{SCHEMA}", spark, name=topic.name)
            assert sum(written.newest()["record_count"].to_pylist()) == 5
        spark.stop()
    assert sorted(topic.values()) == query.expected
