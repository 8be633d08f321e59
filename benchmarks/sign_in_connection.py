"""The first connection of a new process with each way to sign in, and its next ones: seconds, and CPU seconds of the process.

    python -m benchmarks.sign_in_connection --runs 5

A mirror starts with a few of them: driver, planner and workers sign in at both clusters. Unlike `benchmarks.sign_in_start`, it
shows what a sign-in takes where Spark's start varies by more. Libraries of providers are loaded in the first connection.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.interrupts import end_on_sigterm
from benchmarks.sign_in import methods_of
from benchmarks.signed_in_clusters import METHODS, signed_in_clusters
from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.deadline import request_deadline
from shallow_mirror.errors import MirrorError

_NEXT = 20


@dataclass(frozen=True, slots=True)
class Connections:
    """Of one process: the first connection in seconds and CPU seconds, and the median of the next ones, of the same client."""

    first_s: float
    first_cpu_s: float
    next_s: float


def connect(properties: Mapping[str, str]) -> Connections:
    """Sign in with new connections of one client in this process."""
    config = ClientConfig.from_properties(dict(properties))
    seconds, cpu_s = [], []
    with closing(Cluster(config)) as cluster:
        for number in range(_NEXT + 1):
            began, began_cpu = time.perf_counter(), time.process_time()
            # A connection of its own for each purpose.
            cluster.cluster_id(request_deadline()) if number == 0 else cluster.connection(1, f"next-{number}", request_deadline())
            seconds.append(time.perf_counter() - began)
            cpu_s.append(time.process_time() - began_cpu)
    return Connections(seconds[0], cpu_s[0], statistics.median(seconds[1:]))


def table(runs: Mapping[str, Sequence[Connections]]) -> list[str]:
    """Return a line for each method: medians, and how much more than the first method. Pure."""
    base = next(iter(runs.values()))
    lines = [f"{'':12}{'first, s':>10}{'CPU s':>8}{'more CPU s':>12}{'next, ms':>10}"]
    for method, own in runs.items():
        first_s, cpu_s, next_s = (
            statistics.median(values)
            for values in (
                [run.first_s for run in own],
                [run.first_cpu_s for run in own],
                [run.next_s for run in own],
            )
        )
        more = cpu_s - statistics.median(run.first_cpu_s for run in base)
        lines.append(f"{method:12}{first_s:10.3f}{cpu_s:8.3f}{more:+12.3f}{next_s * 1e3:10.1f}")
    return lines


def measure(methods: Sequence[str], runs: int, folder: Path) -> dict[str, list[Connections]]:
    measured: dict[str, list[Connections]] = {method: [] for method in methods}
    with signed_in_clusters(folder) as signed_in:
        for run in range(runs):
            for method in reversed(methods) if run % 2 else methods:
                properties, _ = signed_in.clients(method)
                output = subprocess.run(
                    [sys.executable, "-m", "benchmarks.sign_in_connection", "--child", json.dumps(properties)],
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                measured[method].append(Connections(**json.loads(output.stdout)))
    return measured


def main() -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.sign_in_connection", description=__doc__.partition("\n")[0])
    usual = [method for method in METHODS if method != "none"]
    parser.add_argument("--methods", type=methods_of, default=usual, help=f"default: {','.join(usual)}")
    parser.add_argument("--runs", type=int, default=5, choices=range(1, 101), metavar="N", help="of each method (default: 5)")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        connections = connect(options.child)
        print(json.dumps({name: getattr(connections, name) for name in ("first_s", "first_cpu_s", "next_s")}))
        return 0
    end_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="shallow-mirror-bench-") as name:
        try:
            measured = measure(options.methods, options.runs, Path(name))
        except MirrorError as error:
            print(f"benchmarks.sign_in_connection: {error}", file=sys.stderr)
            return 2
    print(f"{options.runs} processes of each, in turn: medians")
    print("\n".join(table(measured)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
