"""Driver: how rows of the observation tables are written and read, through deltalake or through Spark."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from shallow_mirror.checkpoints.deltalake_writer import QUIET, DeltalakeSnapshot, checkpoint_and_clean, sql_of
from shallow_mirror.checkpoints.local_log import local_log
from shallow_mirror.checkpoints.schema import table_uri
from shallow_mirror.checkpoints.spark_rows import append_rows, delete_rows, read_rows, tidy_rows
from shallow_mirror.checkpoints.spark_sql import spark_errors, writer_session
from shallow_mirror.checkpoints.table_writer import COMPACTED_FILE_BYTES, TABLE_SETTINGS, Condition
from shallow_mirror.checkpoints.tables import WriterName, is_read_by_spark, name_in_sql
from shallow_mirror.errors import OutcomeUnknown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)


MANY_FILES = 200

_SETTINGS = {name: value for name, value in TABLE_SETTINGS.items() if name != "delta.dataSkippingStatsColumns"}
_DELTALAKE_ERRORS = (DeltaError, OSError, ValueError, RuntimeError)


class ObservationStore(Protocol):
    """Nothing is raised: what cannot be written or read is logged. Rows are read in no order; none of a missing table.

    `tidy` makes few files of many; it changes no row.
    """

    def append(self, table: str, rows: pa.Table) -> None: ...
    def tidy(self, table: str) -> None: ...
    def delete(self, table: str, condition: Condition) -> None: ...
    def read(self, table: str, condition: Condition) -> list[dict[str, Any]]: ...
    def flush(self) -> None: ...


def open_store(tables: str, writer: WriterName, spark: SparkSession | None) -> ObservationStore:
    """For a run: it does not wait for its observations until it flushes them."""
    return BackgroundStore(_store(tables, writer, spark))


def open_store_to_read(tables: str, spark: SparkSession | None) -> ObservationStore:
    return _store(tables, "spark" if is_read_by_spark(tables) else "deltalake", spark)


def _store(tables: str, writer: WriterName, spark: SparkSession | None) -> ObservationStore:
    return DeltalakeStore(tables) if writer == "deltalake" or spark is None else SparkStore(tables, spark)


class DeltalakeStore:
    def __init__(self, tables: str) -> None:
        self._tables = tables

    def append(self, table: str, rows: pa.Table) -> None:
        try:
            uri = table_uri(self._tables, table)
            write_deltalake(uri, rows, mode="append", configuration=_SETTINGS, post_commithook_properties=QUIET)
        except _DELTALAKE_ERRORS as error:
            _not_written(table, error)

    def tidy(self, table: str) -> None:
        """Also of a table that was made before it had settings. An append meanwhile conflicts with nothing of it."""
        try:
            tidy_table(table_uri(self._tables, table))
        except TableNotFoundError:
            return
        except (*_DELTALAKE_ERRORS, OutcomeUnknown) as error:
            _not_tidied(table, error)

    def delete(self, table: str, condition: Condition) -> None:
        try:
            DeltaTable(table_uri(self._tables, table)).delete(sql_of(condition), post_commithook_properties=QUIET)
        except TableNotFoundError:
            return
        except _DELTALAKE_ERRORS as error:
            _not_tidied(table, error)

    def read(self, table: str, condition: Condition) -> list[dict[str, Any]]:
        try:
            return list(DeltalakeSnapshot(DeltaTable(table_uri(self._tables, table))).read(condition).to_pylist())
        except TableNotFoundError:
            return []
        except _DELTALAKE_ERRORS as error:
            return _not_read(table, error)

    def flush(self) -> None:
        """Nothing waits."""


class SparkStore:
    def __init__(self, tables: str, spark: SparkSession) -> None:
        self._tables, self._session = tables, writer_session(spark)

    def append(self, table: str, rows: pa.Table) -> None:
        try:
            append_rows(self._session, name_in_sql(self._tables, table), rows)
        except spark_errors() as error:
            _not_written(table, error)

    def tidy(self, table: str) -> None:
        try:
            tidy_rows(self._session, name_in_sql(self._tables, table), MANY_FILES)
        except spark_errors() as error:
            _not_tidied(table, error)

    def delete(self, table: str, condition: Condition) -> None:
        try:
            delete_rows(self._session, name_in_sql(self._tables, table), condition)
        except spark_errors() as error:
            _not_tidied(table, error)

    def read(self, table: str, condition: Condition) -> list[dict[str, Any]]:
        try:
            return read_rows(self._session, name_in_sql(self._tables, table), condition)
        except spark_errors() as error:
            return _not_read(table, error)

    def flush(self) -> None:
        """Nothing waits."""


class BackgroundStore:
    """Writes in a thread of its own, what came meanwhile in one commit: nobody waits for what is only observed."""

    def __init__(self, store: ObservationStore) -> None:
        self._store = store
        self._lock, self._waiting = threading.Lock(), defaultdict[str, list[pa.Table]](list)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="observations")
        self._last: Future[None] | None = None

    def append(self, table: str, rows: pa.Table) -> None:
        with self._lock:
            self._waiting[table].append(rows)
        self._last = self._thread.submit(self._write)

    def tidy(self, table: str) -> None:
        self._last = self._thread.submit(self._store.tidy, table)

    def delete(self, table: str, condition: Condition) -> None:
        self._last = self._thread.submit(self._store.delete, table, condition)

    def read(self, table: str, condition: Condition) -> list[dict[str, Any]]:
        return self._store.read(table, condition)

    def flush(self) -> None:
        if self._last is not None:
            self._last.result()

    def _write(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, defaultdict(list)
        for table, pieces in waiting.items():
            self._store.append(table, pa.concat_tables(pieces))


def tidy_table(uri: str) -> bool:
    """Whether there was anything to do. Raises what deltalake raises."""
    table = DeltaTable(uri)
    if len(table.file_uris()) < MANY_FILES:
        return False
    if any(table.metadata().configuration.get(name) != value for name, value in _SETTINGS.items()):
        table.alter.set_table_properties(dict(_SETTINGS))
    above, log = table.version(), local_log(uri)
    table.optimize.compact(target_size=COMPACTED_FILE_BYTES, post_commithook_properties=QUIET)
    if log is not None:
        log.sync(above)
    checkpoint_and_clean(uri, log)
    return True


def _not_tidied(table: str, error: Exception) -> None:
    _log.warning("could not tidy the table %s, it will be tried again: %s: %s", table, type(error).__name__, error)


def _not_written(table: str, error: Exception) -> None:
    _log.warning("could not write an observation to %s: %s: %s", table, type(error).__name__, error)


def _not_read(table: str, error: Exception) -> list[dict[str, Any]]:
    _log.warning("could not read the observations in %s: %s: %s", table, type(error).__name__, error)
    return []
