"""Driver and reading commands: where the tables of a mirror are, which writer they have, and who reads them.

`tables` is a folder, a URI, or `catalog:<catalog>.<schema>`, which only Spark reaches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from shallow_mirror.checkpoints.backends.deltalake_writer import DeltalakeWriter
from shallow_mirror.checkpoints.backends.spark_sql import table_of_path, table_of_schema, writer_session
from shallow_mirror.checkpoints.backends.spark_writer import SparkWriter
from shallow_mirror.checkpoints.schema import CATALOG, OFFSET_MAP_TABLE, PROPERTY_WRITER, schema_of, table_uri
from shallow_mirror.checkpoints.table_protocol import TableWriter
from shallow_mirror.checkpoints.table_storage import Tables, storage_of
from shallow_mirror.errors import ConfigError, StoreUnreachableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WriterName = Literal["deltalake", "spark"]

_OF_DATABRICKS = ("dbfs:", "/Volumes/", "/dbfs/")


def is_read_by_spark(tables: Tables) -> bool:
    """Whether only Spark reaches them: there is no reading without a JVM then."""
    return storage_of(tables).location.startswith((CATALOG, "dbfs:"))


def choose_writer(tables: Tables, setting: str) -> WriterName:
    """Return the writer by `setting`, which is `tables_writer`; `auto` keeps the writer that created the map, if there is one.

    Raises ConfigError where the store refuses (credentials, bucket), StoreUnreachableError where it does not answer.
    """
    if setting != "auto":
        return "spark" if setting == "spark" else "deltalake"
    storage = storage_of(tables)
    if storage.location.startswith((CATALOG, *_OF_DATABRICKS)):
        return "spark"
    writer = DeltalakeWriter(storage.uri(), storage)
    writer.mend()
    try:
        found = writer.snapshot()
    except StoreUnreachableError as error:
        if error.is_refused:  # before the first run has begun nothing is gained by waiting for other credentials
            raise ConfigError(str(error)) from error
        raise
    return "spark" if found is not None and found.properties.get(PROPERTY_WRITER) == SparkWriter.name else "deltalake"


def open_writer(tables: Tables, writer: WriterName, spark: SparkSession | None) -> TableWriter:
    """Of the offset map. Raises ConfigError when the writer needs a Spark session and there is none."""
    storage = storage_of(tables)
    if writer == "deltalake":
        return DeltalakeWriter(storage.uri(), storage)
    return SparkWriter(writer_session(_needed(spark, storage.location)), name_in_sql(storage.location, OFFSET_MAP_TABLE))


def open_reader(tables: Tables, spark: SparkSession | None = None) -> TableWriter:
    """A writer that is only asked for snapshots: without a JVM wherever that can be, whoever wrote the map."""
    return open_writer(tables, "spark" if is_read_by_spark(tables) else "deltalake", spark)


def name_in_sql(tables: str, table: str) -> str:
    schema = schema_of(tables)
    return table_of_path(table_uri(tables, table)) if schema is None else table_of_schema(schema, table)


def _needed(spark: SparkSession | None, tables: str) -> SparkSession:
    if spark is None:
        raise ConfigError(f"only Spark reaches the tables in {tables}: give a session with Delta that has this catalog")
    return spark
