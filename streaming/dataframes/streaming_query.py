"""Driver: which micro-batch of which query foreachBatch was called with, as far as Spark tells."""

from __future__ import annotations

import logging
import time
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql.utils import is_remote

from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.sinks.records import MicroBatchId
from shallow_mirror.spark_connect import is_connect

_log = logging.getLogger(__name__)

_QUERY_ID, _RUN_ID = "sql.streaming.queryId", "spark.jobGroup.id"
"""Local properties of the thread of a query (StreamExecution)."""
_LISTED_WITHIN_MS, _PAUSE_S = 10_000, 0.1


def micro_batch_of(rows: Any, batch_id: int, sink: str, starter: Any) -> tuple[MicroBatchId, str]:
    """Return the micro-batch that the DataFrame of foreachBatch is, and the run of its query. `sink`: the name of the sink.

    `starter`: with Spark Connect the session that has started the query; None if it is not known. Raises ConfigError outside of
    foreachBatch, and if Spark Connect does not tell which query runs.
    """
    spark = rows.sparkSession
    if is_connect(spark):
        query_id, run_id = _query_of_connect(spark, sink, starter)
        return MicroBatchId(query_id=query_id, batch_id=batch_id), run_id
    query_id = spark.sparkContext.getLocalProperty(_QUERY_ID)
    if query_id is None:
        raise ConfigError("the sink was not called by foreachBatch: a batch job calls `write(dataframe, job_id=...)`")
    offsets = _source_offsets(spark, query_id, batch_id)
    run_id = str(spark.sparkContext.getLocalProperty(_RUN_ID))
    return MicroBatchId(query_id=query_id, batch_id=batch_id, source_offsets=offsets), run_id


def session_of_worker() -> Any:
    """Return the session of Spark Connect that this process of the server runs in; None in any other process.

    To be called while the function of foreachBatch is unpickled: from Spark 4.3 on micro-batches have a clone of the session,
    which lists no queries, and before the first of them the clone takes the place of the active session.
    """
    if not is_remote():
        return None
    from pyspark.sql.connect.session import SparkSession

    return SparkSession.getActiveSession()


def _query_of_connect(spark: Any, sink: str, starter: Any) -> tuple[str, str]:
    """Return query id and run id. The worker of foreachBatch is not told, but lists the queries of the session."""
    lists = spark if starter is None else starter  # before Spark 4.3 both are one session
    patience = Deadline.after_ms(_LISTED_WITHIN_MS, time.monotonic)
    while not (active := lists.streams.active) and not patience.is_over():
        time.sleep(_PAUSE_S)  # the first micro-batch may begin before the server lists its query
    if not active:
        raise ConfigError(
            f"the server of Spark Connect ({spark.version}) does not list the query of this micro-batch: give foreachBatch a "
            "sink that was created beside the query, not in its function, or use a classic session"
        )
    chosen = [query for query in active if query.name == sink] or active
    if len(chosen) != 1:
        raise ConfigError(
            f"Spark Connect runs {len(active)} queries in this session and does not tell which one this micro-batch is of: "
            f"name the query as the sink, queryName({sink!r})"
        )
    return str(chosen[0].id), str(chosen[0].runId)


def _source_offsets(spark: Any, query_id: str, batch_id: int) -> str | None:
    """Return the ends of all sources from Spark's log of offsets, which it writes in front of the micro-batch.

    None if this Spark does not have these internals: then batch ids alone identify a micro-batch.
    """
    try:
        queries = spark._jsparkSession.sharedState().activeStreamingQueries()
        query = queries.get(spark.sparkContext._jvm.java.util.UUID.fromString(query_id))
        offsets = query.offsetLog().get(batch_id)
        return str(offsets.get().toString()) if offsets.isDefined() else None
    except (Py4JError, AttributeError, TypeError) as error:
        _log.info("this Spark does not tell the source offsets of a micro-batch: %s", str(error).partition("\n")[0])
        return None
