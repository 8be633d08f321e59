"""Driver and commands: rows of a table beside the offset map that must not be lost, through deltalake or through Spark.

Unlike with an observation, what cannot be written or read is an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from deltalake import write_deltalake

from shallow_mirror.checkpoints.backends.delta_tables import LIBRARY_ERRORS, open_table, store_errors_raised
from shallow_mirror.checkpoints.backends.deltalake_writer import DeltalakeSnapshot
from shallow_mirror.checkpoints.backends.log_durability import local_log
from shallow_mirror.checkpoints.backends.spark_rows import append_rows, read_rows
from shallow_mirror.checkpoints.backends.spark_sql import spark_errors, writer_session
from shallow_mirror.checkpoints.backends.store_errors import one_line
from shallow_mirror.checkpoints.storage import WriterName, is_read_by_spark, name_in_sql
from shallow_mirror.checkpoints.table_protocol import Condition
from shallow_mirror.checkpoints.table_storage import Tables, TableStorage, storage_of
from shallow_mirror.errors import MirrorError, OutcomeUnknownError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class KeptRows(Protocol):
    """Of one table. None are in a table that is not there. Raises OutcomeUnknownError, OffsetMapConflictError (damaged).

    What `append` was given is on the disk when it returns.
    """

    def append(self, rows: pa.Table) -> None: ...
    def read(self, condition: Condition, columns: list[str] | None) -> list[dict[str, Any]]: ...


def open_rows(tables: Tables, table: str, writer: WriterName, spark: SparkSession | None) -> KeptRows:
    if writer == "deltalake" or spark is None:
        return _DeltalakeRows(storage_of(tables), table)
    return _SparkRows(storage_of(tables).location, table, spark)


def open_rows_to_read(tables: Tables, table: str, spark: SparkSession | None) -> KeptRows:
    return open_rows(tables, table, "spark" if is_read_by_spark(tables) else "deltalake", spark)


class _DeltalakeRows:
    def __init__(self, storage: TableStorage, table: str) -> None:
        self._storage, self._uri = storage, storage.uri(table)
        self._log = local_log(self._uri)

    def append(self, rows: pa.Table) -> None:
        """What a power failure left half-written of the last commit is set aside first."""
        if self._log is not None:
            self._log.set_torn_aside()
        with self._errors("append rows"):
            table = open_table(self._storage, self._uri)
            above = -1 if table is None else table.version()
            write_deltalake(
                self._uri if table is None else table,
                rows,
                mode="append",
                schema_mode="merge",
                storage_options=self._storage.options(),
            )
        if self._log is not None:
            self._log.sync(above)

    def read(self, condition: Condition, columns: list[str] | None) -> list[dict[str, Any]]:
        with self._errors("read rows"):
            table = open_table(self._storage, self._uri)
            return [] if table is None else list(DeltalakeSnapshot(table).read(condition, columns).to_pylist())

    @contextlib.contextmanager
    def _errors(self, operation: str) -> Iterator[None]:
        try:
            with store_errors_raised(operation, self._uri):
                yield
        except MirrorError:
            raise
        except LIBRARY_ERRORS as error:
            raise OutcomeUnknownError(f"{self._uri}: {type(error).__name__}: {one_line(error)}") from error


class _SparkRows:
    def __init__(self, tables: str, table: str, spark: SparkSession) -> None:
        self._session, self._name = writer_session(spark), name_in_sql(tables, table)

    def append(self, rows: pa.Table) -> None:
        with self._errors():
            append_rows(self._session, self._name, rows, is_kept=True)

    def read(self, condition: Condition, columns: list[str] | None) -> list[dict[str, Any]]:
        with self._errors():
            return read_rows(self._session, self._name, condition, columns)

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except spark_errors() as error:
            raise OutcomeUnknownError(f"{self._name}: {type(error).__name__}: {error}") from error
