"""Time from a group's commit at the source until its offset is committed at the target, and the CPU of that.

    PYTHONPATH=. python -m benchmarks.group_lag --commits-per-s 10000 --seconds 60

Two brokers, no Spark: the records are on both clusters, and the map grows once per second, a few seconds ahead of the groups,
as that of a mirror that keeps up. Commits are sent as consumers send them: one request for all partitions of a group.
Afterwards both logs of committed offsets are read, and each commit of the source is compared with the first one at the target
that is not below it, by the coordinators' times.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Producer
from tests.support.mirror_runs import create_topic

from benchmarks.interrupts import end_on_sigterm
from benchmarks.meter import ProcessTree
from shallow_mirror.broker.clients import BatchConsumer, IsolationLevel
from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.ledger import LedgerOwner, RunIdentity
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.groups.sync import GroupSync
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.local_kafka.server_process import start_together, stop_together
from shallow_mirror.types import Segment, SegmentKind, SlotTxn, SourcePartition, TargetPartition, TopicPartition
from shallow_mirror.wire.group_log import logged_records, parse_commit_key, parse_committed_offset
from shallow_mirror.wire.protocol import group_offsets

TOPIC = "read-by-groups"
CONNECTIONS = 16
AHEAD_S = 3
WARM_UP_S = 8
_MARK = 0x1122334455660000
"""In place of an offset in a prepared request; the partition is added."""


@dataclass(frozen=True, slots=True)
class Load:
    groups: int
    partitions: int
    commits_per_s: int
    seconds: int

    @property
    def offsets_per_s(self) -> float:
        """Return by how much each group rises in each partition: one offset with each commit."""
        return self.commits_per_s / (self.groups * self.partitions)

    @property
    def end(self) -> int:
        return math.ceil(self.offsets_per_s * (self.seconds + WARM_UP_S + AHEAD_S + 10)) + 10


def send_commits(host: str, port: int, groups: list[str], load: Load, until: float) -> None:
    """Commit for these groups in turn, at their share of the rate."""
    per_s = load.commits_per_s / load.partitions * len(groups) / load.groups
    frames = [_frame(group, load.partitions) for group in groups]
    offsets, began, sent = [0] * len(groups), time.monotonic(), 0
    with socket.create_connection((host, port)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = peer.makefile("rb")
        while (now := time.monotonic()) < until:
            due = began + sent / per_s
            if due > now:
                time.sleep(due - now)
            at = sent % len(groups)
            offsets[at] += 1
            frame, places = frames[at]
            for place in places:
                struct.pack_into(">q", frame, place, min(offsets[at], load.end))
            peer.sendall(frame)
            reader.read(struct.unpack(">i", reader.read(4))[0])
            sent += 1


def _frame(group: str, partitions: int) -> tuple[bytearray, list[int]]:
    offsets = {TopicPartition(TOPIC, partition): (_MARK + partition, "") for partition in range(partitions)}
    request = group_offsets.build_commit_header(1, "group-lag") + group_offsets.build_commit_request(group, offsets).body
    frame = bytearray(struct.pack(">i", len(request)) + request)
    return frame, [frame.index(struct.pack(">q", _MARK + partition)) for partition in range(partitions)]


def run_load(bootstrap: str, load: Load) -> None:
    host, port = bootstrap.split(":")
    until = time.monotonic() + WARM_UP_S + load.seconds
    shares = [names for at in range(CONNECTIONS) if (names := [f"group-{n}" for n in range(at, load.groups, CONNECTIONS)])]
    threads = [threading.Thread(target=send_commits, args=(host, int(port), names, load, until)) for names in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def run_sync(conf: Path) -> None:
    """Until standard input ends. Print the CPU time of steps then, of the thread that does them."""
    config = MirrorConfig.load(conf)
    storage = TableStorage(config.tables)
    interval_s = config.groups.sync_s
    assert interval_s is not None
    gc.collect()
    gc.freeze()  # as `run` does
    cpu_s: list[float] = []
    with GroupSync(config, interval_s, storage, storage.best_effort_tables(), on_lag=lambda _: cpu_s.append(time.thread_time())):
        sys.stdin.read()
    steps_ms = np.diff(cpu_s[len(cpu_s) // 4 :]) * 1000
    print(
        f"CPU of a step: median {np.median(steps_ms):.1f} ms, mean {steps_ms.mean():.1f} ms ({len(steps_ms)} steps)", flush=True
    )


class GrowingMap(threading.Thread):
    """Decides once per second what the groups read a few seconds later."""

    def __init__(self, config: MirrorConfig, ids: tuple[str, str], load: Load) -> None:
        super().__init__(daemon=True)
        self._ids, self._load, self._stop_event = ids, load, threading.Event()
        with (
            closing(GroupClient(config.source.client, "east")) as east,
            closing(GroupClient(config.target.client, "west")) as west,
        ):
            clusters = east.cluster_id(), west.cluster_id()
        self._owner = LedgerOwner.take_over(
            config.tables,
            name=config.mirror,
            source_cluster_id=clusters[0],
            target_cluster_id=clusters[1],
            run=RunIdentity(run_id="r", host="here", pid=1, started_at_ms=1),
            now_ms=lambda: int(time.time() * 1000),
        )
        self._owner.settle()
        self._mirrored = 0
        self.mirror(math.ceil(load.offsets_per_s * AHEAD_S) + 1)

    def mirror(self, until: int) -> None:
        until = min(until, self._load.end)
        if until <= self._mirrored:
            return
        self._owner.next_decision()
        segments = [
            Segment(
                source=SourcePartition(TOPIC, self._ids[0], partition),
                source_start=self._mirrored,
                source_end=until,
                kind=SegmentKind.DATA,
                target=TargetPartition(TOPIC, self._ids[1], partition),
                target_start=self._mirrored,
                target_end=until,
                record_count=until - self._mirrored,
                batch_count=1,
            )
            for partition in range(self._load.partitions)
        ]
        self._owner.decide([DecidedSegment(segment, SlotTxn("m-0", 1, 1)) for segment in segments], highest_slot=0)
        self._owner.settle()
        self._mirrored = until

    def run(self) -> None:
        began = time.monotonic()
        while not self._stop_event.wait(1.0):
            self.mirror(math.ceil(self._load.offsets_per_s * (time.monotonic() - began + AHEAD_S)))

    def end(self) -> None:
        self._stop_event.set()
        self.join()


def committed(bootstrap: str) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """Return (offset, time in ms) of every commit in the log, by group and partition of the topic."""
    commits: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
    client = MirrorConfig.from_document(_document(bootstrap, bootstrap, "/nowhere"), folder=Path("/")).source.client
    with closing(GroupClient(client, "cluster")) as groups:
        _, ends = groups.group_log_ends()
    with BatchConsumer(client, isolation=IsolationLevel.READ_UNCOMMITTED) as consumer:
        consumer.assign(dict.fromkeys(ends, "earliest"))
        while any(consumer.position(log) < end for log, end in ends.items()):
            for batch in consumer.poll_batches(8 << 20, 1_000):
                for record in [] if batch.is_control else logged_records(batch.view, batch.topic_partition, max_bytes=1 << 26):
                    key = parse_commit_key(record.key or b"\xff\xff")
                    if key is not None and record.value is not None and key.topic == TOPIC:
                        commits[key.group, key.partition].append((parse_committed_offset(record.value), record.timestamp_ms))
    return commits


def lags_s(source: dict[Any, list[tuple[int, int]]], target: dict[Any, list[tuple[int, int]]], since_ms: int) -> Any:
    """Return the lag of each commit of the source; infinite where the target never had it."""
    lags = []
    for place, commits in source.items():
        theirs = target.get(place, [])
        offsets = np.maximum.accumulate([offset for offset, _ in theirs]) if theirs else np.zeros(0)
        for offset, at_ms in commits:
            at = int(np.searchsorted(offsets, offset))
            if at_ms >= since_ms:
                lags.append((theirs[at][1] - at_ms) / 1000 if at < len(theirs) else math.inf)
    return np.array(lags)


def _document(source: str, target: str, tables: str) -> dict[str, Any]:
    return {
        "mirror": "group-lag",
        "source": {"alias": "east", "client": {"bootstrap.servers": source}},
        "target": {"alias": "west", "client": {"bootstrap.servers": target}},
        "topics": {"include": [TOPIC]},
        "tables": tables,
        "groups": {"sync": "30 seconds"},
    }


def measure(load: Load, folder: Path, nodes: list[LocalKafka]) -> None:
    conf = folder / "mirror.json"
    conf.write_text(json.dumps(_document(nodes[0].bootstrap, nodes[1].bootstrap, str(folder / "tables"))), encoding="utf-8")
    config = MirrorConfig.load(conf)
    for node in nodes:
        create_topic(node.bootstrap, TOPIC, load.partitions)
        producer = Producer({"bootstrap.servers": node.bootstrap, "linger.ms": 50, "log_level": 0})
        for number in range(load.end * load.partitions):
            producer.produce(TOPIC, b"v", partition=number % load.partitions)
            producer.poll(0)
        producer.flush()
    ids = []
    for client in (config.source.client, config.target.client):
        with closing(GroupClient(client, "cluster")) as groups:
            ids.append(groups.topic_ids([TOPIC])[TOPIC])
            for number in range(load.groups):
                groups.commit(f"group-{number}", {TopicPartition(TOPIC, 0): (0, "")})
    growing = GrowingMap(config, (ids[0], ids[1]), load)
    module = [sys.executable, "-m", "benchmarks.group_lag"]
    sync = subprocess.Popen([*module, "--sync", str(conf)], stdin=subprocess.PIPE)
    time.sleep(3)
    growing.start()
    figures = ["--groups", load.groups, "--partitions", load.partitions, "--commits-per-s", load.commits_per_s]
    command = [*module, "--load", nodes[0].bootstrap, "--seconds", load.seconds, *figures]
    sender = subprocess.Popen([str(part) for part in command])
    time.sleep(WARM_UP_S)
    tree, since_ms, began = ProcessTree(sync.pid), int(time.time() * 1000), time.monotonic()
    cpu_s = tree.cpu_s()
    time.sleep(load.seconds - 1)
    cpu_s, took_s = tree.cpu_s() - cpu_s, time.monotonic() - began
    sender.wait()
    time.sleep(5)
    growing.end()
    assert sync.stdin is not None
    sync.stdin.close()
    sync.wait()
    source, target = committed(nodes[0].bootstrap), committed(nodes[1].bootstrap)
    lags = lags_s(source, target, since_ms)
    window_s = (max(at_ms for commits in source.values() for _, at_ms in commits) - since_ms) / 1000
    at_target = sum(at_ms >= since_ms for commits in target.values() for _, at_ms in commits)
    print(
        f"{load.groups} groups, {load.partitions} partitions, {len(lags) / window_s:,.0f} commits/s at the source, "
        f"{at_target / window_s:,.0f} at the target"
    )
    print(f"lag: p50 {np.percentile(lags, 50):.2f} s, p99 {np.percentile(lags, 99):.2f} s, max {lags.max():.2f} s")
    print(f"CPU of the synchronization: {cpu_s / took_s:.3f} cores")


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.group_lag", description=__doc__.partition("\n")[0])
    parser.add_argument("--commits-per-s", type=int, default=10_000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=10)
    parser.add_argument("--load", help=argparse.SUPPRESS)
    parser.add_argument("--sync", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    load = Load(options.groups, options.partitions, options.commits_per_s, options.seconds)
    if options.load:
        return run_load(options.load, load)
    if options.sync:
        return run_sync(options.sync)
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="shallow-mirror-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        nodes = [LocalKafka(folder / side) for side in ("east", "west")]
        start_together(nodes)
        stack.callback(stop_together, nodes)
        measure(load, folder, nodes)
    return None


if __name__ == "__main__":
    main()
