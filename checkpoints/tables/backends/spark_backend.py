"""Driver: the tables of a mirror through Spark: those of a catalog, and places that only Spark reaches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from shallow_mirror.checkpoints.rows.table_layout import TableShape
from shallow_mirror.checkpoints.tables.backends.spark_sql import (
    NO_TABLE,
    PLAIN_TABLE,
    columns_in_sql,
    condition_of,
    damage_of,
    frame_of,
    history,
    log_of,
    name_in_sql,
    properties_in_sql,
    spark_errors,
    sql_of,
    where,
    writer_session,
)
from shallow_mirror.checkpoints.tables.backends.spark_writer import SparkWriter
from shallow_mirror.checkpoints.tables.table_location import TableLocation
from shallow_mirror.checkpoints.tables.table_protocol import COMMITS_KEPT, Condition, TableWriter, WriterName
from shallow_mirror.errors import MirrorError, OutcomeUnknownError
from shallow_mirror.spark_connect import OpenSessions, lost_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkBackend:
    """`TableBackend` of Spark. Rows are written and read in a session of their own."""

    name: WriterName = "spark"

    def __init__(self, location: TableLocation, spark: SparkSession) -> None:
        self._location, self._spark, self._session = location, spark, writer_session(spark)
        self._idle_without_traffic = OpenSessions()

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        return spark_errors()

    def decisions(self, layout: TableShape) -> TableWriter:
        # A session apart from that of the rows: what the writer sets for a commit would be recorded in rows that another thread
        # appends at the same time.
        session = writer_session(self._spark)
        self._idle_without_traffic.add(session)
        return SparkWriter(session, self._name(layout.table), layout)

    def append(self, table: str, rows: pa.Table) -> None:
        name = self._name(table)
        columns, settings = columns_in_sql(rows.schema), properties_in_sql(PLAIN_TABLE)
        self._session.sql(f"CREATE TABLE IF NOT EXISTS {name} ({columns}) USING delta TBLPROPERTIES ({settings})")
        # Adds the columns that an older release did not have, as the offset map does.
        frame_of(self._session, rows).writeTo(name).option("mergeSchema", "true").append()

    def append_durably(self, table: str, rows: pa.Table) -> None:
        with self.raised("append rows", table):
            self.append(table, rows)
            log = log_of(self._session, self._name(table))
            if log is not None:  # with the commit that created the table
                log.sync(above=int(history(self._session, self._name(table), 1)[0].version) - 2)

    def read(self, table: str, condition: Condition, columns: list[str] | None = None) -> list[dict[str, Any]]:
        self._idle_without_traffic.use()  # a run reads its controls every few seconds
        with _unless_missing():
            frame = where(self._session.table(self._name(table)), condition)
            return list((frame if columns is None else frame.select(*columns)).toArrow().to_pylist())
        return []

    def delete(self, table: str, condition: Condition) -> None:
        with _unless_missing():
            self._session.sql(f"DELETE FROM {self._name(table)} WHERE {sql_of(condition)}")

    def tidy(self, table: str, many_files: int) -> None:
        name = self._name(table)
        with _unless_missing():
            if int(self._session.sql(f"DESCRIBE DETAIL {name}").collect()[0].numFiles) < many_files:
                return
            self._session.sql(f"OPTIMIZE {name}")
            self._session.sql(f"VACUUM {name}")
            log = log_of(self._session, name)
            if log is not None:
                log.shorten(COMMITS_KEPT)

    @contextlib.contextmanager
    def raised(self, operation: str, table: str) -> Iterator[None]:
        try:
            yield
        except spark_errors() as error:
            if (lost := lost_server(error)) is not None:
                raise lost from error
            if (damage := damage_of(self._name(table), error)) is not None:
                raise damage from error
            raise OutcomeUnknownError(f"{self._name(table)}: {type(error).__name__}: {error}") from error

    def cause_of(self, error: Exception, operation: str, table: str) -> MirrorError | None:
        """Return None but for a damaged file: Spark has connectors of its own, whose texts name no request to the store."""
        return damage_of(self._name(table), error)

    def _name(self, table: str) -> str:
        return name_in_sql(self._location.root, table)


@contextlib.contextmanager
def _unless_missing() -> Iterator[None]:
    try:
        yield
    except spark_errors() as error:
        if condition_of(error) not in NO_TABLE:
            raise
