"""A topic of JSON to another cluster: copied by a mirror, and filtered by a query with the exactly-once sink.

    python -m benchmarks.filtering_mirror [--mb 300] [--value-bytes 1000] [--runs 3] [--codec lz4]

Each tool copies a small topic and one of `--mb` in turn, in a process of its own. CPU s/GB and MB/s are of the difference,
without the cost of a start. GB and MB are of keys and values of the source. Medians of `--runs` times after two that warm up.
`load` is that of the machine in the minute before a tool has ended.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.dataframe_sink import PARTITIONS, SHORT_RETENTION, write_rows
from benchmarks.programs.write_dataframe import confluent_writer
from benchmarks.topics import create_topic
from shallow_mirror.local_kafka import start_clusters, stop_clusters

TOOLS = ("mirror", "filter")
SMALL_BYTES = 10_000_000


def copied(tool: str, source: str, target: str, topics: list[str], runs: int, folder: Path) -> list[dict[str, Any]]:
    """Return topic, seconds and CPU seconds of each copy."""
    job = {"tool": tool, "source": source, "target": target, "topics": topics, "runs": runs, "folder": str(folder)}
    program = [sys.executable, "-m", "benchmarks.programs.filter_topic", json.dumps(job)]
    done = subprocess.run(program, check=True, stdout=subprocess.PIPE, stderr=sys.stderr, text=True)
    times: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return times


def marginal(times: Sequence[dict[str, Any]], small: Sequence[dict[str, Any]], name: str) -> float:
    """Return the median of the large topic without that of the small one."""
    return float(statistics.median(each[name] for each in times) - statistics.median(each[name] for each in small))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=int, default=300)
    parser.add_argument("--value-bytes", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--codec", default="lz4")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source, target = nodes = start_clusters(folder / "kafka", 2)
        try:
            sizes = {}
            for name, size in (("small", SMALL_BYTES), ("large", options.mb * 1_000_000)):
                sizes[name] = write_rows(folder / name, size, options.value_bytes)
                create_topic(source.bootstrap, name, PARTITIONS, {})
                rows = {"bootstrap": source.bootstrap, "topic": name, "rows": folder / name, "codec": options.codec}
                confluent_writer(rows)(0)
                create_topic(target.bootstrap, name, PARTITIONS, SHORT_RETENTION)
            print(f"{'tool':10}{'CPU s/GB':>10}{'MB/s':>8}{'load':>8}")
            cpu_of = {}
            for tool in TOOLS:
                times = copied(tool, source.bootstrap, target.bootstrap, list(sizes), options.runs, folder)
                large, small = ([each for each in times if each["topic"] == name] for name in ("large", "small"))
                size_gb = (sizes["large"] - sizes["small"]) / 1e9
                cpu_of[tool] = marginal(large, small, "cpu_s") / size_gb
                speed = size_gb * 1000 / marginal(large, small, "seconds")
                print(f"{tool:10}{cpu_of[tool]:10.2f}{speed:8.1f}{os.getloadavg()[0]:8.1f}", flush=True)
            print(f"filter / mirror: {cpu_of['filter'] / cpu_of['mirror']:.1f} times the CPU")
        finally:
            stop_clusters(nodes)


if __name__ == "__main__":
    main()
