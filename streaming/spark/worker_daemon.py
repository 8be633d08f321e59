"""Executors of a local session: Spark's worker daemon, which has imported what tasks need before it forks them.

A worker that imports on its own takes most of a second and tens of megabytes for it; forked workers share them. Spark starts a
daemon for each kind of worker; of the other kinds there is one worker each, with nothing to share.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from shallow_mirror.logging_setup import begin_logging_from_environment
from shallow_mirror.sinks.slots.worker_environment import READS_PLANS_VARIABLE
from shallow_mirror.streaming.spark.pyarrow_alone import OWN_SESSION_VARIABLE, keep_pandas_out

WORKERS_OF_TASKS = "pyspark.worker"
_PYSPARK_ZIP = "pyspark.zip"
_IMPORTED_TO_READ_PLANS = (WORKERS_OF_TASKS, "shallow_mirror.streaming.sources.planned_ranges")
_IMPORTED_TO_COPY = (
    WORKERS_OF_TASKS,
    "shallow_mirror.sinks.archive.archive_slot_target",
    "shallow_mirror.sinks.slots.archive_readings",
    "shallow_mirror.sinks.slots.slot_task",
)


def installed_pyspark_first(path: list[str]) -> list[str]:
    """Return `path` without the zip file of PySpark that Spark puts in front, where the package that holds this file is on it.

    What is imported from a zip file is compiled again by each process: 0.6 CPU seconds for what a daemon imports of PySpark.
    """
    others = [entry for entry in path if not entry.endswith(_PYSPARK_ZIP)]
    installed = PathFinder.find_spec("pyspark", others)
    if installed is None or installed.origin is None:
        return path
    package = Path(installed.origin).resolve().parent
    return [entry for entry in path if not entry.endswith(_PYSPARK_ZIP) or package not in Path(entry).resolve().parents]


def main() -> None:
    """Run the daemon. The kind of worker is the only argument."""
    sys.path[:] = installed_pyspark_first(sys.path)
    from pyspark.daemon import manager

    begin_logging_from_environment()
    if OWN_SESSION_VARIABLE in os.environ:
        keep_pandas_out()
    if sys.argv[1] == WORKERS_OF_TASKS:
        for name in _IMPORTED_TO_READ_PLANS if READS_PLANS_VARIABLE in os.environ else _IMPORTED_TO_COPY:
            importlib.import_module(name)
        gc.collect()
        gc.freeze()
    manager()


if __name__ == "__main__":
    main()
