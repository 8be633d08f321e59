"""Driver: rows of the tables beside the offset map, through Spark. Raises what Spark raises (`spark_errors`)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from shallow_mirror.checkpoints.backends.spark_sql import (
    NO_TABLE,
    PLAIN_TABLE,
    active_session_kept,
    columns_in_sql,
    condition_of,
    history,
    log_of,
    properties_in_sql,
    spark_errors,
    sql_of,
    where,
)
from shallow_mirror.checkpoints.table_protocol import COMMITS_KEPT, Condition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def append_rows(session: SparkSession, name_in_sql: str, rows: pa.Table, *, is_kept: bool = False) -> None:
    """To a table that is created when it is not there. `is_kept`: on the disk when it returns, or OutcomeUnknownError."""
    with active_session_kept():
        frame = session.createDataFrame(rows).coalesce(1)
    columns, settings = columns_in_sql(rows.schema), properties_in_sql(PLAIN_TABLE)
    session.sql(f"CREATE TABLE IF NOT EXISTS {name_in_sql} ({columns}) USING delta TBLPROPERTIES ({settings})")
    frame.writeTo(name_in_sql).append()
    log = log_of(session, name_in_sql) if is_kept else None
    if log is not None:
        log.sync(above=int(history(session, name_in_sql, 1)[0].version) - 2)  # with the commit that created the table


def tidy_rows(session: SparkSession, name_in_sql: str, many_files: int) -> None:
    """Of a table that consists of many files; nothing of one that is not there."""
    with _unless_missing():
        if int(session.sql(f"DESCRIBE DETAIL {name_in_sql}").collect()[0].numFiles) < many_files:
            return
        session.sql(f"OPTIMIZE {name_in_sql}")
        session.sql(f"VACUUM {name_in_sql}")
        log = log_of(session, name_in_sql)
        if log is not None:
            log.shorten(COMMITS_KEPT)


def read_rows(
    session: SparkSession, name_in_sql: str, condition: Condition, columns: list[str] | None = None
) -> list[dict[str, Any]]:
    """None of a table that is not there."""
    with _unless_missing():
        found = where(session.table(name_in_sql), condition)
        return list((found if columns is None else found.select(*columns)).toArrow().to_pylist())
    return []


def delete_rows(session: SparkSession, name_in_sql: str, condition: Condition) -> None:
    """None of a table that is not there."""
    with _unless_missing():
        session.sql(f"DELETE FROM {name_in_sql} WHERE {sql_of(condition)}")


@contextlib.contextmanager
def _unless_missing() -> Iterator[None]:
    try:
        yield
    except spark_errors() as error:
        if condition_of(error) not in NO_TABLE:
            raise
