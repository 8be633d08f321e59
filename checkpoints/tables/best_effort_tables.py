"""Driver and commands: tables beside the offset map whose loss loses no data and stops nothing: failures are logged."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

import pyarrow as pa

from shallow_mirror.checkpoints.tables.table_protocol import Condition, TableBackend
from shallow_mirror.errors import MirrorError, StoreUnreachableError
from shallow_mirror.log_context import in_context
from shallow_mirror.object_store import one_line

_log = logging.getLogger(__name__)


MANY_FILES = 200
MOST_WAITING_ROWS = 1000
"""Of each table, while its store is unreachable."""
WARN_AGAIN_S = 60.0
"""A store that is unreachable fails several writes a micro-batch: the log gets one line a minute for each kind of failure."""

_NOT_TIDIED = "maintenance of the table %s failed, it will be retried"
_NOT_WRITTEN = "could not write an observation to %s"
_NOT_READ = "could not read the observations in %s"


TableRows = tuple[str, pa.Table]
"""A table, and rows for it."""


class BestEffortTables(Protocol):
    """Nothing is raised: failed reads and writes are logged. Rows are read in no order; none of a missing table.

    `append` returns False if the store is unreachable, so that the rows may be written later; `lost_rows` counts those of a table
    that never will be. `append_in_order` appends to several tables: rows that say that those in front of them are there are
    written behind them, and not at all if those are lost. `tidy` makes few files of many; it changes no row.
    """

    def append(self, table: str, rows: pa.Table) -> bool: ...
    def append_in_order(self, pieces: Sequence[TableRows]) -> bool: ...
    def lost_rows(self, table: str) -> int: ...
    def tidy(self, table: str) -> None: ...
    def delete(self, table: str, condition: Condition) -> None: ...
    def read(self, table: str, condition: Condition) -> list[dict[str, Any]]: ...
    def flush(self) -> None: ...


def append_in_order(tables: BestEffortTables, pieces: Sequence[TableRows]) -> bool:
    """Append one piece after the other as `append_in_order` of `tables`, whose `append` writes while the caller waits."""
    for table, rows in pieces:
        lost_before = tables.lost_rows(table)
        if not tables.append(table, rows):
            return False
        if tables.lost_rows(table) != lost_before:
            break
    return True


class ForegroundTables:
    """Write while the caller waits."""

    def __init__(self, backend: TableBackend) -> None:
        self._backend, self._warnings = backend, RepeatedWarnings()
        self._lost = Counter[str]()

    def append(self, table: str, rows: pa.Table) -> bool:
        try:
            self._backend.append(table, rows)
        except self._backend.errors as error:
            if isinstance(self._warn("append rows", _NOT_WRITTEN, table, error), StoreUnreachableError):
                return False
            self._lost[table] += rows.num_rows
        return True

    def append_in_order(self, pieces: Sequence[TableRows]) -> bool:
        return append_in_order(self, pieces)

    def lost_rows(self, table: str) -> int:
        """Return how many rows could not be written, other than because the store is unreachable."""
        return self._lost[table]

    def tidy(self, table: str) -> None:
        try:
            self._backend.tidy(table, MANY_FILES)
        except self._backend.errors as error:
            self._warn("compact the table", _NOT_TIDIED, table, error)

    def delete(self, table: str, condition: Condition) -> None:
        try:
            self._backend.delete(table, condition)
        except self._backend.errors as error:
            self._warn("delete rows", _NOT_TIDIED, table, error)

    def read(self, table: str, condition: Condition) -> list[dict[str, Any]]:
        try:
            return self._backend.read(table, condition)
        except self._backend.errors as error:
            self._warn("read rows", _NOT_READ, table, error)
            return []

    def flush(self) -> None:
        """Return at once: nothing waits."""

    def _warn(self, operation: str, sentence: str, table: str, error: Exception) -> MirrorError | None:
        """Return the cause if it is the store or its options."""
        cause = self._backend.cause_of(error, operation, table)
        text = f"{type(error).__name__}: {one_line(error)}" if cause is None else str(cause)
        self._warnings.warn((sentence, table), f"{sentence % table}: {text}")
        return cause


class BackgroundTables:
    """Write in a thread of its own, rows that came meanwhile in one commit: the caller never waits for observations.

    Rows that an unreachable store did not take are written with the next ones, the newest MOST_WAITING_ROWS of each table. What
    was given to `append_in_order` is written as it was given, again from its first table on, and dropped as a whole, the oldest
    first.
    """

    def __init__(self, tables: BestEffortTables) -> None:
        self._tables = tables
        self._lock = threading.Lock()
        self._waiting = defaultdict[str, list[pa.Table]](list)
        self._in_order: list[Sequence[TableRows]] = []
        self._lost = Counter[str]()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="observations")
        self._last: Future[None] | None = None

    def append(self, table: str, rows: pa.Table) -> bool:
        with self._lock:
            self._waiting[table].append(rows)
        self._last = self._thread.submit(in_context(self._write))
        return True

    def append_in_order(self, pieces: Sequence[TableRows]) -> bool:
        with self._lock:
            self._in_order.append(pieces)
        self._last = self._thread.submit(in_context(self._write))
        return True

    def lost_rows(self, table: str) -> int:
        """Return how many rows could not be written, or waited too long; those that wait are not counted."""
        return self._lost[table] + self._tables.lost_rows(table)

    def tidy(self, table: str) -> None:
        self._last = self._thread.submit(in_context(self._tables.tidy), table)

    def delete(self, table: str, condition: Condition) -> None:
        self._last = self._thread.submit(in_context(self._tables.delete), table, condition)

    def read(self, table: str, condition: Condition) -> list[dict[str, Any]]:
        return self._tables.read(table, condition)

    def flush(self) -> None:
        if self._last is not None:
            self._last.result()

    def _write(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, defaultdict(list)
        for table, pieces in waiting.items():
            rows = pa.concat_tables(pieces)
            if self._tables.append(table, rows):
                continue
            with self._lock:
                too_many = max(0, rows.num_rows - MOST_WAITING_ROWS)
                newest = rows.slice(too_many)
                self._lost[table] += too_many
                self._waiting[table].insert(0, newest)
        self._write_in_order()

    def _write_in_order(self) -> None:
        with self._lock:
            waiting, self._in_order = self._in_order, []
        while waiting and self._tables.append_in_order(waiting[0]):
            del waiting[0]
        with self._lock:
            self._in_order[:0] = waiting
            counts = [sum(rows.num_rows for _, rows in pieces) for pieces in self._in_order]
            while len(counts) > 1 and sum(counts) > MOST_WAITING_ROWS:
                del counts[0]
                self._lost.update({table: rows.num_rows for table, rows in self._in_order.pop(0)})


class RepeatedWarnings:
    """Log a warning at once, and repetitions of its kind once in WARN_AGAIN_S seconds, with their number. For any thread."""

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
