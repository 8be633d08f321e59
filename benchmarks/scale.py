"""python benchmarks/scale.py PART: what grows with partitions and with time, and how much.

partitions  CPU of planning and of the driver by micro-batch, 10 to 5,000 partitions of which 10 have something new. Real broker.
mirror      the same with Spark, of the whole process tree: driver, planner, JVM, workers. Two real clusters.
growth      24 hours of decisions of 8 partitions, one every 2 seconds, without pauses: files, sizes, times of compaction.
start       start-up from a map of many rows, and the reading commands on it.
commands    from the start of the process to its answer, with a map of 100,000 rows.

Figures are of this machine; several runs need it quiet.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer

from shallow_mirror.broker.client_config import ClientConfig
from shallow_mirror.broker.cluster import Cluster
from shallow_mirror.broker.topics import TopicSpec, ensure_topics
from shallow_mirror.checkpoints.offset_map import OffsetMap
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.local_kafka.node import LocalKafka, start_clusters, stop_clusters
from shallow_mirror.streaming.mirror_ranges import RangeStreamReader
from shallow_mirror.streaming.planned_stream import options_of_mirror
from shallow_mirror.types import IsolationLevel, TopicPartition

COUNTS = (10, 100, 1000, 5000)
ACTIVE = 10
PARTITIONS_A_TOPIC = 100
ROUNDS = 30
SMALL_LOGS = {"log.index.size.max.bytes": "4096", "log.retention.check.interval.ms": "3600000"}
"""Index files are made as large as they may get."""

HOUR_S = 3600
DECISION_EVERY_S = 2
MAP_PARTITIONS = 8
RECORDS_A_DECISION = 100

MIRROR = """
mirror: scale
source: {{alias: east, client: {{bootstrap.servers: "{source}"}}}}
target: {{alias: west, client: {{bootstrap.servers: "{target}"}}}}
topics: {{include: ["part.*"]}}
tables: tables
trigger: 1 second
"""


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="shallow-mirror-scale-") as name:
        yield Path(name)


def write_conf(folder: Path, source: str, target: str) -> MirrorConfig:
    (folder / "mirror.yaml").write_text(MIRROR.format(source=source, target=target))
    return MirrorConfig.load(folder / "mirror.yaml")


class Topics:
    """So many partitions at the source; `write` gives ACTIVE of them a record each."""

    def __init__(self, bootstrap: str, partitions: int) -> None:
        each = min(partitions, PARTITIONS_A_TOPIC)
        self._names = [f"part{number:03}" for number in range(partitions // each)]
        self._each, self._count = each, partitions
        self.client = ClientConfig.from_properties({"bootstrap.servers": bootstrap})
        for name in self._names:
            ensure_topics(self.client, [TopicSpec(name, each, 1, {})], timeout_s=60)
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        self._await_all()

    def _await_all(self) -> None:
        with closing(Cluster(self.client)) as cluster:
            while True:
                deadline = Deadline.after_ms(60_000, time.monotonic)
                topics = cluster.metadata(self._names, deadline).topics
                places = [
                    TopicPartition(name, one.partition)
                    for name, topic in topics.items()
                    for one in topic.partitions.values()
                    if one.leader >= 0
                ]
                if len(places) == self._count:
                    cluster.latest_offsets(places, IsolationLevel.READ_COMMITTED, deadline)
                    return
                time.sleep(0.5)

    def write(self) -> None:
        for number in range(ACTIVE):
            self._producer.produce(self._names[number % len(self._names)], os.urandom(500), partition=number % self._each)
        self._producer.flush()


def measure_planning(counts: list[int]) -> list[dict[str, Any]]:
    """What Spark asks the planner before and in a micro-batch, through the data source's own reader. Medians, in ms of CPU."""
    return [_planning_of(count) for count in counts]


def _planning_of(count: int) -> dict[str, Any]:
    with scratch() as folder, LocalKafka(folder / "kafka", properties=SMALL_LOGS) as kafka:
        topics = Topics(kafka.bootstrap, count)
        options = options_of_mirror(write_conf(folder, kafka.bootstrap, kafka.bootstrap), "map", parallelism=2)
        reader = RangeStreamReader(options)
        start = reader.initialOffset()
        active: list[float] = []
        idle: list[float] = []
        for _ in range(ROUNDS):
            topics.write()
            began = time.process_time()
            end = as_spark_returns(reader.latestOffset(start, None))
            partitions = reader.partitions(start, end)
            active.append(time.process_time() - began)
            ranges = sum(len(one.ranges) for one in partitions)  # type: ignore[attr-defined]
            began = time.process_time()
            assert reader.latestOffset(end, None) == end
            idle.append(time.process_time() - began)
            start = end
        assert ranges == ACTIVE
        return {
            "partitions": count,
            "active": ACTIVE,
            "planning_cpu_ms": round(1000 * statistics.median(active[5:]), 2),
            "idle_trigger_cpu_ms": round(1000 * statistics.median(idle[5:]), 2),
            "stream_offset_bytes": len(json.dumps(start)),
        }


def as_spark_returns(offset: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(offset)))


ROLES = ("driver", "planner", "jvm", "workers")


def cpu_by_role(root: psutil.Process) -> dict[str, float]:
    """Seconds so far."""
    seconds = dict.fromkeys(ROLES, 0.0)
    for one in (root, *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            seconds[role_of(one, root)] += times.user + times.system
    return seconds


def role_of(process: psutil.Process, root: psutil.Process) -> str:
    if process.pid == root.pid:
        return "driver"
    if process.name() == "java":
        return "jvm"
    return "workers" if "pyspark.daemon" in process.cmdline() else "planner"


def measure_mirror(counts: list[int], seconds: float) -> list[dict[str, Any]]:
    """CPU of a running mirror by micro-batch, and by trigger where nothing is new, in ms."""
    return [_mirror_of(count, seconds) for count in counts]


def _mirror_of(count: int, seconds: float) -> dict[str, Any]:
    with scratch() as folder:
        clusters = start_clusters(folder / "kafka", 2, properties=SMALL_LOGS)
        try:
            source, target = clusters
            topics = Topics(source.bootstrap, count)
            config = write_conf(folder, source.bootstrap, target.bootstrap)
            with running_mirror(folder) as root:
                while micro_batches(config) < 1:
                    assert root.is_running(), (folder / "mirror.log").read_text()
                    time.sleep(1)
                window(topics, config, root, 10.0, is_writing=True)  # warm
                active = window(topics, config, root, seconds, is_writing=True)
                time.sleep(3)
                idle = window(topics, config, root, seconds / 2, is_writing=False)
            assert idle["micro_batches"] == 0, "a micro-batch began that had nothing to do"
        finally:
            stop_clusters(clusters)
    return {
        "partitions": count,
        "active": ACTIVE,
        "micro_batches": active["micro_batches"],
        **{f"{role}_cpu_ms": round(1000 * active[role] / active["micro_batches"], 1) for role in ROLES},
        **{f"idle_{role}_cpu_ms": round(1000 * idle[role] / (seconds / 2), 1) for role in ROLES},
    }


@contextmanager
def running_mirror(folder: Path) -> Iterator[psutil.Process]:
    command = [sys.executable, "-m", "shallow_mirror.cli", "run", str(folder / "mirror.yaml")]
    with (folder / "mirror.log").open("w") as log:
        mirror = subprocess.Popen(command, stderr=log, stdout=log)
        try:
            yield psutil.Process(mirror.pid)
        finally:
            mirror.terminate()
            mirror.wait(60)


def micro_batches(config: MirrorConfig) -> int:
    """Decisions so far, the first of which only says where partitions begin."""
    with suppress(ConfigError):
        recorded = OffsetMap.open(config.tables).recorded()
        return 0 if recorded is None else recorded.micro_batch
    return 0


def window(topics: Topics, config: MirrorConfig, root: psutil.Process, seconds: float, *, is_writing: bool) -> dict[str, float]:
    before, first = cpu_by_role(root), micro_batches(config)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if is_writing:
            topics.write()
        time.sleep(0.2)
    used = {role: after - before[role] for role, after in cpu_by_role(root).items()}
    return {**used, "micro_batches": micro_batches(config) - first}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("partitions", "mirror"))
    parser.add_argument("--counts", type=lambda text: [int(one) for one in text.split(",")], default=list(COUNTS))
    parser.add_argument("--seconds", type=float, default=30.0, help="of each window of `mirror`")
    options = parser.parse_args()
    for row in (
        measure_planning(options.counts) if options.part == "partitions" else measure_mirror(options.counts, options.seconds)
    ):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
