"""Driver: how rows of the observation tables are written and read, through deltalake or through Spark."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError

from shallow_mirror.checkpoints.backends.delta_tables import LIBRARY_ERRORS, open_table
from shallow_mirror.checkpoints.backends.deltalake_writer import QUIET, DeltalakeSnapshot, checkpoint_and_clean, sql_of
from shallow_mirror.checkpoints.backends.log_durability import local_log
from shallow_mirror.checkpoints.backends.spark_rows import append_rows, delete_rows, read_rows, tidy_rows
from shallow_mirror.checkpoints.backends.spark_sql import spark_errors, writer_session
from shallow_mirror.checkpoints.backends.store_errors import one_line, store_error
from shallow_mirror.checkpoints.storage import WriterName, is_read_by_spark, name_in_sql
from shallow_mirror.checkpoints.table_protocol import COMPACTED_FILE_BYTES, TABLE_SETTINGS, Condition
from shallow_mirror.checkpoints.table_storage import Tables, TableStorage, storage_of
from shallow_mirror.errors import MirrorError, StoreUnreachableError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)


MANY_FILES = 200
MOST_WAITING_ROWS = 1000
"""Of each table, while its store is unreachable."""
WARN_AGAIN_S = 60.0
"""A store that is unreachable fails several writes a micro-batch: the log gets one line a minute for each kind of failure."""

_NOT_TIDIED = "could not tidy the table %s, it will be tried again"
_NOT_WRITTEN = "could not write an observation to %s"
_NOT_READ = "could not read the observations in %s"

_SETTINGS = {name: value for name, value in TABLE_SETTINGS.items() if name != "delta.dataSkippingStatsColumns"}
_DELTALAKE_ERRORS = (*LIBRARY_ERRORS, MirrorError)


class ObservationStore(Protocol):
    """Nothing is raised: what cannot be written or read is logged. Rows are read in no order; none of a missing table.

    `append` returns False where the store is unreachable, so that the rows may be written later. `tidy` makes few files of many;
    it changes no row.
    """

    def append(self, table: str, rows: pa.Table) -> bool: ...
    def tidy(self, table: str) -> None: ...
    def delete(self, table: str, condition: Condition) -> None: ...
    def read(self, table: str, condition: Condition) -> list[dict[str, Any]]: ...
    def flush(self) -> None: ...


def open_store(tables: Tables, writer: WriterName, spark: SparkSession | None) -> ObservationStore:
    """For a run: it does not wait for its observations until it flushes them."""
    return BackgroundStore(_store(tables, writer, spark))


def open_store_to_read(tables: Tables, spark: SparkSession | None) -> ObservationStore:
    return _store(tables, "spark" if is_read_by_spark(tables) else "deltalake", spark)


def _store(tables: Tables, writer: WriterName, spark: SparkSession | None) -> ObservationStore:
    return DeltalakeStore(tables) if writer == "deltalake" or spark is None else SparkStore(storage_of(tables).location, spark)


class DeltalakeStore:
    def __init__(self, tables: Tables) -> None:
        self._storage = storage_of(tables)
        self._told = RepeatedWarnings()

    def append(self, table: str, rows: pa.Table) -> bool:
        try:
            write_deltalake(
                self._storage.uri(table),
                rows,
                mode="append",
                configuration=_SETTINGS,
                storage_options=self._storage.options(),
                post_commithook_properties=QUIET,
            )
        except _DELTALAKE_ERRORS as error:
            return not isinstance(self._warn("append rows", _NOT_WRITTEN, table, error), StoreUnreachableError)
        return True

    def tidy(self, table: str) -> None:
        """Also of a table that was made before it had settings. An append meanwhile conflicts with nothing of it."""
        try:
            tidy_table(self._storage, table)
        except TableNotFoundError:
            return
        except _DELTALAKE_ERRORS as error:
            self._warn("compact the table", _NOT_TIDIED, table, error)

    def delete(self, table: str, condition: Condition) -> None:
        try:
            opened = open_table(self._storage, self._storage.uri(table))
            if opened is not None:
                opened.delete(sql_of(condition), post_commithook_properties=QUIET)
        except _DELTALAKE_ERRORS as error:
            self._warn("delete rows", _NOT_TIDIED, table, error)

    def read(self, table: str, condition: Condition) -> list[dict[str, Any]]:
        try:
            opened = open_table(self._storage, self._storage.uri(table))
            return [] if opened is None else list(DeltalakeSnapshot(opened).read(condition).to_pylist())
        except _DELTALAKE_ERRORS as error:
            self._warn("read rows", _NOT_READ, table, error)
            return []

    def flush(self) -> None:
        """Nothing waits."""

    def _warn(self, operation: str, sentence: str, table: str, error: Exception) -> MirrorError | None:
        """Return the cause where it is the store or its options."""
        cause = store_error(error, operation, self._storage.uri(table))
        text = f"{type(error).__name__}: {one_line(error)}" if cause is None else str(cause)
        self._told.warn((sentence, table), f"{sentence % table}: {text}")
        return cause


class SparkStore:
    def __init__(self, tables: str, spark: SparkSession) -> None:
        self._tables, self._session = tables, writer_session(spark)
        self._told = RepeatedWarnings()

    def append(self, table: str, rows: pa.Table) -> bool:
        try:
            append_rows(self._session, name_in_sql(self._tables, table), rows)
        except spark_errors() as error:
            self._warn(_NOT_WRITTEN, table, error)
        return True

    def tidy(self, table: str) -> None:
        try:
            tidy_rows(self._session, name_in_sql(self._tables, table), MANY_FILES)
        except spark_errors() as error:
            self._warn(_NOT_TIDIED, table, error)

    def delete(self, table: str, condition: Condition) -> None:
        try:
            delete_rows(self._session, name_in_sql(self._tables, table), condition)
        except spark_errors() as error:
            self._warn(_NOT_TIDIED, table, error)

    def read(self, table: str, condition: Condition) -> list[dict[str, Any]]:
        try:
            return read_rows(self._session, name_in_sql(self._tables, table), condition)
        except spark_errors() as error:
            self._warn(_NOT_READ, table, error)
            return []

    def flush(self) -> None:
        """Nothing waits."""

    def _warn(self, sentence: str, table: str, error: Exception) -> None:
        self._told.warn((sentence, table), f"{sentence % table}: {type(error).__name__}: {one_line(error)}")


class BackgroundStore:
    """Writes in a thread of its own, what came meanwhile in one commit: nobody waits for what is only observed.

    What an unreachable store did not take is written with the next rows, the newest MOST_WAITING_ROWS of each table.
    """

    def __init__(self, store: ObservationStore) -> None:
        self._store = store
        self._lock, self._waiting = threading.Lock(), defaultdict[str, list[pa.Table]](list)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="observations")
        self._last: Future[None] | None = None

    def append(self, table: str, rows: pa.Table) -> bool:
        with self._lock:
            self._waiting[table].append(rows)
        self._last = self._thread.submit(self._write)
        return True

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
            rows = pa.concat_tables(pieces)
            if self._store.append(table, rows):
                continue
            with self._lock:
                newest = rows.slice(max(0, rows.num_rows - MOST_WAITING_ROWS))
                self._waiting[table].insert(0, newest)


def tidy_table(storage: TableStorage, table: str) -> bool:
    """Return whether there was anything to do. Raises what deltalake raises, MirrorError."""
    uri = storage.uri(table)
    opened = DeltaTable(uri, storage_options=storage.options())
    if len(opened.file_uris()) < MANY_FILES:
        return False
    if any(opened.metadata().configuration.get(name) != value for name, value in _SETTINGS.items()):
        opened.alter.set_table_properties(dict(_SETTINGS))
    above, log = opened.version(), local_log(uri)
    opened.optimize.compact(target_size=COMPACTED_FILE_BYTES, post_commithook_properties=QUIET)
    if log is not None:
        log.sync(above)
    checkpoint_and_clean(uri, log, storage)
    return True


class RepeatedWarnings:
    """Logs a warning at once, and repetitions of its kind once in WARN_AGAIN_S seconds, with their number. For any thread."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._logged_at: dict[object, float] = {}
        self._left_out: dict[object, int] = {}

    def warn(self, kind: object, text: str) -> None:
        with self._lock:
            now = self._clock()
            if now - self._logged_at.get(kind, -math.inf) < WARN_AGAIN_S:
                self._left_out[kind] = self._left_out.get(kind, 0) + 1
                return
            self._logged_at[kind] = now
            left_out = self._left_out.pop(kind, 0)
        _log.warning("%s%s", text, f" ({left_out} more since the last such line)" if left_out else "")
