"""make bench: copy zstd batches of about 0.3 MB between two local clusters and print MB/s, CPU seconds per GB, peak memory.

CPU and PSS are those of the mirror's whole process tree, sampled from outside. Start-up (until the first micro-batch is
decided) is reported apart. `--gb` is the size of the source log.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable

from shallow_mirror.local_kafka.node import start_clusters, stop_clusters

PARTITIONS = 4
BATCH_BYTES = 1_000_000
MIRROR = """
mirror: bench
read: {{transfer: {transfer}}}
source: {{alias: east, client: {{bootstrap.servers: "{source}"}}}}
target: {{alias: west, client: {{bootstrap.servers: "{target}"}}}}
topics: {{include: [bench]}}
tables: tables
"""


def write_corpus(bootstrap: str, gb: float) -> None:
    """Text-like values that zstd brings to about a third."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("bench", PARTITIONS, 1)])["bench"].result(30)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": "zstd",
            "batch.size": BATCH_BYTES,
            "linger.ms": 1000,
            "queue.buffering.max.kbytes": 262_144,
        }
    )
    values = [(os.urandom(340).hex() + " lorem ipsum dolor sit amet" * 13).encode() for _ in range(1000)]
    written, number = 0, 0
    while written < gb * 1e9 * 2.6:
        try:
            producer.produce("bench", values[number % 1000], partition=number // 1000 % PARTITIONS)
        except BufferError:
            producer.poll(0.1)
            continue
        written += len(values[0])
        number += 1
    producer.flush()


class TreeMeter(threading.Thread):
    """CPU seconds by role and peak PSS of a process and all its children, ended ones included.

    Roles: `driver` (the process itself), `jvm`, `workers` (PySpark's daemon and what it forks, the planner among them).
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.root, self.seen, self.peak_pss_bytes = psutil.Process(pid), dict[int, tuple[str, float]](), 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.5):
            self.sample()

    def sample(self) -> Counter[str]:
        """CPU seconds so far, by role."""
        pss = 0
        try:
            processes = [self.root, *self.root.children(recursive=True)]
        except psutil.NoSuchProcess:
            processes = []
        for process in processes:
            try:
                times = process.cpu_times()
                self.seen[process.pid] = (self._role(process), times.user + times.system)
                pss += process.memory_full_info().pss
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        self.peak_pss_bytes = max(self.peak_pss_bytes, pss)
        by_role: Counter[str] = Counter()
        for role, seconds in self.seen.values():
            by_role[role] += seconds  # type: ignore[assignment]
        return by_role

    def _role(self, process: psutil.Process) -> str:
        if process.pid == self.root.pid:
            return "driver"
        return "jvm" if process.name() == "java" else "workers"


def run_mirror(folder: Path) -> dict[str, float]:
    started = time.monotonic()
    command = [sys.executable, "-m", "shallow_mirror.cli", "run", str(folder / "mirror.yaml"), "--available-now"]
    with (folder / "mirror.log").open("w") as log:
        mirror = subprocess.Popen(command, stderr=log, stdout=log)
        meter = TreeMeter(mirror.pid)
        meter.start()
        while mirror.poll() is None and "micro-batch " not in (folder / "mirror.log").read_text():
            time.sleep(0.1)
        first_at, first_cpu = time.monotonic(), meter.sample()
        if mirror.wait() != 0:
            raise SystemExit(f"the mirror failed:\n{(folder / 'mirror.log').read_text()[-3000:]}")
        meter.over.set()
        steady_cpu = meter.sample() - first_cpu
    rows = (
        DeltaTable(str(folder / "tables" / "offset_map"))
        .to_pyarrow_table(columns=["kind", "size_bytes", "micro_batch"])
        .to_pylist()
    )
    data = [row for row in rows if row["kind"] == "data"]
    first = min(row["micro_batch"] for row in data)
    steady = sum(row["size_bytes"] for row in data if row["micro_batch"] != first)
    if not steady:
        raise SystemExit("everything went into the first micro-batch: give a larger --gb")
    seconds = time.monotonic() - first_at
    return {
        "copied_mb": sum(row["size_bytes"] for row in data) / 1e6,
        "startup_s": first_at - started,
        **{f"startup_{role}_cpu_s": seconds for role, seconds in sorted(first_cpu.items())},
        "steady_mb": steady / 1e6,
        "steady_mb_per_s": steady / 1e6 / seconds,
        "steady_cpu_s_per_gb": steady_cpu.total() / (steady / 1e9),
        **{f"steady_{role}_cpu_s_per_gb": seconds / (steady / 1e9) for role, seconds in sorted(steady_cpu.items())},
        "peak_pss_mb": meter.peak_pss_bytes / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--transfer", choices=["direct", "through-spark"], default="direct")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="shallow-mirror-bench-") as name:
        folder = Path(name)
        clusters = start_clusters(folder / "kafka", 2)
        try:
            source, target = clusters
            print(f"writing {options.gb} GB", file=sys.stderr)
            write_corpus(source.bootstrap, options.gb)
            (folder / "mirror.yaml").write_text(
                MIRROR.format(source=source.bootstrap, target=target.bootstrap, transfer=options.transfer)
            )
            print(json.dumps(run_mirror(folder), indent=2))
        finally:
            stop_clusters(clusters)


if __name__ == "__main__":
    main()
