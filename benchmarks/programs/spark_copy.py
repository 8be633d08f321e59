"""Spark's own Kafka source and sink in one query, availableNow.

    python spark_copy.py JOB, where JOB is that of confluent_copy.py, with "jars" and "folder" besides

The sink writes no timestamps: records get those of the copy. Every setting is in this file.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

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


def copy(job: dict[str, Any]) -> None:
    builder = SparkSession.builder.master(MASTER).appName("spark-kafka").config("spark.jars", job["jars"])
    for name, value in (SESSION | {"spark.local.dir": f"{job['folder']}/local"}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    source = spark.readStream.format("kafka").options(
        **SOURCE, **{"kafka.bootstrap.servers": job["source"], "subscribe": job["source_topic"]}
    )
    sink = (
        source.load()
        .select("key", "value", "headers", "partition")
        .writeStream.format("kafka")
        .options(**SINK, **{"kafka.bootstrap.servers": job["target"], "kafka.compression.type": job["codec"]})
        .option("topic", job["target_topic"])
        .option("checkpointLocation", f"{job['folder']}/checkpoint")
        .trigger(availableNow=True)
    )
    sink.start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    copy(json.loads(sys.argv[1]))
