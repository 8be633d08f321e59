"""Driver: location of an archive whose tables are in a catalog, for the data source `kafka-archive`.

Spark plans a Python data source in a process that has no session, so the data source cannot ask a catalog. It takes the place of
the table instead, which the session says here, and reads it without Spark.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from shallow_mirror.checkpoints.rows import ARCHIVE_SEGMENTS_TABLE
from shallow_mirror.checkpoints.tables.backends import first_line, name_in_sql, spark_errors
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_READ_WITHOUT_SPARK = ("s3://", "s3a://", "abfss://", "abfs://", "gs://")


def kafka_archive_options(spark: SparkSession, archive: str | Path) -> dict[str, str]:
    """Return the options of `kafka-archive` with the location of an archive file's archive, for `DataFrameReader.options`.

    If `tables` of the file is a schema in a catalog, the catalog of `spark` says where the table is. Secrets stay references.
    Raises ConfigError: the file, no such table in the catalog, or a place that only Spark reads.
    """
    config = ArchiveConfig.load(archive)
    if not config.table_location.is_read_by_spark:
        return {"archive": str(Path(archive).absolute())}
    name = name_in_sql(config.tables, ARCHIVE_SEGMENTS_TABLE)
    try:
        location = spark.sql(f"DESCRIBE DETAIL {name}").collect()[0].location
    except spark_errors() as error:
        raise ConfigError(
            f"tables: {name} cannot be found in the session's catalog: {first_line(error)}. Run `shallow-mirror archive run` "
            "once, or use a session that has the catalog"
        ) from error
    storage = {f"storage.{option}": value for option, value in config.storage_options.items()}
    return {"archiveSegments": readable_location(name, location), "objects": config.objects, **storage}


def readable_location(name: str, location: str | None) -> str:
    """Return a table's location as a folder or as a URI that is read without Spark. Raises ConfigError if it is neither."""
    path = (location or "").removeprefix("file://" if (location or "").startswith("file:///") else "file:").rstrip("/")
    if path.startswith(("/", *_READ_WITHOUT_SPARK)):
        return path
    raise ConfigError(
        f"tables: {name} is in {location}, which only Spark reads: write a copy of the table into a folder or a store with "
        "`shallow-mirror archive verify FILE --rebuild TABLES`, and give it as `tables`"
    )
