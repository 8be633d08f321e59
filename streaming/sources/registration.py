"""Driver: the registration of a data source of this package in a session."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource


def register(spark: SparkSession, source: type[DataSource]) -> None:
    """Register `source` in `spark`."""
    # Spark looks a name up in the session that is *active* in this thread, and without one in the default session: `spark` is
    # made the active one first.
    spark.createDataFrame([], "nothing int")
    spark.dataSource.register(source)
