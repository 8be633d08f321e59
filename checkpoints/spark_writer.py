"""Driver: the offset map's table through delta-spark: tables of a catalog, and places that only Spark reaches.

Only SQL, DataFrames and documented settings are used, for the classes behind them have other names on Databricks. So there
is no compare-and-set: a commit whose version is not higher than the recorded one is dropped without a word, any other lands
on top of whatever is there. Every commit therefore says on top of which version it was made (`ON_TOP_OF`), and what is
recorded is read from the history of the table, never from an answer.
"""

from __future__ import annotations

import contextlib
import functools
import json
import operator
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from shallow_mirror.checkpoints.local_log import LocalLog, local_log
from shallow_mirror.checkpoints.schema import OFFSET_MAP, PROPERTY_MIRROR, TIMESTAMP
from shallow_mirror.checkpoints.table_writer import (
    COMMITS_KEPT,
    ON_TOP_OF,
    TABLE_SETTINGS,
    TXN_VERSION,
    CommitEntry,
    CommitFailed,
    Condition,
    user_metadata_entry,
)
from shallow_mirror.errors import ConfigError, OffsetMapConflict

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OPERATORS = {"=": operator.eq, "!=": operator.ne, "<=": operator.le, ">": operator.gt}

APP_ID, APP_VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"

_SESSION_SETTINGS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",  # VACUUM starts so many tasks
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.vacuum.logging.enabled": "false",  # two commits a VACUUM
}

_RETENTION = {
    "delta.deletedFileRetentionDuration": "interval 7 days",  # VACUUM goes by it
    "delta.logRetentionDuration": "interval 7 days",  # Spark allows none shorter
}

_PLAIN_TABLE = {
    "delta.enableDeletionVectors": "false",
    "delta.columnMapping.mode": "none",
    "delta.enableRowTracking": "false",
    "delta.autoOptimize.autoCompact": "false",
    "delta.autoOptimize.optimizeWrite": "false",
}
"""So that any reader can read it, wherever a runtime has other defaults; and nobody else commits."""

_SQL_TYPES = {
    pa.string(): "string",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float64(): "double",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
    TIMESTAMP: "timestamp",
}
_ARROW_TYPES = {sql: str(arrow) for arrow, sql in _SQL_TYPES.items()}

_HISTORY_STEPS = (2, 20, 1000, None)
_ROWS_A_PIECE = 50_000

_NO_TABLE = frozenset(
    {"TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "DELTA_TABLE_ONLY_OPERATION", "DELTA_MISSING_DELTA_TABLE",
     "DELTA_PATH_DOES_NOT_EXIST", "DELTA_TABLE_NOT_FOUND", "PATH_NOT_FOUND"}
)  # fmt: skip
"""Of a path without a table as well as of one with other files, which `create` tells apart."""

_DAMAGE = ("com.fasterxml.jackson", "is not a Parquet file", "DELTA_VERSIONS_NOT_CONTIGUOUS", "DELTA_STATE_RECOVER_ERROR")


def writer_session(spark: SparkSession) -> SparkSession:
    """A session of its own on the same Spark, with the settings of `spark` as they are now: those of a commit stay in it."""
    own = spark.newSession()
    for name, value in (spark.conf.getAll | _SESSION_SETTINGS).items():
        if own.conf.get(name, None) != value and own.conf.isModifiable(name):
            own.conf.set(name, value)
    return own


def table_of_schema(schema: str, table: str) -> str:
    return ".".join(_quoted(part) for part in (*schema.split("."), table))


def table_of_path(path: str) -> str:
    return f"delta.{_quoted(path)}"


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


class SparkSnapshot:
    def __init__(self, session: SparkSession, name: str, newest: list[Any]) -> None:
        """`newest`: the last rows of the table's history, the newest first."""
        self._session, self._name, self._newest = session, name, newest

    @property
    def delta_version(self) -> int:
        return int(self._newest[0].version)

    @functools.cached_property
    def properties(self) -> Mapping[str, str]:
        return {row.key: row.value for row in self._session.sql(f"SHOW TBLPROPERTIES {self._name}").collect()}

    @property
    def columns(self) -> list[tuple[str, str]]:
        return [(name, _ARROW_TYPES.get(kind, kind)) for name, kind in self._session.table(self._name).dtypes]

    def txn_version(self) -> int | None:
        """Compactions aside, for that of a fenced run may lie above the take-over; of those the highest, were there no other."""
        compactions = []
        for one in self.commits():
            if one.on_top_of is not None:
                return one.version
            compactions.append(one.version)
        return max(compactions, default=None)

    def commits(self) -> Iterator[CommitEntry]:
        seen = 0
        for limit in _HISTORY_STEPS:
            rows = self._newest if limit == _HISTORY_STEPS[0] else self._older(limit)
            for row in rows[seen:]:
                found = user_metadata_entry(row.userMetadata)
                if found is not None:
                    yield found
            seen = len(rows)
            if limit is not None and seen < limit:
                return

    def _older(self, limit: int | None) -> list[Any]:
        rows = _history(self._session, self._name, limit)
        return [row for row in rows if row.version <= self.delta_version]

    def read(self, condition: Condition = (), columns: list[str] | None = None) -> pa.Table:
        return self._rows(condition, columns).toArrow()

    def batches(self, condition: Condition = (), columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The same rows piece by piece: Spark brings one file of the table at a time."""
        found = self._rows(condition, columns)
        schema = self._rows(condition, columns).limit(0).toArrow().schema
        piece: list[dict[str, Any]] = []
        for row in found.toLocalIterator():
            piece.append(row.asDict())
            if len(piece) == _ROWS_A_PIECE:
                yield pa.RecordBatch.from_pylist(piece, schema=schema)
                piece = []
        yield pa.RecordBatch.from_pylist(piece, schema=schema)

    def _rows(self, condition: Condition, columns: list[str] | None) -> DataFrame:
        found = _where(self._session.read.option("versionAsOf", self.delta_version).table(self._name), condition)
        return found if columns is None else found.select(*columns)


class SparkWriter:
    """`name_in_sql`: of the table, as `table_of_schema` and `table_of_path` make it. `session`: one of `writer_session`."""

    name = "spark"

    def __init__(self, session: SparkSession, name_in_sql: str) -> None:
        self._session, self._table = session, name_in_sql
        self._log: LocalLog | None = None

    def create(self, properties: Mapping[str, str]) -> None:
        """Raises ConfigError where the schema is missing or Spark may not create there."""
        settings = _properties({**TABLE_SETTINGS, **_RETENTION, **_PLAIN_TABLE, **properties})
        try:
            self._session.sql(f"CREATE TABLE {self._table} ({columns_in_sql(OFFSET_MAP)}) USING delta TBLPROPERTIES ({settings})")
        except spark_errors() as error:
            if self.snapshot() is None:
                raise ConfigError(_cannot_create(self._table, error)) from error
        self._find_log()
        self._keep(above=-1)

    def snapshot(self) -> SparkSnapshot | None:
        try:
            return SparkSnapshot(self._session, self._table, _history(self._session, self._table, _HISTORY_STEPS[0]))
        except spark_errors() as error:
            if _condition_of(error) in _NO_TABLE:
                return None
            raise _read_error(self._table, error) from error

    def reread(self, snapshot: Any) -> SparkSnapshot:
        """The same as any: a snapshot is what the history says."""
        found = self.snapshot()
        if found is None:
            raise OffsetMapConflict(f"{self._table} is gone")
        return found

    def append(self, snapshot: Any, rows: pa.Table, version: int, metadata: Mapping[str, str]) -> None:
        """Columns of a later schema version that the rows lack become null."""
        with self._commit_above(snapshot), _active_session_kept():
            frame = self._session.createDataFrame(rows).coalesce(1)
            options = {
                "txnAppId": snapshot.properties[PROPERTY_MIRROR],
                "txnVersion": str(version),
                "userMetadata": _text(metadata, version, snapshot),
            }
            frame.writeTo(self._table).options(**options).append()

    def delete(self, snapshot: Any, condition: Condition, version: int, metadata: Mapping[str, str]) -> None:
        settings = {
            APP_ID: snapshot.properties[PROPERTY_MIRROR],
            APP_VERSION: str(version),
            USER_METADATA: _text(metadata, version, snapshot),
        }
        with self._commit_above(snapshot), self._settings(settings):
            self._session.sql(f"DELETE FROM {self._table} WHERE {_sql_of(condition)}")

    def compact(self, snapshot: Any, metadata: Mapping[str, str]) -> None:
        """Rewrites small files; leaves the application version alone and repeats its metadata."""
        text = json.dumps({**metadata, TXN_VERSION: str(snapshot.txn_version())})
        with self._commit_above(snapshot), self._settings({USER_METADATA: text}):
            self._session.sql(f"OPTIMIZE {self._table}")

    def clean_up(self) -> None:
        """Deletes what no version within the retention needs. Spark itself checkpoints the log and cleans it then."""
        with _commit_errors():
            self._session.sql(f"VACUUM {self._table}")
            if self._log is not None:
                self._log.shorten(COMMITS_KEPT)

    def mend(self) -> None:
        if self.snapshot() is not None:
            self._find_log()
            if self._log is not None:
                self._log.set_torn_aside()

    def _find_log(self) -> None:
        self._log = _log_of(self._session, self._table)

    @contextlib.contextmanager
    def _commit_above(self, snapshot: SparkSnapshot) -> Iterator[None]:
        """Also a commit whose reply was lost is on the disk before it is read back."""
        try:
            with _commit_errors():
                yield
        finally:
            self._keep(snapshot.delta_version)

    def _keep(self, above: int) -> None:
        if self._log is not None:
            self._log.sync(above)

    @contextlib.contextmanager
    def _settings(self, settings: Mapping[str, str]) -> Iterator[None]:
        try:
            for name, value in settings.items():
                self._session.conf.set(name, value)
            yield
        finally:
            for name in settings:
                self._session.conf.unset(name)


def append_rows(session: SparkSession, name_in_sql: str, rows: pa.Table, *, is_kept: bool = False) -> None:
    """To a table beside the offset map, which is created when it is not there. `is_kept`: on the disk when it returns.

    Raises what Spark raises; with `is_kept` OutcomeUnknown.
    """
    with _active_session_kept():
        frame = session.createDataFrame(rows).coalesce(1)
    columns, settings = columns_in_sql(rows.schema), _properties(_PLAIN_TABLE)
    session.sql(f"CREATE TABLE IF NOT EXISTS {name_in_sql} ({columns}) USING delta TBLPROPERTIES ({settings})")
    frame.writeTo(name_in_sql).append()
    log = _log_of(session, name_in_sql) if is_kept else None
    if log is not None:
        log.sync(above=int(_history(session, name_in_sql, 1)[0].version) - 2)  # with the commit that created the table


def columns_in_sql(schema: pa.Schema) -> str:
    """Pure: as CREATE TABLE has them."""
    return ", ".join(f"{_quoted(field.name)} {_SQL_TYPES[field.type]}" for field in schema)


def tidy_rows(session: SparkSession, name_in_sql: str, many_files: int) -> None:
    """Of a table beside the offset map, where it is and consists of many files. Raises what Spark raises."""
    try:
        found = session.sql(f"DESCRIBE DETAIL {name_in_sql}").collect()[0]
    except spark_errors() as error:
        if _condition_of(error) in _NO_TABLE:
            return
        raise
    if int(found.numFiles) >= many_files:
        session.sql(f"OPTIMIZE {name_in_sql}")
        session.sql(f"VACUUM {name_in_sql}")


def read_rows(
    session: SparkSession, name_in_sql: str, condition: Condition, columns: list[str] | None = None
) -> list[dict[str, Any]]:
    """None of a table that is not there. Raises what Spark raises."""
    try:
        found = _where(session.table(name_in_sql), condition)
        return list((found if columns is None else found.select(*columns)).toArrow().to_pylist())
    except spark_errors() as error:
        if _condition_of(error) in _NO_TABLE:
            return []
        raise


def delete_rows(session: SparkSession, name_in_sql: str, condition: Condition) -> None:
    """Of a table beside the offset map, where it is. Raises what Spark raises."""
    try:
        session.sql(f"DELETE FROM {name_in_sql} WHERE {_sql_of(condition)}")
    except spark_errors() as error:
        if _condition_of(error) not in _NO_TABLE:
            raise


def _log_of(session: SparkSession, name_in_sql: str) -> LocalLog | None:
    return local_log(session.sql(f"DESCRIBE DETAIL {name_in_sql}").collect()[0].location)


def _where(frame: DataFrame, condition: Condition) -> DataFrame:
    from pyspark.sql.functions import col, lit

    for one in condition:
        frame = frame.where(_OPERATORS[one.operator](col(one.column), lit(one.value)))
    return frame


def _history(session: SparkSession, name: str, limit: int | None) -> list[Any]:
    rows = session.sql(f"DESCRIBE HISTORY {name}" + ("" if limit is None else f" LIMIT {limit}"))
    return list(rows.select("version", "userMetadata").collect())


def _text(metadata: Mapping[str, str], version: int, snapshot: SparkSnapshot) -> str:
    recorded = snapshot.txn_version()
    return json.dumps({**metadata, TXN_VERSION: str(version), ON_TOP_OF: str(-1 if recorded is None else recorded)})


def _properties(settings: Mapping[str, str]) -> str:
    return ", ".join(f"'{name}' = '{_escaped(value)}'" for name, value in settings.items())


def _sql_of(condition: Condition) -> str:
    """Delta's DELETE takes no parameters."""
    return " AND ".join(f"{one.column} {one.operator} {_literal(one.value)}" for one in condition)


def _literal(value: object) -> str:
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value.astimezone(UTC).isoformat(sep=' ')}'"
    return f"'{_escaped(value)}'" if isinstance(value, str) else str(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


@contextlib.contextmanager
def _commit_errors() -> Iterator[None]:
    try:
        yield
    except spark_errors() as error:
        raise CommitFailed(f"{type(error).__name__}: {_first_line(error)}") from error


@contextlib.contextmanager
def _active_session_kept() -> Iterator[None]:
    """Building a DataFrame makes its session the active one of this thread; whoever had one finds it again."""
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    try:
        yield
    finally:
        if active is not None:
            active.createDataFrame([], "nothing int")


@functools.cache
def spark_errors() -> tuple[type[Exception], ...]:
    """What a call of Spark may raise. Imported late: commands that only read tables in a folder start without PySpark."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return PySparkException, Py4JError, OSError, ValueError


def _condition_of(error: Exception) -> str | None:
    condition = getattr(error, "getCondition", lambda: None)()
    return None if condition is None else str(condition).split(".")[0]


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _cannot_create(table: str, error: Exception) -> str:
    if _condition_of(error) == "SCHEMA_NOT_FOUND":
        schema = table.rpartition(".")[0]
        return f"tables: the schema {schema} does not exist: create it in the mirror's catalog with CREATE SCHEMA {schema}"
    return f"tables: Spark cannot create {table}: {_first_line(error)}"


def _read_error(table: str, error: Exception) -> Exception:
    """By who must act: the operator, whoever damaged the table, or nobody, as long as its store is away."""
    from pyspark.errors import AnalysisException, ParseException

    if isinstance(error, ParseException):
        return ConfigError(f"tables: this Spark session has no Delta: {_first_line(error)}")
    if _condition_of(error) == "DELTA_ONLY_OPERATION":
        return OffsetMapConflict(f"{table} is not a Delta table: give the mirror a schema of its own")
    if any(mark in str(error) for mark in _DAMAGE):
        return OffsetMapConflict(f"{table} is not a readable Delta table: {_first_line(error)}")
    if isinstance(error, AnalysisException):
        return ConfigError(f"tables: Spark refuses {table}: {_first_line(error)}")
    return OSError(f"{table}: {type(error).__name__}: {_first_line(error)}")
