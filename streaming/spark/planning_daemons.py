"""Driver: Spark's daemons of Python workers that only planned a query, ended where they have nothing more to do.

Spark starts a daemon, and a worker in it, for each step of planning a Python data source, and lets the daemons run until the
session ends: about 40 MB each, for a second of work. Spark starts another daemon where it needs one again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Collection
from types import TracebackType
from typing import Any, ClassVar, Self

from shallow_mirror.streaming.spark.economies import Economy, is_used, switch_off
from shallow_mirror.streaming.spark.pyarrow_alone import OWN_SESSION_VARIABLE

CREATING = ("pyspark.sql.worker.lookup_data_sources", "pyspark.sql.worker.create_data_source")
"""Spark needs them until the query is begun."""

ONLY_READ_PLANS = ("pyspark.sql.worker.plan_data_source_read",)
"""And this one until it has the plan of a first micro-batch."""

PLANNING = (*CREATING, *ONLY_READ_PLANS)

_ENVIRONMENT, _FACTORIES = "org.apache.spark.SparkEnv", "pythonWorkers"
"""The class of Spark's environment, and its field with the factories of Python workers, one for each module."""


class PlanningDaemons:
    """The planning daemons that one query needs. Nothing is done to a session that others may use as well.

    Queries of one process share the daemons: one is ended when no query of the process needs it any more. A query is entered
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
        """End the daemon that looked up and created the data source: the query is begun."""
        self._needs_only(ONLY_READ_PLANS)

    def end_of_planning(self) -> None:
        """End the one that planned the reading as well: there is the plan of a micro-batch. Called for each of them."""
        self._needs_only(())

    def _needs_only(self, modules: Collection[str]) -> None:
        with self._lock:  # a query that begins meanwhile starts other daemons, once these have ended
            before = set(self._needed_by_queries.get(self, ()))  # nothing where the query has ended
            if not before.difference(modules):
                return
            self._needed_by_queries[self] = before.intersection(modules)
            unneeded = set(PLANNING).difference(*self._needed_by_queries.values())
            if self._is_own and unneeded and is_used(Economy.PLANNING_DAEMONS):
                _end_daemons_or_keep_them(self._spark, unneeded)


def _end_daemons_or_keep_them(spark: Any, modules: Collection[str]) -> None:
    """Wait for a thread of its own that ends them: an error of Java may close the thread's connection to the JVM.

    In the thread that calls `foreachBatch`, Java's end of that connection is the streaming query, which would end with it.
    """
    failures: list[Exception] = []

    def end() -> None:
        try:
            end_daemons(spark, modules)
        except Exception as error:  # noqa: BLE001 - of an economy: what another Spark raises is not known
            failures.append(error)

    thread = threading.Thread(target=end, name="end-planning-daemons", daemon=True)
    thread.start()
    thread.join()
    if failures:  # logged here, where the name of the mirror is known
        switch_off(Economy.PLANNING_DAEMONS, failures[0])


def end_daemons(spark: Any, modules: Collection[str]) -> int:
    """End the daemons of a local session that run workers of `modules`; return how many kinds there were.

    By the factories of Spark, which then know that there is no daemon. They are internal to Spark: raises whatever another
    version makes of that.
    """
    factories = _worker_factories(spark)
    keys, count = factories.keysIterator(), 0
    while keys.hasNext():
        key = keys.next()
        if key.workerModule() in modules:
            factories.apply(key).stop()
            count += 1
    return count


def _worker_factories(spark: Any) -> Any:
    """Return Scala's map of the factories of Python workers.

    Only fields are read: a call of a method makes Java look at all methods of the class, and those of Spark 4.3 name classes
    that are not in its jars. py4j has no reply to that error for a static method: it closes the connection.
    """
    companion = f"{_ENVIRONMENT}$"
    env = _field(spark, companion, "env").get(_field(spark, companion, "MODULE$").get(None))
    return _field(spark, _ENVIRONMENT, _FACTORIES).get(env)


def _field(spark: Any, class_name: str, name: str) -> Any:
    field = spark._jvm.java.lang.Class.forName(class_name).getDeclaredField(name)
    field.setAccessible(True)
    return field
