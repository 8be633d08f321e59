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
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from confluent_kafka import Producer
from deltalake import DeltaTable

from benchmarks.interrupts import end_on_sigterm
from benchmarks.roles import ROLES, processes_by_role
from benchmarks.running_mirror import running_mirror
from shallow_mirror.broker.admin.topic_admin import TopicSpec, ensure_topics
from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.checkpoints.backends.deltalake_writer import DeltalakeWriter
from shallow_mirror.checkpoints.commit_metadata import RunIdentity
from shallow_mirror.checkpoints.offset_map import OffsetMap
from shallow_mirror.checkpoints.offset_map_writer import COMPACT_EVERY_DECISIONS, OffsetMapOwner
from shallow_mirror.checkpoints.run_history import MicroBatchObservation, RunHistory
from shallow_mirror.checkpoints.schema import OFFSET_MAP, DecidedSegment, rows_to_arrow, table_uri
from shallow_mirror.checkpoints.storage import MirrorStorage
from shallow_mirror.checkpoints.table_protocol import TOMBSTONE_RETENTION
from shallow_mirror.config import MirrorConfig, parse_duration
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.local_kafka.node import LocalKafka, start_clusters, stop_clusters
from shallow_mirror.streaming.sources.planned_ranges import RangeStreamReader
from shallow_mirror.streaming.sources.stream_reader import options_of_mirror
from shallow_mirror.types import (
    IsolationLevel,
    Segment,
    SegmentKind,
    SlotTxn,
    SourcePartition,
    TargetPartition,
    TopicPartition,
)

COUNTS = (10, 100, 1000, 5000)
ACTIVE = 10
PARTITIONS_A_TOPIC = 100
ROUNDS = 30
WARM_MICRO_BATCHES = 8
SMALL_LOGS = {"log.index.size.max.bytes": "4096", "log.retention.check.interval.ms": "3600000"}
"""Index files are made as large as they may get."""

DECISION_EVERY_S = 2
TOMBSTONES = "delta.deletedFileRetentionDuration"
TOMBSTONES_KEPT_S = parse_duration(TOMBSTONE_RETENTION.removeprefix("interval "))
MAP_PARTITIONS = 8
RECORDS_A_DECISION = 100
ROWS_A_FILE = 400_000
FIRST_MS = 1_700_000_000_000

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
        for number in range(self._active):
            self._producer.produce(self._names[number % len(self._names)], os.urandom(500), partition=number % self._each)
        self._producer.flush()


def _planning_of(count: int) -> dict[str, Any]:
    """Measure the planner's part before and in a micro-batch, through the data source's own reader. Medians, in ms of CPU."""
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
            ranges = sum(len(one.ranges) for one in partitions)
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


def source_of(partition: int) -> SourcePartition:
    return SourcePartition("orders", "srcsrcsrcsrcsrcsrcsrcA", partition)


def target_of(partition: int) -> TargetPartition:
    return TargetPartition("orders", "tgttgttgttgttgttgttgtA", partition)


def decided(partition: int, number: int) -> DecidedSegment:
    """Of one micro-batch; in each of them a marker of our own lies between the records on the target."""
    start, target_start = number * RECORDS_A_DECISION, number * (RECORDS_A_DECISION + 1)
    segment = Segment(
        source=source_of(partition),
        source_start=start,
        source_end=start + RECORDS_A_DECISION,
        kind=SegmentKind.DATA,
        target=target_of(partition),
        target_start=target_start,
        target_end=target_start + RECORDS_A_DECISION,
        record_count=RECORDS_A_DECISION,
        batch_count=3,
        size_bytes=30_000,
        max_timestamp_ms=FIRST_MS + number * DECISION_EVERY_S * 1000,
        source_leader_epoch=4,
    )
    return DecidedSegment(segment, SlotTxn(f"scale-{partition % 2}", 1000 + partition % 2, number % 30_000))


def observed(number: int) -> MicroBatchObservation:
    return MicroBatchObservation(
        run_epoch=1,
        micro_batch=number,
        fetched_bytes=30_000 * MAP_PARTITIONS,
        size_bytes=30_000 * MAP_PARTITIONS,
        batch_count=3 * MAP_PARTITIONS,
        rebuilt_batch_count=0,
        record_count=RECORDS_A_DECISION * MAP_PARTITIONS,
        dropped_batch_counts={},
        duration_ms={"TakeDecision": 1.0, "RunSlots": 100.0, "Decide": 20.0, "EndTxn": 3.0, "Total": 130.0},
        lag_offsets=0,
        settled_at_ms=FIRST_MS + number * DECISION_EVERY_S * 1000,
    )


def owner_of(folder: Path) -> OffsetMapOwner:
    owner = OffsetMapOwner.take_over(
        str(folder), mirror="scale", source_cluster_id="east", target_cluster_id="west",
        run=RunIdentity.of_this_process(), now_ms=lambda: int(time.time() * 1000),
    )  # fmt: skip
    owner.settle()
    return owner


def with_tombstones_of(folder: Path, seconds: float) -> OffsetMapOwner:
    """Of a new map that forgets replaced files after that long. Tables beside it keep their hours."""
    owner_of(folder)
    DeltaTable(table_uri(str(folder))).alter.set_table_properties({TOMBSTONES: f"interval {round(seconds)} seconds"})
    return owner_of(folder)


def measure_growth(folder: Path, decisions: int, pace_s: float) -> Iterator[dict[str, Any]]:
    """Yield a row for every compaction: medians of a decision and of its observation, maintenance time, files that exist.

    `pace_s` stands for DECISION_EVERY_S: tombstones are forgotten in that proportion. What is late is made up for.
    """
    owner = with_tombstones_of(folder, TOMBSTONES_KEPT_S * pace_s / DECISION_EVERY_S)
    observations = RunHistory(MirrorStorage(str(folder)).best_effort_tables())
    decide, observe = list[float](), list[float]()
    first = time.monotonic()
    for number in range(decisions):
        time.sleep(max(0.0, first + number * pace_s - time.monotonic()))
        rows = [decided(partition, number) for partition in range(MAP_PARTITIONS)]
        began = time.perf_counter()
        owner.next_decision()
        owner.decide(rows, highest_slot=1)
        decide.append(time.perf_counter() - began)
        began = time.perf_counter()
        observations.micro_batch(observed(number))
        observe.append(time.perf_counter() - began)
        began = time.perf_counter()
        if owner.compact_if_due():
            maintenance = time.perf_counter() - began
            yield {
                "decisions": number + 1,
                "late_s": round(max(0.0, time.monotonic() - first - (number + 1) * pace_s)),
                "decide_ms": round(1000 * statistics.median(decide[-1000:]), 1),
                "decide_p99_ms": round(1000 * statistics.quantiles(decide[-1000:], n=100)[98], 1),
                "observe_ms": round(1000 * statistics.median(observe[-1000:]), 1),
                "maintenance_s": round(maintenance, 2),
                **{f"{name}_{what}": value for name in ("offset_map", "micro_batches") for what, value in lies(folder / name)},
            }
            decide.clear()
            observe.clear()


def lies(table: Path) -> Iterator[tuple[str, float]]:
    data, log = list(table.glob("*.parquet")), list((table / "_delta_log").iterdir())
    began = time.perf_counter()
    live_files = len(DeltaTable(str(table)).file_uris())
    yield "open_ms", round(1000 * (time.perf_counter() - began), 1)
    yield "files", len(data)
    yield "live_files", live_files
    yield "mb", round(sum(one.stat().st_size for one in data) / 1e6, 1)
    yield "log_files", len(log)
    yield "log_mb", round(sum(one.stat().st_size for one in log) / 1e6, 1)


def many_rows(first: int, count: int) -> pa.Table:
    """Rows of `decided` as columns."""
    row = np.arange(first, first + count, dtype=np.int64)
    partition, number = (row % MAP_PARTITIONS).astype(np.int32), row // MAP_PARTITIONS
    given = {
        "source_partition": partition,
        "source_start": number * RECORDS_A_DECISION,
        "source_end": (number + 1) * RECORDS_A_DECISION,
        "target_partition": partition,
        "target_start": number * (RECORDS_A_DECISION + 1),
        "target_end": number * (RECORDS_A_DECISION + 1) + RECORDS_A_DECISION,
        "size_bytes": 30_000 + row * 7919 % 1000,
        "max_timestamp_ms": FIRST_MS + number * DECISION_EVERY_S * 1000,
        "target_producer_epoch": (number % 30_000).astype(np.int32),
        "micro_batch": number + 1,
        "decided_at": (FIRST_MS + number * DECISION_EVERY_S * 1000) * 1000,
    }
    alike = rows_to_arrow([decided(0, 0)], 1, 1, FIRST_MS)
    columns = [
        pa.array(given[field.name]).cast(field.type) if field.name in given else pa.repeat(alike[field.name][0], count)
        for field in OFFSET_MAP
    ]
    return pa.table(columns, schema=OFFSET_MAP)


def build_map(folder: Path, rows: int) -> None:
    """As a mirror leaves it: files of compactions, and a file for each decision since the last one."""
    owner, writer = owner_of(folder), DeltalakeWriter(table_uri(str(folder)))
    alone = COMPACT_EVERY_DECISIONS - 1
    together = rows // MAP_PARTITIONS * MAP_PARTITIONS - alone * MAP_PARTITIONS
    for first in range(0, together, ROWS_A_FILE):
        table, recorded = many_rows(first, min(ROWS_A_FILE, together - first)), owner.recorded()
        micro_batch = int(table["micro_batch"][-1].as_py())
        written = replace(recorded, version=recorded.version + 2, micro_batch=micro_batch, row_count=first + table.num_rows)
        written = replace(written, compacted_micro_batch=micro_batch)
        writer.append(writer.snapshot(), table, written.version, written.metadata())
        owner = owner_of(folder)
    for number in range(together // MAP_PARTITIONS, together // MAP_PARTITIONS + alone):
        owner.next_decision()
        owner.decide([decided(partition, number) for partition in range(MAP_PARTITIONS)], highest_slot=1)
    owner.settle()


START = """
import resource, sys, time
from benchmarks.scale import owner_of
from pathlib import Path
began = time.perf_counter()
positions = owner_of(Path(sys.argv[1])).positions()
print(len(positions), time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def measure_start(folder: Path, rows: int) -> dict[str, Any]:
    """Measure what a start reads of the map: take-over, resolution of nothing, positions. In a process of its own."""
    build_map(folder / "tables", rows)
    command = [sys.executable, "-c", START, str(folder / "tables")]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    size = sum(one.stat().st_size for one in (folder / "tables" / "offset_map").glob("*.parquet"))
    return {
        "rows": rows,
        "map_mb": round(size / 1e6, 1),
        "take_over_and_positions_s": round(float(found[1]), 2),
        "peak_rss_mb": round(int(found[2]) / 1e3),
        **measure_commands(folder),
    }


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
            yield measure_start(folder, options.rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("partitions", "mirror", "growth", "start"))
    parser.add_argument("--counts", type=lambda text: [int(one) for one in text.split(",")], default=list(COUNTS))
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
