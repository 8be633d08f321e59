"""Spark's own Kafka source and sink in one query, availableNow; or the source and a Delta table, as archives of records are made.

    python spark_copy.py JOB, where JOB is that of confluent_copy.py, with "jars" and "folder", and "table" for a Delta table

With "ca" in the JOB, a PEM file, both connections are TLS and check the host name, as Java clients do by default.
The Kafka sink writes no timestamps: records get those of the copy. Every setting is in this file.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter

SESSION = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "1",
}
MASTER = "local[2]"
SOURCE = {
    "startingOffsets": "earliest",
    "includeHeaders": "true",
    "kafka.isolation.level": "read_committed",
    "kafka.max.poll.records": "5000",
    "kafka.max.partition.fetch.bytes": "4194304",
    "kafka.receive.buffer.bytes": "1048576",
}
SINK = {
    "kafka.batch.size": "1000000",
    "kafka.linger.ms": "100",
    "kafka.buffer.memory": "67108864",
    "kafka.max.request.size": "10485760",
    "kafka.send.buffer.bytes": "1048576",
}
"""And the codec of the source."""
DELTA_SESSION = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
DELTA_CODEC = {"zstd": "zstd"}
"""By the codec of the source; Spark's default for others."""


def copy(job: dict[str, Any]) -> None:
    builder = SparkSession.builder.master(MASTER).appName("spark-kafka").config("spark.jars", job["jars"])
    session = SESSION | {"spark.local.dir": f"{job['folder']}/local"}
    if "table" in job:
        session |= DELTA_SESSION | {"spark.sql.parquet.compression.codec": DELTA_CODEC.get(job["codec"], "snappy")}
    for name, value in session.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    source = spark.readStream.format("kafka").options(
        **SOURCE, **_security(job), **{"kafka.bootstrap.servers": job["source"], "subscribe": job["source_topic"]}
    )
    records = source.load()
    sink = _to_table(records, job) if "table" in job else _to_topic(records, job)
    sink.option("checkpointLocation", f"{job['folder']}/checkpoint").trigger(availableNow=True).start().awaitTermination()
    spark.stop()


def _to_topic(records: DataFrame, job: dict[str, Any]) -> DataStreamWriter:
    sink = records.select("key", "value", "headers", "partition").writeStream.format("kafka").option("topic", job["target_topic"])
    return sink.options(
        **SINK, **_security(job), **{"kafka.bootstrap.servers": job["target"], "kafka.compression.type": job["codec"]}
    )


def _security(job: dict[str, Any]) -> dict[str, str]:
    if "ca" not in job:
        return {}
    return {"kafka.security.protocol": "SSL", "kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": job["ca"]}


def _to_table(records: DataFrame, job: dict[str, Any]) -> DataStreamWriter:
    return records.writeStream.format("delta").option("path", job["table"])


if __name__ == "__main__":
    copy(json.loads(sys.argv[1]))
