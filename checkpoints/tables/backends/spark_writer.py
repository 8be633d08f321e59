"""Driver: the offset map's table through delta-spark: tables of a catalog, and places that only Spark reaches.

Only SQL, DataFrames and documented settings are used, for the classes behind them have other names on Databricks. So there
is no compare-and-set: a commit whose version is not higher than the recorded one is dropped without an error, any other lands
on top of whatever is there. Every commit therefore says on top of which version it was made (`ON_TOP_OF`), and what is
recorded is read from the history of the table, never from an answer.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from shallow_mirror.checkpoints.rows.schema import PROPERTY_MIRROR, PROPERTY_WRITER
from shallow_mirror.checkpoints.rows.table_layout import OFFSET_MAP_LAYOUT, TableShape
from shallow_mirror.checkpoints.tables.backends.log_durability import LocalLog
from shallow_mirror.checkpoints.tables.backends.spark_sql import (
    ARROW_TYPES,
    NO_TABLE,
    PLAIN_TABLE,
    columns_in_sql,
    condition_of,
    damage_of,
    first_line,
    frame_of,
    history,
    literal,
    log_of,
    properties_in_sql,
    spark_errors,
    sql_of_any,
    where,
)
from shallow_mirror.checkpoints.tables.table_protocol import (
    COMMITS_KEPT,
    ON_TOP_OF,
    TABLE_SETTINGS,
    TXN_VERSION,
    CommitEntry,
    Condition,
    Conditions,
    DeltaCommitError,
    Update,
    WriterName,
    user_metadata_entry,
)
from shallow_mirror.errors import ConfigError, OffsetMapConflictError, OutcomeUnknownError
from shallow_mirror.spark_connect import lost_server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

APP_ID, APP_VERSION = "spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion"
USER_METADATA = "spark.databricks.delta.commitInfo.userMetadata"

_RETENTION = {
    "delta.deletedFileRetentionDuration": "interval 7 days",  # VACUUM goes by it
    "delta.logRetentionDuration": "interval 7 days",  # Spark allows none shorter
}

_CHECKPOINT_INTERVAL = "delta.checkpointInterval"
_LOG_CLEANUP = "delta.enableExpiredLogCleanup"
_LOG_CLEANED = {_LOG_CLEANUP: "true", _CHECKPOINT_INTERVAL: "1"}

_HISTORY_STEPS = (2, 20, 1000, None)
_ROWS_A_PIECE = 50_000

_DAMAGE = ("com.fasterxml.jackson", "is not a Parquet file", "DELTA_VERSIONS_NOT_CONTIGUOUS", "DELTA_STATE_RECOVER_ERROR")


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
        return [(name, ARROW_TYPES.get(kind, kind)) for name, kind in self._session.table(self._name).dtypes]

    def txn_version(self) -> int | None:
        """Return the recorded version, without compactions: one of a fenced run may lie above the take-over."""
        compactions = []
        for commit in self.commits():
            if commit.on_top_of is not None:
                return commit.version
            compactions.append(commit.version)
        return max(compactions, default=None)

    def commits(self) -> Iterator[CommitEntry]:
        commit_count = 0
        for limit in _HISTORY_STEPS:
            rows = self._newest
            if limit != _HISTORY_STEPS[0]:
                rows = [row for row in history(self._session, self._name, limit) if row.version <= self.delta_version]
            for row in rows[commit_count:]:
                commit = user_metadata_entry(row.userMetadata)
                if commit is not None:
                    yield commit
            commit_count = len(rows)
            if limit is not None and commit_count < limit:
                return

    def read(self, condition: Condition = (), columns: list[str] | None = None) -> pa.Table:
        with _damage_raised(self._name):
            return self._rows(condition, columns).toArrow()

    def batches(self, condition: Condition = (), columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the same rows piece by piece: Spark brings one file of the table at a time."""
        with _damage_raised(self._name):
            frame = self._rows(condition, columns)
            schema = self._rows(condition, columns).limit(0).toArrow().schema
            piece: list[dict[str, Any]] = []
            for row in frame.toLocalIterator():
                piece.append(row.asDict(recursive=True))  # also the structures in lists
                if len(piece) == _ROWS_A_PIECE:
                    yield pa.RecordBatch.from_pylist(piece, schema=schema)
                    piece = []
            yield pa.RecordBatch.from_pylist(piece, schema=schema)

    def row_count(self) -> int:
        with _damage_raised(self._name):
            return int(self._rows((), None).count())

    def counters(self) -> Mapping[str, int]:
        """Return nothing: a commit through Spark records one application version, and SQL reads none."""
        return {}

    def _rows(self, condition: Condition, columns: list[str] | None) -> DataFrame:
        frame = where(self._session.read.option("versionAsOf", self.delta_version).table(self._name), condition)
        return frame if columns is None else frame.select(*columns)


class SparkWriter:
    """`name_in_sql`: of the table, as `table_of_schema` and `table_of_path` make it. `session`: one of `writer_session`."""

    name: WriterName = "spark"

    def __init__(self, session: SparkSession, name_in_sql: str, layout: TableShape = OFFSET_MAP_LAYOUT) -> None:
        self._session, self._table = session, name_in_sql
        self._layout = layout
        self._log: LocalLog | None = None

    def create(self, properties: Mapping[str, str]) -> None:
        """Create the table. Raises ConfigError if the schema is missing or Spark may not create there."""
        settings = properties_in_sql(
            {**TABLE_SETTINGS, **self._layout.settings, **_RETENTION, **_log_kept(), **PLAIN_TABLE, **properties}
        )
        try:
            columns = columns_in_sql(self._layout.schema)
            self._session.sql(f"CREATE TABLE {self._table} ({columns}) USING delta TBLPROPERTIES ({settings})")
        except spark_errors() as error:
            if self.snapshot() is None:
                raise ConfigError(_cannot_create(self._table, error)) from error
        self._find_log()
        self._keep(above=-1)

    def snapshot(self) -> SparkSnapshot | None:
        try:
            return SparkSnapshot(self._session, self._table, history(self._session, self._table, _HISTORY_STEPS[0]))
        except spark_errors() as error:
            if condition_of(error) in NO_TABLE:
                return None
            raise _read_error(self._table, error) from error

    def reread(self, snapshot: Any) -> SparkSnapshot:
        """Return a new snapshot, by the history."""
        newest = self.snapshot()
        if newest is None:
            raise OffsetMapConflictError(f"{self._table} no longer exists")
        return newest

    def append(self, snapshot: Any, rows: pa.Table, version: int, metadata: Mapping[str, str]) -> None:
        """Append rows. Columns of a later schema version that they lack become null."""
        with self._commit_above(snapshot):
            options = {
                "txnAppId": snapshot.properties[PROPERTY_MIRROR],
                "txnVersion": str(version),
                "userMetadata": _text(metadata, version, snapshot),
                "mergeSchema": "true",  # adds the columns that an older release did not have
            }
            frame_of(self._session, rows).writeTo(self._table).options(**options).append()

    def delete(self, snapshot: Any, conditions: Conditions, version: int, metadata: Mapping[str, str]) -> None:
        self._change(snapshot, f"DELETE FROM {self._table} WHERE {sql_of_any(conditions)}", version, metadata)

    def update(self, snapshot: Any, update: Update, version: int, metadata: Mapping[str, str]) -> None:
        assignment = f"{update.column} = {literal(update.value)}"
        self._change(snapshot, f"UPDATE {self._table} SET {assignment} WHERE {update.where(literal)}", version, metadata)

    def _change(self, snapshot: Any, statement: str, version: int, metadata: Mapping[str, str]) -> None:
        settings = {
            APP_ID: snapshot.properties[PROPERTY_MIRROR],
            APP_VERSION: str(version),
            USER_METADATA: _text(metadata, version, snapshot),
        }
        with self._commit_above(snapshot), self._settings(settings):
            self._session.sql(statement)

    def compact(self, snapshot: Any, metadata: Mapping[str, str]) -> None:
        """Rewrite small files, leave the application version alone and repeat its metadata."""
        text = json.dumps({**metadata, TXN_VERSION: str(snapshot.txn_version())})
        with self._commit_above(snapshot), self._settings({USER_METADATA: text}):
            self._session.sql(f"OPTIMIZE {self._table}")

    def clean_up(self) -> None:
        """Delete files that no version within the retention needs: replaced ones, and the expired part of the log."""
        with _commit_errors():
            self._session.sql(f"VACUUM {self._table}")
            try:
                self._set_properties(_LOG_CLEANED)  # this commit writes a checkpoint and cleans the log behind it
            finally:
                self._set_properties(_log_kept())
            if self._log is not None:
                self._log.shorten(COMMITS_KEPT)

    def repair_log(self) -> None:
        snapshot = self.snapshot()
        if snapshot is not None:
            self._find_log()
            if self._log is not None:
                self._log.discard_torn_commit()
            self._keep_commits(snapshot.properties)

    def _keep_commits(self, properties: Mapping[str, str]) -> None:
        """Stop others from cleaning the log: a run may have died between the two commits of `clean_up`."""
        if properties.get(PROPERTY_WRITER) != self.name or properties.items() >= _log_kept().items():
            return
        try:
            self._set_properties(_log_kept())
        except spark_errors() as error:
            raise OutcomeUnknownError(f"{self._table}: its settings cannot be changed: {first_line(error)}") from error

    def _set_properties(self, settings: Mapping[str, str]) -> None:
        self._session.sql(f"ALTER TABLE {self._table} SET TBLPROPERTIES ({properties_in_sql(settings)})")

    def _find_log(self) -> None:
        self._log = log_of(self._session, self._table)

    @contextlib.contextmanager
    def _commit_above(self, snapshot: SparkSnapshot) -> Iterator[None]:
        """Sync the commit, also if it failed: one whose response was lost is on the disk before it is read back."""
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


def _log_kept() -> dict[str, str]:
    """Return the settings under which only `clean_up` cleans the log.

    The records that a start needs are in the newest commit of the mirror alone, and any application that writes a checkpoint
    cleans the log behind it: one that compacts the table of a stopped mirror would remove that commit after a week.
    """
    return {_LOG_CLEANUP: "false", _CHECKPOINT_INTERVAL: TABLE_SETTINGS[_CHECKPOINT_INTERVAL]}


def _text(metadata: Mapping[str, str], version: int, snapshot: SparkSnapshot) -> str:
    recorded = snapshot.txn_version()
    return json.dumps({**metadata, TXN_VERSION: str(version), ON_TOP_OF: str(-1 if recorded is None else recorded)})


@contextlib.contextmanager
def _damage_raised(table: str) -> Iterator[None]:
    """Raise OffsetMapConflictError if a data file is missing or damaged; other errors pass unchanged."""
    try:
        yield
    except spark_errors() as error:
        cause = damage_of(table, error)
        if cause is None:
            raise
        raise cause from error


@contextlib.contextmanager
def _commit_errors() -> Iterator[None]:
    try:
        yield
    except spark_errors() as error:
        if (lost := lost_server(error)) is not None:
            raise lost from error
        raise DeltaCommitError(f"{type(error).__name__}: {first_line(error)}") from error


def _cannot_create(table: str, error: Exception) -> str:
    if condition_of(error) == "SCHEMA_NOT_FOUND":
        schema = table.rpartition(".")[0]
        return f"tables: the schema {schema} does not exist: create it in that catalog with CREATE SCHEMA {schema}"
    return f"tables: Spark cannot create {table}: {first_line(error)}"


def _read_error(table: str, error: Exception) -> Exception:
    """Return ConfigError for a setting, OffsetMapConflictError for a damaged table, SparkLostError without a server or session;
    else OSError: the store may answer later.
    """
    from pyspark.errors import AnalysisException, ParseException

    if (lost := lost_server(error)) is not None:
        return lost
    if isinstance(error, ParseException):
        return ConfigError(f"tables: this Spark session has no Delta: {first_line(error)}")
    if condition_of(error) == "DELTA_ONLY_OPERATION":
        return OffsetMapConflictError(f"{table} is not a Delta table: give `tables` a schema of its own")
    if any(mark in str(error) for mark in _DAMAGE):
        return OffsetMapConflictError(f"{table} is not a readable Delta table: {first_line(error)}")
    if isinstance(error, AnalysisException):
        return ConfigError(f"tables: Spark refuses {table}: {first_line(error)}")
    return OSError(f"{table}: {type(error).__name__}: {first_line(error)}")
