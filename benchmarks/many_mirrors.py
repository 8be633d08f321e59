"""Many mirrors in one process against as many processes: memory and CPU of idle mirrors, and their start.

    python -m benchmarks.many_mirrors --mirrors 10
    python -m benchmarks.many_mirrors --mirrors 10 --separate
    python -m benchmarks.many_mirrors --mirrors 10 --micro-batches stream,loop

Each mirrors a topic of its own with one record per partition. Separate processes start one after the other. Idle figures begin
once Spark's unused workers have ended, a minute after the last micro-batch.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.comparison import running_clusters
from benchmarks.copying import Clusters
from benchmarks.corpora import PARTITIONS
from benchmarks.interrupts import end_on_sigterm
from benchmarks.memory import look
from benchmarks.meter import ProcessTree
from benchmarks.running_mirror import add_kinds_option, running_mirror, write_mirror_file
from benchmarks.start_up import await_record, consumer_of, write_records
from benchmarks.topics import create_topic

_UNUSED_WORKERS_END_S = 75.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """`start_s`, `start_cpu_s`: until the first record of every mirror was visible. `pss_mb`: of all processes, by role."""

    start_s: float
    start_cpu_s: float
    idle_cpu_s_per_minute: float
    pss_mb: Mapping[str, float]


def measure(confs: Sequence[Path], topics: Sequence[str], clusters: Clusters, *, is_separate: bool, minutes: float) -> Figures:
    """Start the mirrors, wait until all are idle, and measure."""
    began = time.monotonic()
    with ExitStack() as running:
        trees: list[ProcessTree] = []
        pids: list[int] = []
        for group, group_topics in _processes(confs, topics, is_separate=is_separate):
            pid = running.enter_context(running_mirror(*group))
            pids.append(pid)
            trees.append(ProcessTree(pid))
            for topic in group_topics:
                _await_first_record(clusters, topic, trees)
        start_s, start_cpu_s = time.monotonic() - began, sum(tree.cpu_s() for tree in trees)
        time.sleep(_UNUSED_WORKERS_END_S)
        before_s, since = sum(tree.cpu_s() for tree in trees), time.monotonic()
        time.sleep(minutes * 60)
        idle_cpu_s = sum(tree.cpu_s() for tree in trees) - before_s
        per_minute = idle_cpu_s / (time.monotonic() - since) * 60
        pss_mb: defaultdict[str, float] = defaultdict(float)
        for pid in pids:
            for role, size_mb in look(pid).items():
                pss_mb[role] += size_mb
    return Figures(start_s=start_s, start_cpu_s=start_cpu_s, idle_cpu_s_per_minute=per_minute, pss_mb=pss_mb)


def _processes(
    confs: Sequence[Path], topics: Sequence[str], *, is_separate: bool
) -> Iterator[tuple[Sequence[Path], Sequence[str]]]:
    """Yield the mirror files and topics of each process."""
    if not is_separate:
        yield confs, topics
        return
    for conf, topic in zip(confs, topics, strict=True):
        yield [conf], [topic]


def _await_first_record(clusters: Clusters, topic: str, trees: Sequence[ProcessTree]) -> None:
    consumer = consumer_of(clusters.target.bootstrap, topic)
    try:
        await_record(consumer)
    finally:
        consumer.close()
    for tree in trees:
        tree.cpu_s()  # processes that end before the next look count with what they had then


def table(figures: Figures) -> list[str]:
    """PURE. Return the lines of the result."""
    roles = sorted((name, size_mb) for name, size_mb in figures.pss_mb.items() if name not in ("all", "largest worker"))
    return [
        f"{'first record of every mirror visible':<45}{figures.start_s:8.1f} s",
        f"{'CPU until then':<45}{figures.start_cpu_s:8.1f} s",
        f"{'CPU when idle, per minute':<45}{figures.idle_cpu_s_per_minute:8.1f} s",
        f"{'PSS when idle':<45}{figures.pss_mb.get('all', 0.0):8.0f} MB",
        *(f"{f'  {name}':<45}{size_mb:8.0f} MB" for name, size_mb in roles),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.many_mirrors", description=__doc__.partition("\n")[0])
    parser.add_argument("--mirrors", type=int, default=10)
    parser.add_argument("--separate", action="store_true", help="one process for each mirror")
    parser.add_argument("--minutes", type=float, default=1.0, help="how long idle CPU is measured")
    add_kinds_option(parser)
    options = parser.parse_args()
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="shallow-mirror-bench-") as name:
        folder = Path(name)
        with running_clusters(folder / "kafka") as clusters:
            for kind in options.micro_batches:
                topics = [f"many-{kind}-{number}" for number in range(1, options.mirrors + 1)]
                confs = [_prepare(folder / topic, clusters, topic, kind) for topic in topics]
                figures = measure(confs, topics, clusters, is_separate=options.separate, minutes=options.minutes)
                processes = f"{options.mirrors} processes" if options.separate else "one process"
                print(f"{options.mirrors} mirrors in {processes}, micro_batches: {kind}")
                print("\n".join(table(figures)), flush=True)


def _prepare(folder: Path, clusters: Clusters, topic: str, micro_batches: str) -> Path:
    """Create a topic on both clusters with records at the source; return a mirror file for it."""
    folder.mkdir()
    for cluster in (clusters.source, clusters.target):
        create_topic(cluster.bootstrap, topic, PARTITIONS, {})
    write_records(clusters.source.bootstrap, topic)
    return write_mirror_file(folder, clusters, topic, {"micro_batches": micro_batches})


if __name__ == "__main__":
    main()
