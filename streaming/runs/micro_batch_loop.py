"""Driver: micro-batches without Structured Streaming: the driver plans, and each round of slots is a batch job of Spark.

For sessions in which Structured Streaming does not do what a mirror needs: Spark before 4.2 has no admission control for Python
data sources, and Spark Connect runs the function of `foreachBatch` in another process. There is no checkpoint of Spark: a start
begins at the positions of the offset map. Planner processes and daemons are not needed either.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame

from shallow_mirror.broker import Cluster
from shallow_mirror.log_context import in_context
from shallow_mirror.sinks import TaskFunction
from shallow_mirror.sinks.micro_batches import StoppedBeforeMicroBatchError
from shallow_mirror.sinks.slots import arrow_batch_of, ranges_by_slot
from shallow_mirror.spark_connect import OpenSessions
from shallow_mirror.streaming.planning.planner import MicroBatchPlanner
from shallow_mirror.streaming.runs.query import Query
from shallow_mirror.types import PlannedRange

IDLE_S = 0.1
"""Between two plans of a query with `trigger: 0 seconds` of which the first found nothing new."""


class _StoppedError(Exception):
    """Raised in the thread of the loop if its query is to end while the planner waits."""


@contextmanager
def loop_micro_batches(query: Query) -> Iterator[_Loop]:
    """Begin the loop, in a thread of its own. The job of a micro-batch that still runs at the end is cancelled."""
    loop = _Loop(query)
    loop.start()
    try:
        yield loop
    finally:
        loop.stop()


class _Loop:
    def __init__(self, query: Query) -> None:
        self._query = query
        self._is_ending = threading.Event()
        self._tag = f"shallow-mirror-{uuid.uuid4().hex}"
        self._thread = threading.Thread(target=in_context(self._run), name="micro-batches", daemon=True)
        self._failure: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End the loop, and cancel the job of the micro-batch that runs.

        Without limit of time: a micro-batch that were left running could still decide something beside the next query. Its round
        has a deadline of its own.
        """
        self._is_ending.set()
        while self._thread.is_alive():
            self._query.spark.interruptTag(self._tag)  # again and again: the next round may be about to begin
            self._thread.join(1.0)

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._query.spark.addTag(self._tag)
            with suppress(_StoppedError, StoppedBeforeMicroBatchError):
                self._copy()
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits for the end of the query
            self._failure = error

    def _copy(self) -> None:
        options = self._query.options
        with closing(Cluster(options.config.source.client, cluster_id=options.source_cluster_id)) as source:
            planner = options.make_planner(source, sleep=self._sleep, deadline_clock=self._deadline_clock)
            self._plan_and_copy(planner)

    def _plan_and_copy(self, planner: MicroBatchPlanner) -> None:
        query, number, sessions = self._query, 0, OpenSessions(self._query.spark)
        initial = query.options.initial
        current = planner.initial() if initial is None else initial
        if query.trigger_s is None:
            planner.prepare_available_now()
        while not self._is_ending.is_set():
            began = time.monotonic()
            sessions.use()
            end = planner.latest(current)
            ranges = planner.ranges(current, end) if end != current else ()
            if ranges:
                with query.health.micro_batch():
                    query.sink(PlannedSlots.of(query.spark, ranges), number)
                number += 1
            elif end == current and query.trigger_s is None:
                return
            current = end
            if query.trigger_s is not None:
                least_s = 0.0 if ranges else IDLE_S
                self._is_ending.wait(max(least_s, query.trigger_s - (time.monotonic() - began)))

    def _sleep(self, seconds: float) -> None:
        if self._is_ending.wait(seconds):
            raise _StoppedError

    def _deadline_clock(self) -> float:
        """Return the time, and infinity at the end of the query: requests that still wait for the source give up then."""
        return math.inf if self._is_ending.is_set() else time.monotonic()


@dataclass(frozen=True, slots=True)
class PlannedSlots:
    """The planned ranges of a micro-batch with one input partition per slot. For the sink it is a data frame.

    The ranges are part of the function: each task has one Python worker, as it would not behind a first `mapInArrow`.
    """

    spark: Any
    slots: tuple[pa.RecordBatch, ...]

    @classmethod
    def of(cls, spark: Any, ranges: Sequence[PlannedRange]) -> PlannedSlots:
        return cls(spark, tuple(arrow_batch_of(slot) for slot in ranges_by_slot(ranges)))

    def mapInArrow(self, function: TaskFunction, schema: str) -> DataFrame:  # noqa: N802 - Spark's name
        count = len(self.slots)
        return self.spark.range(0, count, 1, count).mapInArrow(_OfSlot(self.slots, function), schema)


@dataclass(frozen=True, slots=True)
class _OfSlot:
    """Call the function with the rows of the slot whose number is the row of the input partition."""

    slots: tuple[pa.RecordBatch, ...]
    function: TaskFunction

    def __call__(self, arrow_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        numbers = [number for batch in arrow_batches for number in batch.column(0).to_pylist()]
        return self.function(iter([self.slots[number] for number in numbers]))
