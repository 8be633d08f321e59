"""How long writers are stopped while topics and groups move to another cluster and back.

    PYTHONPATH=. python -m benchmarks.move [--runs 3] [--partitions 12]

Two brokers, three writers (plain, idempotent, transactional), three groups, and mirrors without Spark, as in the drill of the
tests: the backlog is copied, `writers.quiet` is one second, and clients move as soon as the conductor says so. Each run has
clusters of its own. Fails if a group lost or repeated a record.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from tests.migration.migrations import running_application

from benchmarks.interrupts import end_on_sigterm
from shallow_mirror.local_kafka import start_clusters, stop_clusters
from shallow_mirror.migration import Options, roll_back, run_migration


def stopped_s(folder: Path, partitions: int) -> tuple[float, float]:
    """Return the seconds of the move and of the way back. Raises AssertionError if a group lost or repeated a record."""
    nodes = start_clusters(folder / "kafka", 2)
    try:
        clusters = SimpleNamespace(source=nodes[0], target=nodes[1])
        opened = running_application(folder / "move", clusters, "orders", partitions, reverse={"start": "conductor"})
        with opened as (made, application, operator):
            options = Options(launch=made.launch)
            run_migration(made.files(), operator, options)
            roll_back(made.files(), operator, options=options)
            application.stop_writers()
            application.await_everything_read()
        assert application.differences() == {}
        move, back = application.stopped_s
        return move, back
    finally:
        stop_clusters(nodes)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--partitions", type=int, default=12)
    options = parser.parse_args(arguments)
    end_on_sigterm()
    measured = []
    print(f"{'run':>3}{'move s':>10}{'back s':>10}{'load':>8}")
    for run in range(1, options.runs + 1):
        with tempfile.TemporaryDirectory() as folder:
            move, back = stopped_s(Path(folder), options.partitions)
        measured.append((move, back))
        print(f"{run:3}{move:10.1f}{back:10.1f}{os.getloadavg()[0]:8.1f}", flush=True)
    moves, backs = zip(*measured, strict=True)
    print(f"median{statistics.median(moves):7.1f}{statistics.median(backs):10.1f}")


if __name__ == "__main__":
    main()
