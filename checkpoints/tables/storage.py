"""Driver and commands: tables as one object: where they are, which library opens them, and its Spark session."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Generic

from shallow_mirror.checkpoints.rows.codec import Row, RowCodec
from shallow_mirror.checkpoints.rows.schema import CATALOG, PROPERTY_WRITER
from shallow_mirror.checkpoints.rows.table_layout import OFFSET_MAP_LAYOUT, TableLayout, TableShape
from shallow_mirror.checkpoints.tables.backends.conditional_put_probe import require_conditional_puts
from shallow_mirror.checkpoints.tables.backends.deltalake_backend import DeltalakeBackend
from shallow_mirror.checkpoints.tables.backends.deltalake_writer import DeltalakeWriter
from shallow_mirror.checkpoints.tables.backends.log_durability import require_writable
from shallow_mirror.checkpoints.tables.backends.spark_backend import SparkBackend
from shallow_mirror.checkpoints.tables.best_effort_tables import BackgroundTables, BestEffortTables, ForegroundTables
from shallow_mirror.checkpoints.tables.table_location import Tables, location_of
from shallow_mirror.checkpoints.tables.table_protocol import Condition, TableBackend, TableWriter, WriterName
from shallow_mirror.errors import ConfigError, StoreUnreachableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OF_DATABRICKS = ("dbfs:", "/Volumes/", "/dbfs/")


class TableStorage:
    """The tables of one location, opened through one library. Nothing is opened, and no session needed, before a table is.

    By default tables are opened through the library that reads them without a JVM wherever that can be, whoever wrote them.
    Whoever writes takes the library of `choose_writer`: `to_write`.
    """

    def __init__(self, tables: Tables, spark: SparkSession | None = None, *, writer: WriterName | None = None) -> None:
        self.location = location_of(tables)
        self.writer: WriterName = writer or ("spark" if self.location.is_read_by_spark else "deltalake")
        self._spark = spark

    @classmethod
    def of(cls, tables: TableStorage | Tables, spark: SparkSession | None = None) -> TableStorage:
        """Return `tables` if it is one already, else the storage that reads them."""
        return tables if isinstance(tables, TableStorage) else cls(tables, spark)

    @classmethod
    def to_write(
        cls, tables: Tables, setting: str, spark: SparkSession | None = None, *, layout: TableLayout = OFFSET_MAP_LAYOUT
    ) -> TableStorage:
        """Choose the library by `setting`, which is `tables_writer`. Raises as `choose_writer`."""
        return cls(tables, spark, writer=choose_writer(tables, setting, layout))

    def to_read(self) -> TableStorage:
        return TableStorage(self.location, self._spark)

    def with_session(self, spark: SparkSession) -> TableStorage:
        return TableStorage(self.location, spark, writer=self.writer)

    def require_conditional_writes(self) -> None:
        """Raise as `require_conditional_puts` if deltalake writes to an object store. Spark has log stores of its own."""
        if self.writer == "deltalake":
            require_conditional_puts(self.location)

    def require_access(self) -> None:
        """Raise as `require_writable` if deltalake writes the tables. A Spark elsewhere may have other folders."""
        if self.writer == "deltalake":
            require_writable(self.location.root)

    @functools.cached_property
    def offset_map(self) -> TableWriter:
        """The table of the offset map. Raises ConfigError when it needs a Spark session and there is none."""
        return self.decisions(OFFSET_MAP_LAYOUT)

    def decisions(self, layout: TableShape) -> TableWriter:
        """Return the writer of a table of decisions. Raises as `offset_map`."""
        return self._backend.decisions(layout)

    def durable_table(self, table: str, codec: RowCodec[Row]) -> DurableTable[Row]:
        return DurableTable(self._backend, table, codec)

    def best_effort_tables(self) -> BestEffortTables:
        return ForegroundTables(self._backend)

    def background_tables(self) -> BestEffortTables:
        """Return tables for a run, which does not wait for its observations until it flushes them."""
        return BackgroundTables(self.best_effort_tables())

    @functools.cached_property
    def _backend(self) -> TableBackend:
        if self.writer == "deltalake":
            return DeltalakeBackend(self.location)
        if self._spark is None:
            raise ConfigError(
                f"only Spark can access the tables in {self.location.root}: use a session with Delta that has this catalog"
            )
        return SparkBackend(self.location, self._spark)


class DurableTable(Generic[Row]):
    """A table beside the offset map whose rows must not be lost. Rows are read in no order; a missing table has none.

    Unlike with an observation, a failed read or write is an error: OutcomeUnknownError, OffsetMapConflictError (damaged).
    """

    def __init__(self, backend: TableBackend, table: str, codec: RowCodec[Row]) -> None:
        self._backend, self._table, self._codec = backend, table, codec

    def append(self, rows: Sequence[Row]) -> None:
        """Return when the rows are on the disk, in one commit."""
        self._backend.append_durably(self._table, self._codec.to_arrow(rows))

    def read(self, condition: Condition = ()) -> list[Row]:
        return self._codec.rows(self.read_columns(condition, None))

    def read_columns(self, condition: Condition, columns: list[str] | None) -> list[dict[str, Any]]:
        """Return only these columns, by name; None: all."""
        with self._backend.raised("read rows", self._table):
            return self._backend.read(self._table, condition, columns)


def choose_writer(tables: Tables, setting: str, layout: TableLayout = OFFSET_MAP_LAYOUT) -> WriterName:
    """Return the writer by `setting`, which is `tables_writer`; `auto` keeps the writer that created the table, if there is one.

    Raises ConfigError if the store refuses (credentials, bucket), StoreUnreachableError if it does not answer.
    """
    if setting != "auto":
        return "spark" if setting == "spark" else "deltalake"
    location = location_of(tables)
    if location.root.startswith((CATALOG, *_OF_DATABRICKS)):
        return "spark"
    writer = DeltalakeWriter(location.uri(layout.table), location, layout)
    writer.repair_log()
    try:
        snapshot = writer.snapshot()
    except StoreUnreachableError as error:
        if error.is_refused:  # before the first run has begun nothing is gained by waiting for other credentials
            raise ConfigError(str(error)) from error
        raise
    return "spark" if snapshot is not None and snapshot.properties.get(PROPERTY_WRITER) == "spark" else "deltalake"
