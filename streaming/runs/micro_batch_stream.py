"""Driver: micro-batches of Structured Streaming: a Python data source plans them, `foreachBatch` hands them to the sink."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from shallow_mirror.errors import MirrorError, RetriableError
from shallow_mirror.log_context import in_context
from shallow_mirror.sinks.micro_batches import find_unfit_python, find_unwritable_folder, lost_worker, raising_unwritable_folder
from shallow_mirror.streaming.planning.error_transport import deserialize_error
from shallow_mirror.streaming.runs.query import Query
from shallow_mirror.streaming.spark.planning_daemons import PlanningDaemons

_log = logging.getLogger(__name__)


class _StreamingQuery:
    def __init__(self, query: Any, checkpoint: str) -> None:
        self._query = query
        self._checkpoint = checkpoint
        self._failure: StreamingQueryException | None = None

    def wait(self, seconds: float) -> bool:
        try:
            return bool(self._query.awaitTermination(seconds))
        except StreamingQueryException as error:
            self._failure = error
            return True

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise _error_of(str(self._failure), self._checkpoint) from self._failure


@contextmanager
def stream_micro_batches(query: Query) -> Iterator[_StreamingQuery]:
    """Begin the streaming query, with Spark's checkpoint in the `checkpoint` of the settings. Its planner is another process."""
    # Imported here: Spark before 4.2 lacks what the sources are made of.
    from shallow_mirror.config import MirrorConfig
    from shallow_mirror.streaming.sources import kafka_batches, planned_ranges

    spark, config = query.spark, query.options.config
    is_through_spark = isinstance(config, MirrorConfig) and config.read.transfer == "through-spark"
    named_sink = in_context(query.sink)  # Spark calls it in a thread of its own
    with PlanningDaemons(spark) as daemons:  # before Spark starts the first of them
        if is_through_spark:
            source_format = kafka_batches.NAME
            kafka_batches.register_kafka_batches(spark)
        else:
            source_format = planned_ranges.NAME
            planned_ranges.register_planned_ranges(spark)
        stream = spark.readStream.format(source_format).options(**query.options.to_spark()).load()

        def copy(planned: DataFrame, spark_batch_id: int) -> None:
            daemons.end_of_planning()  # Spark has made the plan of the micro-batch, which holds how to read
            with query.health.micro_batch():
                named_sink(planned, spark_batch_id)

        writer = stream.writeStream.foreachBatch(copy).option("checkpointLocation", config.checkpoint)
        trigger = {"availableNow": True} if query.trigger_s is None else {"processingTime": f"{query.trigger_s} seconds"}
        with raising_unwritable_folder(config.checkpoint):
            started = writer.trigger(**trigger).start()
        daemons.end_of_creation()
        try:
            yield _StreamingQuery(started, config.checkpoint)
        finally:
            started.stop()


def _error_of(text: str, checkpoint: str) -> MirrorError:
    """Return the planner's error from the text that Spark passes on, or another error that ended the query."""
    error = deserialize_error(text) or find_unfit_python(text) or find_unwritable_folder(text, checkpoint)
    if error is not None:
        return error
    lost = lost_worker(text)
    if lost is not None:
        return RetriableError("WORKER_LOST", f"Spark lost the planner's process: {lost}")
    _log.error("the streaming query ended: %s", text)
    return MirrorError(f"the streaming query ended: {text.splitlines()[0] if text else 'Spark does not say why'}")
