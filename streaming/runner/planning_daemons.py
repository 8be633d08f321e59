"""Driver: Spark's daemons of Python workers that only planned a query, ended where they have nothing more to do.

Spark starts a daemon, and a worker in it, for each step of planning a Python data source, and lets the daemons run until the
session ends: about 40 MB each, for a second of work. Spark starts another daemon where it needs one again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection
from typing import Any
from weakref import WeakSet

from py4j.protocol import Py4JError

from shallow_mirror.streaming.runner.pyarrow_alone import OWN_SESSION_VARIABLE

_log = logging.getLogger(__name__)

CREATING = ("pyspark.sql.worker.lookup_data_sources", "pyspark.sql.worker.create_data_source")
"""Spark needs them until the query is begun."""

PLANNING = (*CREATING, "pyspark.sql.worker.plan_data_source_read")
"""And these until it has the plan of a first micro-batch."""

_FACTORIES = "pythonWorkers"
"""The field of Spark's environment with the factories of Python workers, one for each module."""


_of_queries: WeakSet[PlanningDaemons] = WeakSet()
"""Of all queries of this process that have begun and not ended."""


class PlanningDaemons:
    """The planning daemons of the session of one query. Nothing is done to a session that others may use as well."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        # A session of Spark Connect has no JVM here; the variable may come from a process that started this one.
        self._is_own = OWN_SESSION_VARIABLE in os.environ and hasattr(spark, "_jvm")
        self._is_planned = False
        _of_queries.add(self)

    def end_of_creation(self) -> None:
        """End what looked up and created the data source: the query is begun."""
        if self._is_alone:
            end_daemons(self._spark, CREATING)

    @property
    def _is_alone(self) -> bool:
        """Return whether no other query of this process may be waiting for a planning daemon."""
        return self._is_own and len(_of_queries) == 1

    def end_of_planning(self) -> None:
        """End, once, what planned the reading as well: there is the plan of a micro-batch."""
        if self._is_alone and not self._is_planned:
            self._is_planned = True
            end_daemons(self._spark, PLANNING)


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
