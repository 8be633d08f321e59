"""A DataFrame of JSON to a topic: the exactly-once sink, Spark's own Kafka sink, and a loop over confluent-kafka.

    python -m benchmarks.dataframe_sink [--mb 300] [--value-bytes 1000] [--runs 3] [--codecs none,lz4] [--tools noop,spark-kafka]

Medians of `--runs` writes after three that warm up, each tool in a process of its own. CPU is that of the process with its JVM
and workers; `net` is without what `noop` takes, which reads the same rows with Spark. MB and GB are of keys and values.
`shallow-mirror-tuned` has the settings of the session that the how-to recommends (`TUNED_SESSION`).
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.names import known_names
from benchmarks.topics import create_topic
from shallow_mirror.local_kafka import start_clusters, stop_clusters
from shallow_mirror.local_kafka.jars import SPARK_KAFKA_JAR_SET, jars_of

TOOLS = ("noop", "spark-kafka", "confluent-kafka", "shallow-mirror", "shallow-mirror-tuned")
PARTITIONS, FILES = 4, 4
SHORT_RETENTION = {"retention.bytes": str(64 << 20), "segment.bytes": str(64 << 20)}
"""Of target topics, which have no readers."""
_RANDOM_SHARE = 0.33
"""Of the bytes of a value."""
_FILLING = '","status":"accepted","currency":"EUR","channel":"web","warehouse":"north","note":"lorem ipsum dolor sit amet" '


def write_rows(folder: Path, size_bytes: int, value_bytes: int) -> int:
    """Write Parquet files with about so many bytes of keys and values. Return the exact number."""
    folder.mkdir()
    chance, total = random.Random(1), 0
    for number in range(FILES):
        count = size_bytes // FILES // (value_bytes + 8)
        keys = [f"{chance.randrange(10**8):08}" for _ in range(count)]
        values = [_json(chance, value_bytes) for _ in range(count)]
        total += sum(map(len, keys)) + sum(map(len, values))
        pq.write_table(pa.table({"key": keys, "value": values}), folder / f"{number}.parquet", compression="none")
    return total


def _json(chance: random.Random, size: int) -> str:
    text = '{"id":"' + base64.b64encode(chance.randbytes(int(size * _RANDOM_SHARE))).decode()
    return (text + _FILLING * (size // len(_FILLING) + 1))[: size - 1] + "}"


def measure(tool: str, codec: str, bootstrap: str, rows: Path, runs: int, folder: Path) -> list[dict[str, float]]:
    """Return the seconds and CPU seconds of each write."""
    topic = f"{tool}-{codec}"
    create_topic(bootstrap, topic, PARTITIONS, SHORT_RETENTION)
    job = {
        "tool": tool,
        "codec": codec,
        "bootstrap": bootstrap,
        "topic": topic,
        "rows": str(rows),
        "runs": runs,
        "folder": str(folder / topic),
        "jars": ",".join(str(jar) for jar in jars_of(SPARK_KAFKA_JAR_SET)),
    }
    program = [sys.executable, "-m", "benchmarks.programs.write_dataframe", json.dumps(job)]
    done = subprocess.run(program, check=True, stdout=subprocess.PIPE, stderr=sys.stderr, text=True)
    times: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return times


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=300)
    parser.add_argument("--value-bytes", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--codecs", default="none,lz4")
    parser.add_argument("--tools", default=",".join(TOOLS))
    options = parser.parse_args(arguments)
    tools = known_names("tool", options.tools.split(","), TOOLS)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        size_gb = write_rows(folder / "rows", options.mb * 1_000_000, options.value_bytes) / 1e9
        nodes = start_clusters(folder / "kafka", 1)
        try:
            print(f"{'codec':8}{'tool':22}{'CPU s/GB':>10}{'net':>8}{'MB/s':>8}")
            for codec in options.codecs.split(","):
                idle_cpu = 0.0
                for tool in tools:
                    times = measure(tool, codec, nodes[0].bootstrap, folder / "rows", options.runs, folder)
                    cpu = statistics.median(each["cpu_s"] for each in times) / size_gb
                    speed = size_gb * 1000 / statistics.median(each["seconds"] for each in times)
                    idle_cpu = cpu if tool == "noop" else idle_cpu
                    net = cpu - (idle_cpu if tool != "confluent-kafka" else 0.0)
                    print(f"{codec:8}{tool:22}{cpu:10.2f}{net:8.2f}{speed:8.1f}", flush=True)
        finally:
            stop_clusters(nodes)


if __name__ == "__main__":
    main()
