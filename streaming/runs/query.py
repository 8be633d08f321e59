"""Driver: one streaming query of a mirror or an archive, until it ends or a stop is requested."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from shallow_mirror.errors import MirrorError, RetriableError
from shallow_mirror.log_context import in_context
from shallow_mirror.sinks.micro_batches.micro_batch import MicroBatchSink
from shallow_mirror.sinks.micro_batches.spark_failures import (
    find_unfit_python,
    find_unwritable_folder,
    lost_worker,
    raising_unfit_python,
    raising_unwritable_folder,
)
from shallow_mirror.streaming.planning.error_transport import deserialize_error
from shallow_mirror.streaming.runs.supervisor import Supervisor
from shallow_mirror.streaming.sources import kafka_batches, planned_ranges
from shallow_mirror.streaming.spark.planning_daemons import PlanningDaemons
from shallow_mirror.streaming.watch.health import RunHealth

_log = logging.getLogger(__name__)

_POLL_S = 0.2
_QUIET_S = 1.0
"""A query is idle when nothing came for this long beyond its trigger interval."""


@raising_unfit_python()
def run_query(
    spark: Any,
    source_format: str,
    sink: MicroBatchSink,
    options: Mapping[str, str],
    *,
    checkpoint: str,
    trigger_s: float | None,
    settle_after_s: float,
    supervisor: Supervisor,
    health: RunHealth,
    check: Callable[[], None],
) -> None:
    """Run the query. `trigger_s` None: until the offsets of its start. `check` is called several times a second.

    Raises what ended the micro-batch that ran last, else what ended the planner.
    """
    failure: StreamingQueryException | None = None
    named_sink = in_context(sink)  # Spark calls it in a thread of its own
    with PlanningDaemons(spark) as daemons:  # before Spark starts the first of them
        if source_format == planned_ranges.NAME:
            planned_ranges.register_planned_ranges(spark)
        else:
            kafka_batches.register_kafka_batches(spark)
        stream = spark.readStream.format(source_format).options(**options).load()

        def copy(planned: DataFrame, spark_batch_id: int) -> None:
            daemons.end_of_planning()  # Spark has made the plan of the micro-batch, which holds how to read
            with health.micro_batch():
                named_sink(planned, spark_batch_id)

        writer = stream.writeStream.foreachBatch(copy).option("checkpointLocation", checkpoint)
        trigger = {"availableNow": True} if trigger_s is None else {"processingTime": f"{trigger_s} seconds"}
        with raising_unwritable_folder(checkpoint):
            query = writer.trigger(**trigger).start()
        daemons.end_of_creation()
        try:
            while not query.awaitTermination(_POLL_S):
                if supervisor.is_over():
                    _log.info("ending after the micro-batch that runs")
                    sink.stop()
                    break
                check()
                sink.register_if_idle()
                sink.settle_if_idle(settle_after_s + _QUIET_S)
        except StreamingQueryException as error:
            failure = error
        finally:
            query.stop()
    if sink.failure is not None:
        raise sink.failure
    if failure is not None:
        raise _planner_error(str(failure), checkpoint) from failure


def _planner_error(text: str, checkpoint: str) -> MirrorError:
    """Return the planner's error from the text that Spark passes on, or what else ended the query."""
    error = deserialize_error(text) or find_unfit_python(text) or find_unwritable_folder(text, checkpoint)
    if error is not None:
        return error
    lost = lost_worker(text)
    if lost is not None:
        return RetriableError("WORKER_LOST", f"Spark lost the planner's process: {lost}")
    _log.error("the streaming query ended: %s", text)
    return MirrorError(f"the streaming query ended: {text.splitlines()[0] if text else 'Spark does not say why'}")
