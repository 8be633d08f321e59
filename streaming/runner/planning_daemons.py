"""Driver: Spark's daemons of Python workers that only planned a query, ended where they have nothing more to do.

Spark starts a daemon, and a worker in it, for each step of planning a Python data source, and lets the daemons run until the
session ends: about 40 MB each, for a second of work. Spark starts another daemon where it needs one again.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from shallow_mirror.streaming.runner.pyarrow_alone import OWN_SESSION_VARIABLE

_log = logging.getLogger(__name__)

CREATING = ("pyspark.sql.worker.lookup_data_sources", "pyspark.sql.worker.create_data_source")
"""Spark needs them until the query is begun."""

PLANNING = (*CREATING, "pyspark.sql.worker.plan_data_source_read")
"""And these until it has the plan of a first micro-batch."""

_DAEMON = "pyspark.daemon"
_PROCESSES = Path("/proc")


class PlanningDaemons:
    """The planning daemons of the session of one query. Nothing is done to a session that others may use as well."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._is_own = OWN_SESSION_VARIABLE in os.environ
        self._is_planned = False

    def end_of_creation(self) -> None:
        """End what looked up and created the data source: the query is begun."""
        if self._is_own:
            end_daemons(self._spark, CREATING)

    def end_of_planning(self) -> None:
        """End, once, what planned the reading as well: there is the plan of a micro-batch."""
        if self._is_own and not self._is_planned:
            self._is_planned = True
            end_daemons(self._spark, PLANNING)


def end_daemons(spark: Any, modules: Collection[str]) -> int:
    """End the daemons of a local session that run workers of `modules`; return how many there were.

    Where the system does not list processes in /proc, and where the session has its JVM from elsewhere, there are none.
    """
    jvm = spark.sparkContext._gateway.proc
    daemons = [] if jvm is None else list(_daemons_of(jvm.pid, modules))
    for pid in daemons:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.kill(pid, signal.SIGTERM)  # it ends its workers first
    _log.debug("ended %d planning daemons of Spark", len(daemons))
    return len(daemons)


def _daemons_of(jvm_pid: int, modules: Collection[str]) -> Iterator[int]:
    for folder in _PROCESSES.glob("[0-9]*"):
        try:
            # The name of the command, in parentheses, may hold anything: what follows the last one are numbers.
            parent_pid = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            words = (folder / "cmdline").read_text().split("\0") if parent_pid == jvm_pid else []
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        if _DAEMON in words and not set(words).isdisjoint(modules):
            yield int(folder.name)
