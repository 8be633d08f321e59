"""Driver and commands: the tables of a mirror through deltalake. Needs no JVM."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import TableNotFoundError

from shallow_mirror.checkpoints.rows.table_layout import TableShape
from shallow_mirror.checkpoints.tables.backends.delta_tables import LIBRARY_ERRORS, open_table, store_errors_raised
from shallow_mirror.checkpoints.tables.backends.deltalake_writer import (
    QUIET,
    DeltalakeSnapshot,
    DeltalakeWriter,
    checkpoint_and_clean,
    sql_of,
)
from shallow_mirror.checkpoints.tables.backends.log_durability import local_log
from shallow_mirror.checkpoints.tables.table_location import TableLocation
from shallow_mirror.checkpoints.tables.table_protocol import (
    COMPACTED_FILE_BYTES,
    TABLE_SETTINGS,
    Condition,
    TableWriter,
    WriterName,
)
from shallow_mirror.errors import MirrorError, OutcomeUnknownError
from shallow_mirror.object_store import one_line, store_error

_SETTINGS = {name: value for name, value in TABLE_SETTINGS.items() if name != "delta.dataSkippingStatsColumns"}


class DeltalakeBackend:
    """`TableBackend` of deltalake. Every call opens its table again."""

    name: WriterName = "deltalake"
    errors: tuple[type[Exception], ...] = (*LIBRARY_ERRORS, MirrorError)

    def __init__(self, location: TableLocation) -> None:
        self._location = location

    def decisions(self, layout: TableShape) -> TableWriter:
        return DeltalakeWriter(self._location.uri(layout.table), self._location, layout)

    def append(self, table: str, rows: pa.Table) -> None:
        uri = self._location.uri(table)
        opened = open_table(self._location, uri)
        # A table of an older release lacks columns, which are added. One that has others is not ours: the append fails.
        is_older = opened is not None and {field.name for field in opened.schema().fields} < set(rows.column_names)
        write_deltalake(
            uri if opened is None else opened,
            rows,
            mode="append",
            schema_mode="merge" if is_older else None,
            configuration=_SETTINGS,
            storage_options=self._location.options(),
            post_commithook_properties=QUIET,
        )

    def append_durably(self, table: str, rows: pa.Table) -> None:
        """Append, sync the commit and the files it names. Half-written files of a power failure are set aside first."""
        uri = self._location.uri(table)
        log = local_log(uri)
        if log is not None:
            log.discard_torn_commit()
        with self.raised("append rows", table):
            opened = open_table(self._location, uri)
            above = -1 if opened is None else opened.version()
            write_deltalake(
                uri if opened is None else opened,
                rows,
                mode="append",
                schema_mode="merge",
                storage_options=self._location.options(),
            )
        if log is not None:
            log.sync(above)

    def read(self, table: str, condition: Condition, columns: list[str] | None = None) -> list[dict[str, Any]]:
        opened = open_table(self._location, self._location.uri(table))
        return [] if opened is None else list(DeltalakeSnapshot(opened).read(condition, columns).to_pylist())

    def delete(self, table: str, condition: Condition) -> None:
        opened = open_table(self._location, self._location.uri(table))
        if opened is not None:
            opened.delete(sql_of(condition), post_commithook_properties=QUIET)

    def tidy(self, table: str, many_files: int) -> None:
        """Compact also a table that was made before it had settings. An append meanwhile conflicts with nothing of it."""
        uri = self._location.uri(table)
        try:
            opened = DeltaTable(uri, storage_options=self._location.options())
            if len(opened.file_uris()) < many_files:
                return
            if any(opened.metadata().configuration.get(name) != value for name, value in _SETTINGS.items()):
                opened.alter.set_table_properties(dict(_SETTINGS))
            above, log = opened.version(), local_log(uri)
            opened.optimize.compact(target_size=COMPACTED_FILE_BYTES, post_commithook_properties=QUIET)
            if log is not None:
                log.sync(above)
            checkpoint_and_clean(uri, log, self._location)
        except TableNotFoundError:
            return

    @contextlib.contextmanager
    def raised(self, operation: str, table: str) -> Iterator[None]:
        uri = self._location.uri(table)
        try:
            with store_errors_raised(operation, uri):
                yield
        except MirrorError:
            raise
        except LIBRARY_ERRORS as error:
            raise OutcomeUnknownError(f"{uri}: {type(error).__name__}: {one_line(error)}") from error

    def cause_of(self, error: Exception, operation: str, table: str) -> MirrorError | None:
        return store_error(error, operation, self._location.uri(table))
