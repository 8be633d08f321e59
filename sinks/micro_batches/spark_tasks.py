"""Driver: the tasks of a round, run by Spark: the answer of each slot."""

from __future__ import annotations

import pickle
from typing import Any, Protocol

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from shallow_mirror.errors import MirrorError, RetriableError
from shallow_mirror.log_context import in_context_of_driver
from shallow_mirror.sinks.base import TaskFunction
from shallow_mirror.sinks.micro_batches.spark_failures import lost_worker
from shallow_mirror.sinks.slots.slot_task import RESULT_SCHEMA
from shallow_mirror.sinks.slots.worker_environment import environment_of_copiers


class SlotRows(Protocol):
    """A data frame of Spark, or its substitute: an input partition for each slot, with the rows of its task."""

    def mapInArrow(self, function: TaskFunction, schema: str) -> DataFrame:  # noqa: N802 - Spark's name
        """Return the data frame of the function's results for the rows of each slot."""


def run_tasks(rows: SlotRows, task: TaskFunction) -> list[Any]:
    """Return the answers of `task` for all slots, in no order (`answer_of`). Evaluates the rows once.

    Raises RetriableError if Spark lost a worker, and Spark's errors.
    """
    named_task = in_context_of_driver(task)
    with environment_of_copiers():
        slots = rows.mapInArrow(lambda batches: named_task(batches), RESULT_SCHEMA)
    try:
        table = slots.toArrow()
    except (PySparkException, Py4JError) as failure:
        lost = lost_worker(str(failure))
        if lost is None:
            raise
        raise RetriableError("WORKER_LOST", f"Spark lost a Python worker or executor of the slots: {lost}") from failure
    return [pickle.loads(body) for body in table.column("body").to_pylist()]


def most_actionable(errors: list[MirrorError]) -> MirrorError:
    """Return the error of several slots that a person must act on: definite before retriable."""
    return next((error for error in errors if not isinstance(error, RetriableError)), errors[0])
