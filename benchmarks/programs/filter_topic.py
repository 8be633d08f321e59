"""Copies topics several times, as they are or filtered, and prints what each time took as JSON. The first ones warm up.

    python -m benchmarks.programs.filter_topic JOB, where JOB has tool, source, target, topics, runs, folder

`mirror` copies record batches; `filter` opens them (`kafka-batches`), keeps half of the records, and writes these with the
exactly-once sink. Every setting is in this file. CPU is that of this process with its JVM and workers, without Spark's start.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle

from benchmarks.meter import ProcessTree
from shallow_mirror import ExactlyOnceKafkaSink, Mirror, TopicPartition, local_session, open_batch, register_kafka_batches
from shallow_mirror.config import MirrorConfig

CORES = 2
RECORDS = "key binary, value binary, timestamp timestamp"
KEPT = "get_json_object(cast(value as string), '$.status') = 'accepted' and substring(cast(key as string), 8, 1) < '5'"
"""Parses every value, and keeps half of the records."""
WARM_UPS = 2
_SAMPLED_EVERY_S = 0.2

Copy = Callable[[str, Path], None]
"""(topic of both clusters, folder of this time)."""


def main() -> None:
    job = json.loads(sys.argv[1])
    spark = local_session("filter-topic", cores=CORES, log_file=Path(job["folder"]) / "spark.log")
    register_kafka_batches(spark)
    copy = (_mirror if job["tool"] == "mirror" else _filter)(spark, job)
    tree = ProcessTree(os.getpid())
    times = []
    for number in range(WARM_UPS + job["runs"]):
        for topic in job["topics"]:
            with _sampled(tree):
                cpu_s, began = tree.cpu_s(), time.monotonic()
                copy(topic, Path(job["folder"]) / f"{job['tool']}-{topic}-{number}")
                spent = {"topic": topic, "seconds": time.monotonic() - began, "cpu_s": tree.cpu_s() - cpu_s}
            if number >= WARM_UPS:
                times.append(spent)
    spark.stop()
    print(json.dumps(times))


@contextmanager
def _sampled(tree: ProcessTree) -> Iterator[None]:
    """Look at the tree again and again, so that processes that end meanwhile are counted."""
    is_over = threading.Event()

    def sample() -> None:
        while not is_over.wait(_SAMPLED_EVERY_S):
            tree.cpu_s()

    sampling = threading.Thread(target=sample, name="samples")
    sampling.start()
    try:
        yield
    finally:
        is_over.set()
        sampling.join()


def _mirror(spark: Any, job: dict[str, Any]) -> Copy:
    def copy(topic: str, folder: Path) -> None:
        folder.mkdir()
        document = {
            "mirror": folder.name,
            "source": {"alias": "source", "client": {"bootstrap.servers": job["source"]}},
            "target": {"alias": "target", "client": {"bootstrap.servers": job["target"]}},
            "topics": {"include": [topic]},
            "tables": "tables",
        }
        Mirror(MirrorConfig.from_document(document, folder=folder)).run(spark, available_now=True)

    return copy


def _filter(spark: Any, job: dict[str, Any]) -> Copy:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])

    def copy(topic: str, folder: Path) -> None:
        options = {"kafka.bootstrap.servers": job["source"], "subscribe": topic, "startingOffsets": "earliest"}
        batches = spark.readStream.format("kafka-batches").options(**options).load()
        client = {"bootstrap.servers": job["target"]}
        tables = str(folder / "tables")
        with ExactlyOnceKafkaSink(name=folder.name, client=client, tables=tables, topic=topic) as sink:
            query = batches.mapInArrow(records, RECORDS).where(KEPT).writeStream.foreachBatch(sink)
            query.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True).start().awaitTermination()

    return copy


def records(arrow_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the records of record batches; as in docs/how-to/dataframes.md."""
    for rows in arrow_batches:
        opened = [
            (bytes(record.key or b""), bytes(record.value or b""), record.timestamp_ms * 1000)
            for topic, partition, payload in zip(rows["topic"], rows["partition"], rows["payload"], strict=True)
            for record in open_batch(
                memoryview(payload.as_buffer()), TopicPartition(topic.as_py(), partition.as_py()), max_bytes=64 << 20
            )
        ]
        keys, values, times = zip(*opened, strict=True) if opened else ((), (), ())
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(keys, pa.binary()),
                pa.array(values, pa.binary()),
                pa.array(times, pa.timestamp("us", tz="UTC")),
            ],
            ["key", "value", "timestamp"],
        )


if __name__ == "__main__":
    main()
