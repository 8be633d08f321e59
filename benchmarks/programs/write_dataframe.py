"""Writes the rows of Parquet files to a topic several times, and prints what each time took as JSON. The first three warm up.

    python -m benchmarks.programs.write_dataframe JOB, where JOB has tool, bootstrap, topic, rows, codec, runs, folder, jars

CPU is that of this process with its JVM and workers, without the start. Every setting is in this file. `noop` only reads the
rows with Spark: what both sinks cost besides.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.meter import ProcessTree
from benchmarks.programs.spark_copy import MASTER, SESSION, SINK

PRODUCER = {
    "enable.idempotence": True,
    "batch.size": 1_000_000,
    "batch.num.messages": 10_000,
    "linger.ms": 100,
    "queue.buffering.max.kbytes": 131_072,
    "queue.buffering.max.messages": 1_000_000,
    "partitioner": "murmur2_random",
}
TUNED_SESSION = {
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.sql.execution.arrow.maxBytesPerBatch": "2147483647",
}
"""As docs/how-to/dataframes.md recommends: with another limit of bytes Spark computes the size of a batch for every row."""
ROWS_AT_ONCE = 10_000
WARM_UPS = 3
"""Java compiles what runs often: with fewer, that is most of what is measured."""

Write = Callable[[int], None]


def main() -> None:
    job = json.loads(sys.argv[1])
    write = {"confluent-kafka": confluent_writer}.get(job["tool"], _spark)(job)
    tree = ProcessTree(os.getpid())
    times = []
    for number in range(WARM_UPS + job["runs"]):
        cpu_s, began = tree.cpu_s(), time.monotonic()
        write(number)
        times.append({"seconds": time.monotonic() - began, "cpu_s": tree.cpu_s() - cpu_s})
    print(json.dumps(times[WARM_UPS:]))


def _spark(job: dict[str, Any]) -> Write:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(MASTER).appName("write-dataframe").config("spark.jars", job["jars"])
    tuned = TUNED_SESSION if job["tool"] == "shallow-mirror-tuned" else {}
    for name, value in (SESSION | tuned | {"spark.local.dir": f"{job['folder']}/local"}).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    rows = spark.read.parquet(job["rows"])
    if job["tool"] == "noop":
        return lambda _number: rows.write.format("noop").mode("overwrite").save()
    if job["tool"] == "spark-kafka":
        options = SINK | {"kafka.bootstrap.servers": job["bootstrap"], "kafka.compression.type": job["codec"]}
        return lambda _number: rows.write.format("kafka").option("topic", job["topic"]).options(**options).save()
    from shallow_mirror import ExactlyOnceKafkaSink

    sink = ExactlyOnceKafkaSink(
        name=job["topic"],
        client={"bootstrap.servers": job["bootstrap"]},
        tables=f"{job['folder']}/tables",
        topic=job["topic"],
        codec=job["codec"],
    )
    return lambda number: _require(sink.write(rows, job_id=str(number)))


def _require(is_written: bool) -> None:
    assert is_written


def confluent_writer(job: dict[str, Any]) -> Write:
    """Return a function that writes the rows of `job` to its topic, in its codec."""
    import pyarrow.parquet as pq
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": job["bootstrap"], "compression.type": job["codec"], **PRODUCER})
    topic = job["topic"]

    def write(_number: int) -> None:
        for file in sorted(Path(job["rows"]).glob("*.parquet")):
            for batch in pq.ParquetFile(file).iter_batches(ROWS_AT_ONCE):
                for key, value in zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True):
                    while True:
                        try:
                            producer.produce(topic, value, key)
                        except BufferError:
                            producer.poll(0.1)
                        else:
                            break
                producer.poll(0)
        if producer.flush(60):
            raise SystemExit("records were left unsent")

    return write


if __name__ == "__main__":
    main()
