"""Latency of light traffic: from a produce at the source until a read_committed consumer of the target has the record.

    python -m benchmarks.latency --seconds 60 --every-ms 100 --rtt-ms 80 --far target
    python -m benchmarks.latency --seconds 60 --offsets preserved
    python -m benchmarks.latency --seconds 60 --micro-batches stream,loop

The mirror has its default configuration, but `trigger: 0 seconds`. What its steps took comes from its own `micro_batches`.
With `--rtt-ms` and `--far` it is measured near, and then far away. Records are always sent and received near, without TLS.
"""

from __future__ import annotations

import argparse
import json
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import Consumer, Producer
from deltalake import DeltaTable

from benchmarks.arrivals import quantile
from benchmarks.comparison import running_clusters
from benchmarks.corpora import PARTITIONS
from benchmarks.interrupts import end_on_sigterm
from benchmarks.link import Link, add_link_options, links_of
from benchmarks.running_mirror import add_kinds_option, client_properties, running_mirror, write_mirror_file
from benchmarks.topics import create_topic
from shallow_mirror.checkpoints.logs.runs import MICRO_BATCHES_TABLE
from shallow_mirror.errors import MirrorError

TOPIC = "latency"
WARM_UP_S = 10.0
_STAMP = struct.Struct(">d")
_START_WITHIN_S = 180.0
_FETCH_WAIT_MS = 10


class Sender(threading.Thread):
    """Writes the time into a record of each partition in turn, until it is told to stop."""

    def __init__(self, bootstrap: str, every_ms: float) -> None:
        super().__init__(name="sender", daemon=True)
        self._producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all", "log_level": 0})
        self._every_s = every_ms / 1000
        self.over = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.over.wait(self._every_s):
            self._producer.produce(TOPIC, _STAMP.pack(time.time()), partition=number % PARTITIONS)
            self._producer.poll(0)
            number += 1
        self._producer.flush()


def latencies(bootstrap: str, seconds: float) -> list[float]:
    """Ascending, in seconds, of the records that came from the end of the warm-up on, which begins with the first record."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": TOPIC,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": _FETCH_WAIT_MS,
            "log_level": 0,
        }
    )
    consumer.subscribe([TOPIC])
    seconds_each: list[float] = []
    begin, give_up_at = None, time.time() + _START_WITHIN_S
    try:
        while begin is None or time.time() < begin + WARM_UP_S + seconds:
            record = consumer.poll(0.2)
            if record is None or record.error() is not None:
                if begin is None and time.time() > give_up_at:
                    raise TimeoutError(f"nothing arrived within {_START_WITHIN_S:.0f} s")
                continue
            begin = time.time() if begin is None else begin
            (sent,) = _STAMP.unpack(record.value())
            if sent > begin + WARM_UP_S:
                seconds_each.append(time.time() - sent)
    finally:
        consumer.close()
    return sorted(seconds_each)


def steps_ms(tables: Path) -> dict[str, list[float]]:
    """Of every step: what it took in each micro-batch of the second half of the run, ascending."""
    rows = DeltaTable(str(tables / MICRO_BATCHES_TABLE)).to_pyarrow_table().sort_by("micro_batch").to_pylist()
    steps: dict[str, list[float]] = {}
    for row in rows[len(rows) // 2 :]:
        for step, ms in json.loads(row["duration_ms"]).items():
            steps.setdefault(step, []).append(ms)
    return {step: sorted(step_times) for step, step_times in steps.items()}


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.latency", description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--every-ms", type=float, default=100.0)
    parser.add_argument("--tables-writer", choices=["deltalake", "spark"], default="deltalake")
    parser.add_argument("--offsets", choices=["translated", "preserved"], default="translated")
    add_kinds_option(parser)
    add_link_options(parser)
    options = parser.parse_args(arguments)
    links = links_of(parser, options)
    options.links = list(dict.fromkeys([links[0].near, *links]))
    return options


def measure(link: Link, options: argparse.Namespace, micro_batches: str) -> None:
    """Run a mirror over `link` between clusters of its own, and print its latencies."""
    with tempfile.TemporaryDirectory(prefix="shallow-mirror-bench-") as name:
        folder = Path(name)
        with running_clusters(folder / "kafka", link) as clusters:
            create_topic(clusters.source.bootstrap, TOPIC, PARTITIONS, {})
            sender = Sender(clusters.source.bootstrap, options.every_ms)
            sender.start()
            access = clusters.access
            settings = {
                "source": {"alias": "source", "client": client_properties(access.source, access.ca_file)},
                "target": {"alias": "target", "client": client_properties(access.target, access.ca_file)},
                "tables_writer": options.tables_writer,
                "trigger": "0 seconds",
                "micro_batches": micro_batches,
                "topics": {"include": [TOPIC], "offsets": {".*": options.offsets}},
            }
            with running_mirror(write_mirror_file(folder, clusters, TOPIC, settings)):
                seconds = latencies(clusters.target.bootstrap, options.seconds)
            sender.over.set()
            sender.join()
        print(f"{str(link) or 'near'}, micro_batches: {micro_batches}:")
        print(
            f"{len(seconds)} records: p50 {quantile(seconds, 0.5):.3f} s, p90 {quantile(seconds, 0.9):.3f} s, "
            f"p99 {quantile(seconds, 0.99):.3f} s, most {seconds[-1]:.3f} s"
        )
        for step, ascending in steps_ms(folder / "tables").items():
            print(f"{step:<16} median {statistics.median(ascending):7.1f} ms   p95 {quantile(ascending, 0.95):7.1f} ms")


def main() -> int:
    options = parsed()
    end_on_sigterm()
    try:
        for link in options.links:
            for micro_batches in options.micro_batches:
                measure(link, options, micro_batches)
    except MirrorError as error:
        print(f"benchmarks.latency: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
