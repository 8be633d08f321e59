"""Start of a mirror: from the start of its process until a read_committed consumer of the target has the first record.

    python -m benchmarks.start_up --runs 3 [--micro-batches stream,loop]

Every run mirrors a topic of its own, of which the source has one record per partition, with a new map and a new checkpoint.
Beside the total: when the log names each step of the start, CPU seconds of all its processes until then, and their peak PSS.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.comparison import running_clusters
from benchmarks.copying import Clusters
from benchmarks.corpora import PARTITIONS
from benchmarks.interrupts import end_on_sigterm
from benchmarks.meter import ProcessTree
from benchmarks.running_mirror import add_kinds_option, running_mirror, write_mirror_file
from benchmarks.topics import create_topic

_WITHIN_S = 180.0
_SETTLED_S = 3.0
"""How long memory is measured after the first record."""
_EVERY_S = 0.25
_STEPS = (
    "starting Spark",
    "resolving the transactions of the last run",
    "looking for new topics and partitions",
    "preparing target topics",
    "registering new partitions",
    "starting the query",
    "waiting for the first plan",
)
"""As the log names them, after `start: `."""


@dataclass(frozen=True, slots=True)
class Start:
    """One start. `steps`: seconds from the start of the process until the log named the step."""

    seconds: float
    cpu_s: float
    peak_mb: float
    steps: Mapping[str, float]


class Watch(threading.Thread):
    """Follows CPU and memory of a process tree until told to stop."""

    def __init__(self, pid: int) -> None:
        super().__init__(name="watch", daemon=True)
        self._tree = ProcessTree(pid)
        self._over = threading.Event()
        self.cpu_s = 0.0
        self.peak_bytes = 0

    def run(self) -> None:
        while not self._over.wait(_EVERY_S):
            self.cpu_s = self._tree.cpu_s()
            self.peak_bytes = max(self.peak_bytes, self._tree.pss_bytes())

    def stop(self) -> None:
        self._over.set()
        self.join()


def one_start(clusters: Clusters, folder: Path, topic: str, settings: Mapping[str, object]) -> Start:
    """Start a mirror of a new topic in `folder`, wait for its first record, and stop it. `settings`: of its mirror file."""
    folder.mkdir()
    for cluster in (clusters.source, clusters.target):
        create_topic(cluster.bootstrap, topic, PARTITIONS, {})
    write_records(clusters.source.bootstrap, topic)
    conf = write_mirror_file(folder, clusters, topic, settings)
    consumer = consumer_of(clusters.target.bootstrap, topic)
    began = time.time()
    try:
        with running_mirror(conf) as pid:
            watch = Watch(pid)
            watch.start()
            await_record(consumer)
            seconds, cpu_s = time.time() - began, watch.cpu_s
            time.sleep(_SETTLED_S)
            watch.stop()
    finally:
        consumer.close()
    return Start(seconds, cpu_s, watch.peak_bytes / 1e6, steps_of(conf.with_name("mirror.log").read_text(), began))


def steps_of(log: str, began: float) -> dict[str, float]:
    """Return when each step was named first. Pure."""
    steps: dict[str, float] = {}
    for line in log.splitlines():
        stamp, _, said = line.partition(" INFO ")
        for step in _STEPS:
            if f"start: {step}" in said and step not in steps:
                steps[step] = datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S,%f").timestamp() - began
    return steps


def table(starts: Sequence[Start]) -> list[str]:
    """Return lines of medians, in the order of the steps."""
    named = {step: [start.steps[step] for start in starts if step in start.steps] for step in _STEPS}
    lines = [f"{step:<45}{statistics.median(seconds):7.2f} s" for step, seconds in named.items() if seconds]
    seconds = [start.seconds for start in starts]
    lines.append(f"{'first record visible':<45}{statistics.median(seconds):7.2f} s ({min(seconds):.1f} to {max(seconds):.1f})")
    lines.append(f"{'CPU until then':<45}{statistics.median(start.cpu_s for start in starts):7.2f} s")
    lines.append(f"{'peak PSS':<45}{statistics.median(start.peak_mb for start in starts):7.0f} MB")
    return lines


def write_records(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "log_level": 0})
    for partition in range(PARTITIONS):
        producer.produce(topic, b"first", partition=partition)
    producer.flush()


def consumer_of(bootstrap: str, topic: str) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": topic,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 50,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
    return consumer


def await_record(consumer: Consumer) -> None:
    give_up_at = time.monotonic() + _WITHIN_S
    while time.monotonic() < give_up_at:
        record = consumer.poll(0.1)
        if record is not None and record.error() is None:
            return
    raise TimeoutError(f"no record arrived within {_WITHIN_S:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.start_up", description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    add_kinds_option(parser)
    options = parser.parse_args()
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="shallow-mirror-bench-") as name:
        folder = Path(name)
        with running_clusters(folder / "kafka") as clusters:
            starts: dict[str, list[Start]] = {kind: [] for kind in options.micro_batches}
            for run in range(1, options.runs + 1):
                for kind in starts:  # in turn: what else the machine does is the same for all
                    name = f"start-{kind}-{run}"
                    starts[kind].append(one_start(clusters, folder / name, name, {"micro_batches": kind}))
    for kind, measured in starts.items():
        print("\n".join([f"micro_batches: {kind}", *table(measured)]))


if __name__ == "__main__":
    main()
