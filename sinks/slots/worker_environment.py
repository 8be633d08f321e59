"""Driver and executors: purpose of a Python worker, in its environment.

A task has two Python workers, one that reads planned ranges and one that copies. Spark takes each of them from those that have
waited longest, so they would swap in every micro-batch: twice as many workers would have connections, and buffers. It keeps
workers apart whose environment differs.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

READS_PLANS_VARIABLE = "SHALLOW_MIRROR_READS_PLANS"
"""Set for workers that only hand planned ranges to those that copy."""

_environment = threading.Lock()
"""Of the Spark session, which all mirrors of a process share."""


@contextmanager
def environment_of_plan_readers(spark: Any) -> Iterator[None]:
    """Let the functions that this thread hands to Spark run in workers that read plans."""
    environment = spark.sparkContext.environment
    with _environment:
        environment[READS_PLANS_VARIABLE] = "1"
        try:
            yield
        finally:
            del environment[READS_PLANS_VARIABLE]


@contextmanager
def environment_of_copiers() -> Iterator[None]:
    """Let the functions that this thread hands to Spark run in workers that copy: those of no other purpose."""
    with _environment:
        yield
