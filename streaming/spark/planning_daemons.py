"""Driver: Spark's daemons of Python workers that only planned a query, ended where they have nothing more to do.

Spark starts a daemon, and a worker in it, for each step of planning a Python data source, and lets the daemons run until the
session ends: about 40 MB each, for a second of work. Spark starts another daemon where it needs one again.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Collection
from types import TracebackType
from typing import Any, ClassVar, Self

from py4j.protocol import Py4JError

from shallow_mirror.streaming.spark.pyarrow_alone import OWN_SESSION_VARIABLE

_log = logging.getLogger(__name__)

CREATING = ("pyspark.sql.worker.lookup_data_sources", "pyspark.sql.worker.create_data_source")
"""Spark needs them until the query is begun."""

ONLY_READ_PLANS = ("pyspark.sql.worker.plan_data_source_read",)
"""And this one until it has the plan of a first micro-batch."""

PLANNING = (*CREATING, *ONLY_READ_PLANS)

_FACTORIES = "pythonWorkers"
"""The field of Spark's environment with the factories of Python workers, one for each module."""


class PlanningDaemons:
    """The planning daemons that one query needs. Nothing is done to a session that others may use as well.

    Queries of one process share the daemons: one is ended where no query of the process needs it any more. A query is entered
    before Spark starts the first daemon for it.
    """

    _lock = threading.Lock()
    _needed_by_queries: ClassVar[dict[PlanningDaemons, Collection[str]]] = {}
    """What each query of this process still needs, while it runs."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        # A session of Spark Connect has no JVM here; the variable may come from a process that started this one.
        self._is_own = OWN_SESSION_VARIABLE in os.environ and hasattr(spark, "_jvm")

    def __enter__(self) -> Self:
        with self._lock:
            self._needed_by_queries[self] = PLANNING
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        with self._lock:
            del self._needed_by_queries[self]

    def end_of_creation(self) -> None:
        """End what looked up and created the data source: the query is begun."""
        self._needs_only(ONLY_READ_PLANS)

    def end_of_planning(self) -> None:
        """End what planned the reading as well: there is the plan of a micro-batch. Called for each of them."""
        self._needs_only(())

    def _needs_only(self, modules: Collection[str]) -> None:
        with self._lock:  # a query that begins meanwhile starts other daemons, once these have ended
            before = set(self._needed_by_queries.get(self, ()))  # nothing where the query has ended
            if not before.difference(modules):
                return
            self._needed_by_queries[self] = before.intersection(modules)
            unneeded = set(PLANNING).difference(*self._needed_by_queries.values())
            if self._is_own and unneeded:
                end_daemons(self._spark, unneeded)


def end_daemons(spark: Any, modules: Collection[str]) -> int:
    """End the daemons of a local session that run workers of `modules`; return how many kinds there were.

    By the factories of Spark, which then know that there is no daemon. They are internal to Spark: a version with others keeps
    its daemons, which is logged.
    """
    try:
        factories = _worker_factories(spark)
        keys, count = factories.keysIterator(), 0
        while keys.hasNext():
            key = keys.next()
            if key.workerModule() in modules:
                factories.apply(key).stop()
                count += 1
    except Py4JError as error:
        _log.warning("Spark's planning daemons stay in memory: %s", str(error).partition("\n")[0])
        return 0
    return count


def _worker_factories(spark: Any) -> Any:
    """Return Scala's map of the factories of Python workers."""
    env = spark._jvm.org.apache.spark.SparkEnv.get()
    field = env.getClass().getDeclaredField(_FACTORIES)
    field.setAccessible(True)
    return field.get(env)
