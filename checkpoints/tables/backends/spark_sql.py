"""Driver: Spark SQL as tables of the mirror need it: sessions, names, types, conditions, errors.

PySpark is imported late: commands that only read tables in a folder start without it.
"""

from __future__ import annotations

import contextlib
import operator
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from shallow_mirror.checkpoints.rows.codec import TIMESTAMP
from shallow_mirror.checkpoints.rows.schema import schema_of, table_uri
from shallow_mirror.checkpoints.tables.backends.log_durability import LocalLog, local_log
from shallow_mirror.checkpoints.tables.table_protocol import Condition, Conditions, any_in_sql, condition_in_sql, damaged_table
from shallow_mirror.errors import ConfigError, OffsetMapConflictError
from shallow_mirror.spark_connect import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OPERATORS = {"=": operator.eq, "!=": operator.ne, "<=": operator.le, ">": operator.gt}

_SESSION_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",  # VACUUM starts so many tasks
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.vacuum.logging.enabled": "false",  # two commits a VACUUM
}

PLAIN_TABLE = {
    "delta.enableDeletionVectors": "false",
    "delta.columnMapping.mode": "none",
    "delta.enableRowTracking": "false",
    "delta.autoOptimize.autoCompact": "false",
    "delta.autoOptimize.optimizeWrite": "false",
}
"""So that any reader can read it, wherever a runtime has other defaults; and no other job commits."""

_SQL_TYPES = {
    pa.string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    TIMESTAMP: "timestamp",
}
ARROW_TYPES = {sql: str(arrow) for arrow, sql in _SQL_TYPES.items()}

NO_TABLE = frozenset(
    {"TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "DELTA_TABLE_ONLY_OPERATION", "DELTA_MISSING_DELTA_TABLE",
     "DELTA_PATH_DOES_NOT_EXIST", "DELTA_TABLE_NOT_FOUND", "PATH_NOT_FOUND"}
)  # fmt: skip
"""Of a path without a table as well as of one with other files, which `create` tells apart."""


_DAMAGED_FILE = re.compile(
    r"FAILED_READ_FILE\.FILE_NOT_EXIST|DELTA_FILE_NOT_FOUND|is not a Parquet file|ParquetDecodingException|ChecksumException|"
    r"can not read class org\.apache\.parquet\.format"
)
"""The condition of Spark is FAILED_READ_FILE whatever made a read fail."""


def writer_session(spark: SparkSession) -> SparkSession:
    """Return a new session on the same Spark, with the settings of `spark` as they are now: those of a commit stay in it.

    Raises ConfigError where a client of Spark Connect cannot make one.
    """
    if not is_connect(spark):
        own = spark.newSession()
        settings = spark.conf.getAll | _SESSION_SETTINGS
    elif hasattr(spark, "cloneSession"):
        try:
            own = spark.cloneSession()
            own.client.set_retry_policies(spark.client.get_retry_policies())
        except spark_errors() as error:
            raise ConfigError(
                f"tables: this session of Spark Connect cannot be cloned: {first_line(error)}: start again with a new session"
            ) from error
        settings = _SESSION_SETTINGS
    else:
        raise ConfigError(
            "tables that Spark writes need a session of their own, which this client of Spark Connect cannot make: install "
            "PySpark 4.1 or newer, put them in a folder or an object store (tables_writer: deltalake), or use a classic session"
        )
    for name, value in settings.items():
        if own.conf.get(name, None) != value and own.conf.isModifiable(name):
            own.conf.set(name, value)
    return own


def frame_of(session: SparkSession, rows: pa.Table) -> DataFrame:
    """Return the rows in one partition. The active session of this thread stays: building a DataFrame would make it `session`."""
    if is_connect(session):
        columns = columns_in_sql(rows.schema)
        # Without rows it would infer no schema.
        return (session.createDataFrame(rows) if rows.num_rows else session.createDataFrame([], columns)).coalesce(1)
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    try:
        return session.createDataFrame(rows).coalesce(1)
    finally:
        if active is not None:
            active.createDataFrame([], "nothing int")


def name_in_sql(tables: str, table: str) -> str:
    """Return the name of a table as SQL has it. `tables`: the root of a `TableLocation`."""
    schema = schema_of(tables)
    return table_of_path(table_uri(tables, table)) if schema is None else table_of_schema(schema, table)


def table_of_schema(schema: str, table: str) -> str:
    return ".".join(_quoted(part) for part in (*schema.split("."), table))


def table_of_path(path: str) -> str:
    return f"delta.{_quoted(path)}"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def columns_in_sql(schema: pa.Schema) -> str:
    """Return the columns as CREATE TABLE has them. Pure."""
    return ", ".join(f"{_quoted(field.name)} {_sql_type(field.type)}" for field in schema)


def _sql_type(column: pa.DataType) -> str:
    if pa.types.is_map(column):
        return f"MAP<{_sql_type(column.key_type)}, {_sql_type(column.item_type)}>"
    if pa.types.is_list(column):
        return f"ARRAY<{_sql_type(column.value_type)}>"
    if pa.types.is_struct(column):
        return f"STRUCT<{', '.join(f'{_quoted(field.name)}: {_sql_type(field.type)}' for field in column)}>"
    return _SQL_TYPES[column]


def properties_in_sql(settings: Mapping[str, str]) -> str:
    return ", ".join(f"'{name}' = '{_escaped(value)}'" for name, value in settings.items())


def sql_of(condition: Condition) -> str:
    """Return a condition as SQL: Delta's DELETE takes no parameters."""
    return condition_in_sql(condition, literal)


def sql_of_any(conditions: Conditions) -> str:
    """Build the condition of a DELETE: rows that match at least one of the conditions."""
    return any_in_sql(conditions, literal)


def literal(value: object) -> str:
    """Return a value as SQL has it."""
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value.astimezone(UTC).isoformat(sep=' ')}'"
    return f"'{_escaped(value)}'" if isinstance(value, str) else str(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def log_of(session: SparkSession, name_in_sql: str) -> LocalLog | None:
    """Return the log of a table on this machine; None where it is elsewhere: a server of Spark Connect may have other folders."""
    log = local_log(session.sql(f"DESCRIBE DETAIL {name_in_sql}").collect()[0].location)
    return None if log is None or (is_connect(session) and not log.is_here) else log


def where(frame: DataFrame, condition: Condition) -> DataFrame:
    from pyspark.sql.functions import col, lit

    for comparison in condition:
        frame = frame.where(_OPERATORS[comparison.operator](col(comparison.column), lit(comparison.value)))
    return frame


def history(session: SparkSession, name: str, limit: int | None) -> list[Any]:
    rows = session.sql(f"DESCRIBE HISTORY {name}" + ("" if limit is None else f" LIMIT {limit}"))
    return list(rows.select("version", "userMetadata").collect())


def spark_errors() -> tuple[type[Exception], ...]:
    """Return the errors that a call of Spark may raise. Imported late: commands that only read tables in a folder start
    without PySpark.
    """
    from pyspark.errors import PySparkException

    errors: list[type[Exception]] = [PySparkException, OSError, ValueError]
    with contextlib.suppress(ImportError):  # a client of Spark Connect alone has no JVM to call
        from py4j.protocol import Py4JError

        errors.append(Py4JError)
    grpc = sys.modules.get("grpc")
    if grpc is not None:  # a client of Spark Connect passes some errors of its channel on
        errors.append(grpc.RpcError)
    return tuple(errors)


def condition_of(error: Exception) -> str | None:
    condition = getattr(error, "getCondition", lambda: None)()
    return None if condition is None else str(condition).split(".")[0]


def damage_of(table: str, error: Exception) -> OffsetMapConflictError | None:
    """Return the error to raise if a data file of the table is missing or damaged; None for any other cause."""
    causes = (line.strip().removeprefix("Caused by: ") for line in str(error).splitlines())
    cause = next((line for line in causes if _DAMAGED_FILE.search(line)), None)
    return None if cause is None else damaged_table(table, cause, error)


def first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
