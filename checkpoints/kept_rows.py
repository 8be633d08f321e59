"""Driver and commands: rows of a table beside the offset map that must not be lost, through deltalake or through Spark.

Unlike with an observation, what cannot be written or read is an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from shallow_mirror.checkpoints.deltalake_writer import DeltalakeSnapshot
from shallow_mirror.checkpoints.local_log import local_log
from shallow_mirror.checkpoints.schema import table_uri
from shallow_mirror.checkpoints.spark_rows import append_rows, read_rows
from shallow_mirror.checkpoints.spark_sql import spark_errors, writer_session
from shallow_mirror.checkpoints.table_writer import Condition
from shallow_mirror.checkpoints.tables import WriterName, is_read_by_spark, name_in_sql
from shallow_mirror.errors import OffsetMapConflict, OutcomeUnknown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class KeptRows(Protocol):
    """Of one table. None are in a table that is not there. Raises OutcomeUnknown, OffsetMapConflict (damaged).

    What `append` was given is on the disk when it returns.
    """

    def append(self, rows: pa.Table) -> None: ...
    def read(self, condition: Condition, columns: list[str] | None) -> list[dict[str, Any]]: ...


def open_rows(tables: str, table: str, writer: WriterName, spark: SparkSession | None) -> KeptRows:
    if writer == "deltalake" or spark is None:
        return _DeltalakeRows(table_uri(tables, table))
    return _SparkRows(tables, table, spark)


def open_rows_to_read(tables: str, table: str, spark: SparkSession | None) -> KeptRows:
    return open_rows(tables, table, "spark" if is_read_by_spark(tables) else "deltalake", spark)


class _DeltalakeRows:
    def __init__(self, uri: str) -> None:
        self._uri, self._log = uri, local_log(uri)

    def append(self, rows: pa.Table) -> None:
        """What a power failure left half-written of the last commit is set aside first."""
        if self._log is not None:
            self._log.set_torn_aside()
        with self._errors():
            table = self._table()
            above = -1 if table is None else table.version()
            write_deltalake(self._uri if table is None else table, rows, mode="append", schema_mode="merge")
        if self._log is not None:
            self._log.sync(above)

    def read(self, condition: Condition, columns: list[str] | None) -> list[dict[str, Any]]:
        with self._errors():
            table = self._table()
            return [] if table is None else list(DeltalakeSnapshot(table).read(condition, columns).to_pylist())

    def _table(self) -> DeltaTable | None:
        try:
            return DeltaTable(self._uri)
        except TableNotFoundError:
            return None
        except DeltaError as error:
            raise OffsetMapConflict(f"{self._uri} is not a readable Delta table: {error}") from error

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (DeltaError, OSError, ValueError, RuntimeError) as error:
            raise OutcomeUnknown(f"{self._uri}: {type(error).__name__}: {error}") from error


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
            raise OutcomeUnknown(f"{self._name}: {type(error).__name__}: {error}") from error
