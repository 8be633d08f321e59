"""Executors of a local session: Spark's worker daemon, which has imported what tasks need before it forks them.

A worker that imports on its own takes most of a second and tens of megabytes for it; forked workers share them. Spark starts a
daemon for each kind of worker; of the other kinds there is one worker each, with nothing to share.
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from shallow_mirror.logging_setup import begin_logging_from_environment
from shallow_mirror.sinks.slots import READS_PLANS_VARIABLE
from shallow_mirror.streaming.spark.economies import Economy, is_used, or_without
from shallow_mirror.streaming.spark.pyarrow_alone import OWN_SESSION_VARIABLE, keep_pandas_out

WORKERS_OF_TASKS = "pyspark.worker"
_PYSPARK_DAEMON = "pyspark.daemon"
_PYSPARK_ZIP = "pyspark.zip"
_IMPORTED_TO_READ_PLANS = (WORKERS_OF_TASKS, "shallow_mirror.streaming.sources.planned_ranges")
_IMPORTED_TO_COPY = (
    WORKERS_OF_TASKS,
    "shallow_mirror.sinks.archive.archive_slot_target",
    "shallow_mirror.sinks.slots.archive_readings",
    "shallow_mirror.sinks.slots.slot_task",
)


def installed_pyspark_first(path: list[str]) -> list[str]:
    """Return `path` without the zip file of PySpark that Spark puts in front, if the package that holds this file is on it.

    Modules from a zip file are compiled again by each process: 0.6 CPU seconds for those that a daemon imports of PySpark.
    """
    others = [entry for entry in path if not entry.endswith(_PYSPARK_ZIP)]
    installed = PathFinder.find_spec("pyspark", others)
    if installed is None or installed.origin is None:
        return path
    package = Path(installed.origin).resolve().parent
    return [entry for entry in path if not entry.endswith(_PYSPARK_ZIP) or package not in Path(entry).resolve().parents]


def main() -> None:
    """Run the daemon. The kind of worker is the only argument."""
    if is_used(Economy.WORKER_DAEMON):
        with or_without(Economy.WORKER_DAEMON):
            sys.path[:] = installed_pyspark_first(sys.path)
    begin_logging_from_environment()
    if is_used(Economy.WORKER_DAEMON):
        with or_without(Economy.WORKER_DAEMON):
            _prepare(sys.argv[1])
    # As the main module, which is what Spark runs without this one: no name in it is relied on.
    runpy.run_module(_PYSPARK_DAEMON, run_name="__main__")


def _prepare(kind: str) -> None:
    """Import the modules of workers of this kind, before they are forked."""
    if OWN_SESSION_VARIABLE in os.environ:
        keep_pandas_out()
    if kind == WORKERS_OF_TASKS:
        for name in _IMPORTED_TO_READ_PLANS if READS_PLANS_VARIABLE in os.environ else _IMPORTED_TO_COPY:
            importlib.import_module(name)
        gc.collect()
        gc.freeze()


if __name__ == "__main__":
    main()
