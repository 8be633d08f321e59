"""Driver and reading commands: the table `quarantine` beside the offset map, through deltalake or through Spark.

Unlike an observation it has to be there before the decision that speaks of it: what cannot be written or read is an error. Only
the driver writes it, from what tasks report, so that it reaches every catalog and a folder of this machine alike.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from shallow_mirror.checkpoints.deltalake_writer import DeltalakeSnapshot
from shallow_mirror.checkpoints.local_log import local_log
from shallow_mirror.checkpoints.quarantined_batches import DESCRIBING, QUARANTINE_TABLE, QuarantinedBatch, rows_of
from shallow_mirror.checkpoints.schema import table_uri
from shallow_mirror.checkpoints.spark_writer import append_rows, read_rows, spark_errors, writer_session
from shallow_mirror.checkpoints.table_writer import Condition
from shallow_mirror.checkpoints.tables import WriterName, is_read_by_spark, name_in_sql
from shallow_mirror.errors import OffsetMapConflict, OutcomeUnknown

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class _Rows(Protocol):
    """Of the table. None are in a table that is not there. Raises OutcomeUnknown, OffsetMapConflict (damaged)."""

    def append(self, rows: pa.Table) -> None: ...
    def read(self, condition: Condition, columns: list[str] | None) -> list[dict[str, Any]]: ...


class QuarantineTable:
    def __init__(self, rows: _Rows, now_ms: Callable[[], int] = lambda: int(time.time() * 1000)) -> None:
        self._rows, self._now_ms = rows, now_ms

    def add(self, batches: Sequence[QuarantinedBatch], decision: int) -> None:
        """On the disk when it returns. Raises OutcomeUnknown; rows of a decision that never comes count for nothing."""
        self._rows.append(rows_of(batches, decision, self._now_ms()))

    def described(self, condition: Condition) -> list[Mapping[str, Any]]:
        """Rows without the batches themselves, in no order."""
        return list(self._rows.read(condition, DESCRIBING))

    def whole(self, condition: Condition) -> list[Mapping[str, Any]]:
        """Rows with the batches: as many as `condition` lets pass are in memory at once."""
        return list(self._rows.read(condition, None))


def open_quarantine(tables: str, writer: WriterName, spark: SparkSession | None) -> QuarantineTable:
    if writer == "deltalake" or spark is None:
        return QuarantineTable(_DeltalakeRows(table_uri(tables, QUARANTINE_TABLE)))
    return QuarantineTable(_SparkRows(tables, spark))


def open_quarantine_to_read(tables: str, spark: SparkSession | None) -> QuarantineTable:
    return open_quarantine(tables, "spark" if is_read_by_spark(tables) else "deltalake", spark)


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
    def __init__(self, tables: str, spark: SparkSession) -> None:
        self._session, self._name = writer_session(spark), name_in_sql(tables, QUARANTINE_TABLE)

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
