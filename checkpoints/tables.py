"""Driver and reading commands: where the tables of a mirror are, which writer they have, and who reads them.

`tables` is a folder, a URI, or `catalog:<catalog>.<schema>`, which only Spark reaches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from shallow_mirror.checkpoints.deltalake_writer import DeltalakeWriter
from shallow_mirror.checkpoints.schema import CATALOG, OFFSET_MAP_TABLE, PROPERTY_WRITER, schema_of, table_uri
from shallow_mirror.checkpoints.spark_sql import table_of_path, table_of_schema, writer_session
from shallow_mirror.checkpoints.spark_writer import SparkWriter
from shallow_mirror.checkpoints.table_writer import TableWriter
from shallow_mirror.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WriterName = Literal["deltalake", "spark"]

_OF_DATABRICKS = ("dbfs:", "/Volumes/", "/dbfs/")


def is_read_by_spark(tables: str) -> bool:
    """Whether only Spark reaches them: there is no reading without a JVM then."""
    return tables.startswith((CATALOG, "dbfs:"))


def choose_writer(tables: str, setting: str) -> WriterName:
    """`setting` is `tables_writer`; `auto` goes on with the writer that created the map, if there is one."""
    if setting != "auto":
        return "spark" if setting == "spark" else "deltalake"
    if tables.startswith((CATALOG, *_OF_DATABRICKS)):
        return "spark"
    writer = DeltalakeWriter(table_uri(tables))
    writer.mend()
    found = writer.snapshot()
    return "spark" if found is not None and found.properties.get(PROPERTY_WRITER) == SparkWriter.name else "deltalake"


def open_writer(tables: str, writer: WriterName, spark: SparkSession | None) -> TableWriter:
    """Of the offset map. Raises ConfigError when the writer needs a Spark session and there is none."""
    if writer == "deltalake":
        return DeltalakeWriter(table_uri(tables))
    return SparkWriter(writer_session(_needed(spark, tables)), name_in_sql(tables, OFFSET_MAP_TABLE))


def open_reader(tables: str, spark: SparkSession | None = None) -> TableWriter:
    """A writer that is only asked for snapshots: without a JVM wherever that can be, whoever wrote the map."""
    return open_writer(tables, "spark" if is_read_by_spark(tables) else "deltalake", spark)


def name_in_sql(tables: str, table: str) -> str:
    schema = schema_of(tables)
    return table_of_path(table_uri(tables, table)) if schema is None else table_of_schema(schema, table)


def _needed(spark: SparkSession | None, tables: str) -> SparkSession:
    if spark is None:
        raise ConfigError(f"only Spark reaches the tables in {tables}: give a session with Delta that has this catalog")
    return spark
