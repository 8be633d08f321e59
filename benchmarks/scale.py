"""PYTHONPATH=. python benchmarks/scale.py PART: what grows with partitions and with time, and how much.

partitions  CPU of planning by micro-batch, 10 to 5,000 partitions of which 10 have something new. One real broker.
mirror      the same with Spark, of the whole process tree by role. Two real brokers.
growth      24 hours of decisions of 8 partitions, one every 2 seconds, in a 24th of the time (--pace): times, files, sizes.
start       start-up from a map of 10 million rows (--rows), its memory, and how long reading commands take with it.

One JSON object a line. The machine has to be quiet.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
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

from benchmarks.interrupts import end_on_sigterm
from benchmarks.roles import ROLES, processes_by_role
from benchmarks.running_mirror import running_mirror
from benchmarks.scale_map import DECISION_EVERY_S, measure_growth, measure_start
from shallow_mirror.broker import Cluster
from shallow_mirror.broker.admin import TopicSpec, ensure_topics
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.local_kafka import start_clusters, stop_clusters
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.streaming.sources.planned_ranges import RangeStreamReader
from shallow_mirror.streaming.sources.planner_options import PlannerOptions
from shallow_mirror.types import (
    IsolationLevel,
    TopicPartition,
)

COUNTS = (10, 100, 1000, 5000)
ACTIVE = 10
PARTITIONS_A_TOPIC = 100
ROUNDS = 30
WARM_MICRO_BATCHES = 8
SMALL_LOGS = {"log.index.size.max.bytes": "4096", "log.retention.check.interval.ms": "3600000"}
"""Index files are made as large as they may get."""

MIRROR = """
mirror: scale
source: {{alias: east, client: {{bootstrap.servers: "{source}", request.timeout.ms: {timeout_ms}}}}}
target: {{alias: west, client: {{bootstrap.servers: "{target}", request.timeout.ms: {timeout_ms}}}}}
topics: {{include: ["part.*"]}}
tables: tables
trigger: 1 second
"""


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="shallow-mirror-scale-") as name:
        yield Path(name)


def write_conf(folder: Path, source: str, target: str, timeout_ms: int = 30_000) -> MirrorConfig:
    (folder / "mirror.yaml").write_text(MIRROR.format(source=source, target=target, timeout_ms=timeout_ms))
    return MirrorConfig.load(folder / "mirror.yaml")


class Topics:
    """So many partitions at the source; `write` gives the active ones a record each."""

    def __init__(self, bootstrap: str, partitions: int, active: int = ACTIVE) -> None:
        self._active = active
        each = min(partitions, PARTITIONS_A_TOPIC)
        self._names = [f"part{number:03}" for number in range(partitions // each)]
        self._each, self._count = each, partitions
        self.client = ClientConfig.from_properties({"bootstrap.servers": bootstrap})
        with closing(Cluster(self.client)) as cluster:
            for name in self._names:
                ensure_topics(cluster, [TopicSpec(name, each, 1, {})], Deadline.after_ms(60_000, time.monotonic))
        self._producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
        self._await_all()

    def _await_all(self) -> None:
        with closing(Cluster(self.client)) as cluster:
            while True:
                deadline = Deadline.after_ms(60_000, time.monotonic)
                topics = cluster.metadata(self._names, deadline).topics
                places = [
                    TopicPartition(name, partition.partition)
                    for name, topic in topics.items()
                    for partition in topic.partitions.values()
                    if partition.leader >= 0
                ]
                if len(places) == self._count:
                    cluster.latest_offsets(places, IsolationLevel.READ_COMMITTED, deadline)
                    return
                time.sleep(0.5)

    def write(self) -> None:
        for number in range(self._active):
            self._producer.produce(self._names[number % len(self._names)], os.urandom(500), partition=number % self._each)
        self._producer.flush()


def _planning_of(count: int) -> dict[str, Any]:
    """Measure the planner's part before and in a micro-batch, through the data source's own reader. Medians, in ms of CPU."""
    with scratch() as folder, LocalKafka(folder / "kafka", properties=SMALL_LOGS) as kafka:
        topics = Topics(kafka.bootstrap, count)
        config = write_conf(folder, kafka.bootstrap, kafka.bootstrap)
        reader = RangeStreamReader(PlannerOptions(config=config, map_id="map", parallelism=2).to_spark())
        start = reader.initialOffset()
        active: list[float] = []
        idle: list[float] = []
        for _ in range(ROUNDS):
            topics.write()
            began = time.process_time()
            end = as_spark_returns(reader.latestOffset(start, None))
            partitions = reader.partitions(start, end)
            active.append(time.process_time() - began)
            ranges = sum(len(partition.ranges) for partition in partitions)
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


def cpu_of_processes(pid: int) -> dict[tuple[str, int], float]:
    """Seconds so far, by role and process id."""
    seconds = dict[tuple[str, int], float]()
    for role, process in processes_by_role(pid):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            seconds[role, process.pid] = times.user + times.system
    return seconds


def _mirror_of(count: int, active_count: int, seconds: float) -> dict[str, Any]:
    """CPU of a running mirror by micro-batch, and by second (that is, by trigger) where nothing is new, in ms."""
    with scratch() as folder:
        clusters = start_clusters(folder / "kafka", 2, properties=SMALL_LOGS)
        try:
            source, target = clusters
            topics = Topics(source.bootstrap, count, active_count)
            config = write_conf(folder, source.bootstrap, target.bootstrap)
            with running_mirror(folder / "mirror.yaml") as pid:
                while micro_batches(config) < WARM_MICRO_BATCHES:
                    assert psutil.Process(pid).status() != psutil.STATUS_ZOMBIE, (folder / "mirror.log").read_text()
                    topics.write()
                    time.sleep(1)
                active = window(topics, config, pid, seconds, is_writing=True)
                time.sleep(3)
                idle = window(topics, config, pid, seconds / 2, is_writing=False)
            assert idle["micro_batches"] == 0, "a micro-batch began that had nothing to do"
        finally:
            stop_clusters(clusters)
    return {
        "partitions": count,
        "active": active_count,
        "micro_batches": active["micro_batches"],
        "cpu_ms_a_micro_batch": {role: round(1000 * active[role] / active["micro_batches"], 1) for role in ROLES},
        "cpu_ms_a_second_without_anything_new": {role: round(1000 * idle[role] / (seconds / 2), 1) for role in ROLES},
    }


def micro_batches(config: MirrorConfig) -> int:
    """Decisions so far, the first of which only says where partitions begin."""
    with suppress(ConfigError):
        recorded = OffsetMap.open(config.tables).recorded()
        return 0 if recorded is None else recorded.micro_batch
    return 0


def window(topics: Topics, config: MirrorConfig, pid: int, seconds: float, *, is_writing: bool) -> dict[str, float]:
    before, first = cpu_of_processes(pid), micro_batches(config)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if is_writing:
            topics.write()
        time.sleep(0.2)
    used = dict.fromkeys(ROLES, 0.0)
    for (role, process), after in cpu_of_processes(pid).items():
        used[role] += after - before.get((role, process), 0.0)
    return {**used, "micro_batches": micro_batches(config) - first}


def measure_commands(folder: Path, runs: int = 5) -> dict[str, float]:
    """Medians of the seconds from the start of the process to its end."""
    write_conf(folder, "127.0.0.1:1", "127.0.0.1:1", timeout_ms=200)
    conf, program = str(folder / "mirror.yaml"), Path(sys.executable).with_name("shallow-mirror")
    commands = {
        "translate": ["translate", conf, "orders", "0", "5000"],
        "quarantine_list": ["quarantine", "list", conf],
        "preflight_help": ["preflight", "--help"],
        "status_without_clusters_cpu": ["status", conf],
    }
    return {
        f"{name}_s": median_of(program, arguments, runs, is_cpu=name.endswith("_cpu")) for name, arguments in commands.items()
    }


def median_of(program: Path, arguments: list[str], runs: int, *, is_cpu: bool) -> float:
    """`is_cpu`: of CPU seconds, where a command waits for clusters that are not there."""
    seconds = []
    for _ in range(runs):
        began, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([program, *arguments], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
        seconds.append(cpu if is_cpu else time.perf_counter() - began)
    return round(statistics.median(seconds), 2)


def rows_of(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    match options.part:
        case "partitions":
            yield from map(_planning_of, options.counts)
        case "mirror":
            yield from (_mirror_of(count, options.active, options.seconds) for count in options.counts)
        case "growth":
            yield from measure_growth(folder, options.decisions, options.pace)
        case "start":
            yield {**measure_start(folder, options.rows), **measure_commands(folder)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("partitions", "mirror", "growth", "start"))
    parser.add_argument("--counts", type=lambda text: [int(part) for part in text.split(",")], default=list(COUNTS))
    parser.add_argument("--active", type=int, default=ACTIVE, help="of `mirror`: partitions that have something new")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each window of `mirror`")
    parser.add_argument("--decisions", type=int, default=24 * 3600 // DECISION_EVERY_S, help="of `growth`")
    parser.add_argument("--pace", type=float, default=DECISION_EVERY_S / 24, help="of `growth`: seconds between decisions")
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the map of `start`")
    options = parser.parse_args()
    end_on_sigterm()
    with scratch() as folder:
        for row in rows_of(options, folder):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
