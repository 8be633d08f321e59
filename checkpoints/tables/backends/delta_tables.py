"""Driver and commands: opening Delta tables through deltalake, and its errors as ours."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from shallow_mirror.checkpoints.tables.backends.log_durability import local_log
from shallow_mirror.checkpoints.tables.table_location import TableLocation
from shallow_mirror.checkpoints.tables.table_protocol import remedy_of_damage
from shallow_mirror.errors import MirrorError, OffsetMapConflictError, StoreUnreachableError
from shallow_mirror.object_store import REMEDY_DISK, one_line, store_error

LIBRARY_ERRORS = (DeltaError, OSError, ValueError, RuntimeError, pa.ArrowException)
"""What deltalake and Arrow raise for one and the same outage of a store."""


def is_panic(error: BaseException) -> bool:
    """Return whether the library panicked, as on a disk that became full or read-only below it.

    The class cannot be imported, and is no `Exception`: it would end a thread past everything that reports errors.
    """
    return type(error).__name__ == "PanicException"


def panic_text(error: BaseException) -> str:
    return f"the library of Delta tables panicked: {one_line(error)}"


@contextlib.contextmanager
def store_errors_raised(operation: str, uri: str) -> Iterator[None]:
    """Raise StoreUnreachableError or ConfigError for errors of the store or its options; others pass unchanged."""
    try:
        yield
    except LIBRARY_ERRORS as error:
        cause = store_error(error, operation, uri)
        if cause is None:
            raise
        raise cause from error
    except BaseException as error:
        if not is_panic(error):
            raise
        raise StoreUnreachableError(operation, uri.rstrip("/"), panic_text(error), REMEDY_DISK) from error


@contextlib.contextmanager
def log_errors_raised(operation: str, uri: str) -> Iterator[None]:
    """Raise as `store_errors_raised`, and OffsetMapConflictError if the log was read and is damaged."""
    try:
        with store_errors_raised(operation, uri):
            yield
    except MirrorError:
        raise
    except DeltaError as error:
        raise OffsetMapConflictError(_not_readable(uri, error)) from error


def open_table(location: TableLocation, uri: str) -> DeltaTable | None:
    """Return the table at its newest version; None if there is none.

    Raises StoreUnreachableError, ConfigError (options that cannot be used), OffsetMapConflictError (not a readable Delta table),
    PermissionError (of a folder; the library takes one that this user may not enter for no table).
    """
    if (log := local_log(uri)) is not None:
        log.require_listable()
    try:
        with store_errors_raised("open the table", uri):
            return DeltaTable(uri, storage_options=location.options())
    except TableNotFoundError:
        return None
    except DeltaError as error:
        raise OffsetMapConflictError(_not_readable(uri, error)) from error


def _not_readable(uri: str, error: DeltaError) -> str:
    table = uri.rstrip("/")
    return (
        f"{table} is not a readable Delta table: {one_line(error)}. A newest commit that a power failure left half-written is "
        f"set aside by the next run; otherwise {remedy_of_damage(table)}"
    )
