"""Driver: how rows of the observation tables are written and read, through deltalake or through Spark."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from shallow_mirror.checkpoints.deltalake_writer import sql_of
from shallow_mirror.checkpoints.schema import table_uri
from shallow_mirror.checkpoints.spark_writer import append_rows, read_rows, spark_errors, writer_session
from shallow_mirror.checkpoints.table_writer import Condition
from shallow_mirror.checkpoints.tables import WriterName, is_read_by_spark, name_in_sql

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)


class ObservationStore(Protocol):
    """Nothing is raised: what cannot be written or read is logged. Rows are read in no order; none of a missing table."""

    def append(self, table: str, rows: pa.Table) -> None: ...
    def read(self, table: str, condition: Condition) -> list[dict[str, Any]]: ...
    def flush(self) -> None: ...


def open_store(tables: str, writer: WriterName, spark: SparkSession | None) -> ObservationStore:
    return DeltalakeStore(tables) if writer == "deltalake" or spark is None else SparkStore(tables, spark)


def open_store_to_read(tables: str, spark: SparkSession | None) -> ObservationStore:
    return open_store(tables, "spark" if is_read_by_spark(tables) else "deltalake", spark)


class DeltalakeStore:
    def __init__(self, tables: str) -> None:
        self._tables = tables

    def append(self, table: str, rows: pa.Table) -> None:
        try:
            write_deltalake(table_uri(self._tables, table), rows, mode="append")
        except (DeltaError, OSError, ValueError, RuntimeError) as error:
            _not_written(table, error)

    def read(self, table: str, condition: Condition) -> list[dict[str, Any]]:
        """A query looks only into files whose statistics fit; a dataset of all of them costs a millisecond for every
        micro-batch since the first.
        """
        try:
            found = QueryBuilder().register(table, DeltaTable(table_uri(self._tables, table)))
            rows = found.execute(f"SELECT * FROM {table} WHERE {sql_of(condition)}").read_all()
            return list(pa.table(rows).to_pylist())
        except TableNotFoundError:
            return []
        except Exception as error:  # noqa: BLE001 - the query engine raises nothing narrower
            return _not_read(table, error)

    def flush(self) -> None:
        """Nothing waits."""


class SparkStore:
    """Writes in a thread of its own, what came meanwhile in one commit: a commit through Spark takes most of a second."""

    def __init__(self, tables: str, spark: SparkSession) -> None:
        self._tables, self._session = tables, writer_session(spark)
        self._lock, self._waiting = threading.Lock(), defaultdict[str, list[pa.Table]](list)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="observations")
        self._last: Future[None] | None = None

    def append(self, table: str, rows: pa.Table) -> None:
        with self._lock:
            self._waiting[table].append(rows)
        self._last = self._thread.submit(self._write)

    def read(self, table: str, condition: Condition) -> list[dict[str, Any]]:
        try:
            return read_rows(self._session, name_in_sql(self._tables, table), condition)
        except spark_errors() as error:
            return _not_read(table, error)

    def flush(self) -> None:
        if self._last is not None:
            self._last.result()

    def _write(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, defaultdict(list)
        for table, pieces in waiting.items():
            try:
                append_rows(self._session, name_in_sql(self._tables, table), pa.concat_tables(pieces))
            except spark_errors() as error:
                _not_written(table, error)


def _not_written(table: str, error: Exception) -> None:
    _log.warning("could not write an observation to %s: %s: %s", table, type(error).__name__, error)


def _not_read(table: str, error: Exception) -> list[dict[str, Any]]:
    _log.warning("could not read the observations in %s: %s: %s", table, type(error).__name__, error)
    return []
