"""Driver: the offset map's table through deltalake, without a JVM. Its runtime does not survive fork.

Every commit is a compare-and-set: it is based on the snapshot that was read, and is tried once, at the table version right
after the snapshot's. deltalake alone accepts lower application versions.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, QueryBuilder, Transaction, write_deltalake
from deltalake.exceptions import DeltaError

from shallow_mirror.checkpoints.rows.schema import PROPERTY_MIRROR
from shallow_mirror.checkpoints.rows.table_layout import OFFSET_MAP_LAYOUT, TableShape
from shallow_mirror.checkpoints.tables.backends.delta_tables import (
    LIBRARY_ERRORS,
    is_panic,
    log_errors_raised,
    open_table,
    panic_text,
    store_errors_raised,
)
from shallow_mirror.checkpoints.tables.backends.log_durability import LocalLog, local_log
from shallow_mirror.checkpoints.tables.table_location import TableLocation, location_of
from shallow_mirror.checkpoints.tables.table_protocol import (
    COMMITS_KEPT,
    COMPACTED_FILE_BYTES,
    COUNTED_VERSION,
    COUNTERS,
    REPLACED_FILES_KEPT_HOURS,
    TABLE_SETTINGS,
    TXN_VERSION,
    CommitEntry,
    Condition,
    Conditions,
    DeltaCommitError,
    Update,
    WriterName,
    any_in_sql,
    commit_entry,
    condition_in_sql,
    damaged_table,
    remedy_of_damage,
    user_metadata_entry,
)
from shallow_mirror.errors import ConfigError, MirrorError, OffsetMapConflictError, StoreUnreachableError
from shallow_mirror.object_store import REMEDY_DISK, is_past_end, one_line, store_error

_HISTORY_STEPS = (1, 10, 1000, None)

_TEXTS = ("string_view", "large_string")

_OF_CONTENT = re.compile(r"Parquet (?:argument )?error", re.IGNORECASE)
_OF_READING = re.compile(r"Object Store error|Generic \w+ error|os error \d|Resources exhausted|out of memory", re.IGNORECASE)
_IS_A_FOLDER = "Is a directory"
_OF_SYSTEM = "(os error "
_REMEDY_SYSTEM = "check the disk and the file system of the tables"


class DeltalakeSnapshot:
    """A handle that writes moves on to its own commit: nothing but `reread` is asked of its snapshot then."""

    def __init__(self, table: DeltaTable) -> None:
        self.table, self.delta_version = table, int(table.version())
        self._txn_version: int | None = None
        self._is_read = False

    @property
    def properties(self) -> Mapping[str, str]:
        return dict(self.table.metadata().configuration)

    @property
    def columns(self) -> list[tuple[str, str]]:
        """(name, Arrow type). The strings of a Delta table have one type, Arrow's have three."""
        schema = pa.schema(self.table.schema().to_arrow())
        return [(field.name, str(field.type).replace("large_", "").replace("string_view", "string")) for field in schema]

    def txn_version(self) -> int | None:
        """Return the recorded version. Kept: finding it means to read all of the log since its checkpoint."""
        if not self._is_read:
            mirror = self.properties.get(PROPERTY_MIRROR)
            with log_errors_raised("read the recorded version", self.table.table_uri):
                version = None if mirror is None else self.table.transaction_version(mirror)
            self._txn_version, self._is_read = None if version is None else int(version), True
        return self._txn_version

    def commits(self) -> Iterator[CommitEntry]:
        """Yield the newest first, also those that Spark wrote. The library's history goes beyond this snapshot; ours does not."""
        entry_count, recorded = 0, self.txn_version() or 0
        for limit in _HISTORY_STEPS:
            with log_errors_raised("read the newest commits", self.table.table_uri):
                entries = self.table.history(limit)
            for entry in entries[entry_count:]:
                commit = commit_entry(entry) or user_metadata_entry(entry.get("userMetadata"))
                if commit is not None and commit.version <= recorded:
                    yield commit
            entry_count = len(entries)

    def read(self, condition: Condition = (), columns: list[str] | None = None) -> pa.Table:
        with _reading_errors("read rows", self.table.table_uri):
            reader = self._query(condition, columns)
            return pa.Table.from_batches(map(_plain_texts, reader), schema=_plain_schema(reader.schema))

    def batches(self, condition: Condition = (), columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Yield the same rows piece by piece, for maps that are larger than memory."""
        with _reading_errors("read rows", self.table.table_uri):
            yield from map(_plain_texts, self._query(condition, columns))

    def row_count(self) -> int:
        """Count the rows from the statistics of the files. Raises OSError, StoreUnreachableError, OffsetMapConflictError."""
        with _reading_errors("count the rows", self.table.table_uri):
            return int(self._query((), ["count(*) AS row_count"]).read_all()["row_count"][0].as_py())

    def counters(self) -> Mapping[str, int]:
        """Return the counters from the application versions, which checkpoints of the log keep whoever writes them."""
        with log_errors_raised("read the counters", self.table.table_uri):
            versions = {name: self.table.transaction_version(_counter_id(name)) for name in (*COUNTERS, COUNTED_VERSION)}
        return {name: int(value) - 1 for name, value in versions.items() if value is not None}

    def _query(self, condition: Condition, columns: list[str] | None) -> pa.RecordBatchReader:
        """Run a query with the query engine. Raises OSError.

        It opens only files whose statistics fit, and hundreds of small ones many times faster than an Arrow dataset.
        """
        names = "*" if columns is None else ", ".join(columns)
        try:
            stream = QueryBuilder().register("rows", self.table).execute(f"SELECT {names} FROM rows WHERE {sql_of(condition)}")
            return pa.RecordBatchReader.from_stream(stream)
        except Exception as error:
            cause = _damage(error, self.table.table_uri) or store_error(error, "read rows", self.table.table_uri)
            raise cause or OSError(f"{self.table.table_uri}: {one_line(error)}") from error


def _plain_schema(schema: pa.Schema) -> pa.Schema:
    """Replace the newer text type of the engine, which few functions of Arrow support."""
    return pa.schema([field.with_type(pa.string()) if str(field.type) in _TEXTS else field for field in schema])


def _plain_texts(piece: pa.RecordBatch) -> pa.RecordBatch:
    return piece.cast(_plain_schema(piece.schema))


class DeltalakeWriter:
    """`uri` is the table's folder."""

    name: WriterName = "deltalake"

    def __init__(self, uri: str, location: TableLocation | None = None, layout: TableShape = OFFSET_MAP_LAYOUT) -> None:
        """`location`: of the mirror's tables, for the options of their store; None if there are none."""
        self.uri, self._log = uri, local_log(uri)
        self._layout = layout
        self._location = location_of(uri) if location is None else location

    def create(self, properties: Mapping[str, str]) -> None:
        """Create the table.

        Of several that create at once one wins; the others find its table. Raises StoreUnreachableError, ConfigError.
        """
        try:
            with store_errors_raised("create the table", self.uri):
                DeltaTable.create(
                    self.uri,
                    self._layout.schema,
                    mode="error",
                    configuration={**TABLE_SETTINGS, **self._layout.settings, **properties},
                    raise_if_key_not_exists=False,
                    storage_options=self._location.options(),
                    # With retries the loser of a race would commit its own properties on top of the winner's.
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
        except StoreUnreachableError as error:
            if error.is_refused:  # before the first run has begun nothing is gained by waiting for other permissions
                raise ConfigError(str(error)) from error
            raise
        except DeltaError as error:
            if self.snapshot() is None:
                problem = f"the table {self.uri} cannot be created: {one_line(error)}"
                raise ConfigError(f"{problem}: grant this user access to that folder, or name another one") from error
        self._keep(above=-1)

    def snapshot(self) -> DeltalakeSnapshot | None:
        """Return the newest snapshot; None when there is no table.

        Raises as `open_table`; of a folder that cannot be reached OSError.
        """
        table = open_table(self._location, self.uri)
        return None if table is None else DeltalakeSnapshot(table)

    def reread(self, snapshot: Any) -> DeltalakeSnapshot:
        """Read the newest snapshot. Costs a tenth of opening the table."""
        try:
            with store_errors_raised("read the log again", self.uri):
                snapshot.table.update_incremental()
        except DeltaError as error:
            raise OSError(f"{self.uri}: {one_line(error)}") from error
        return DeltalakeSnapshot(snapshot.table)

    def append(self, snapshot: Any, rows: pa.Table, version: int, metadata: Mapping[str, str]) -> None:
        """Append rows. Columns of a later schema version that they lack become null."""
        with self._commit_above(snapshot):
            write_deltalake(
                snapshot.table, rows, mode="append", schema_mode="merge", commit_properties=_commit(snapshot, version, metadata),
                post_commithook_properties=QUIET,
            )  # fmt: skip

    def delete(self, snapshot: Any, conditions: Conditions, version: int, metadata: Mapping[str, str]) -> None:
        with self._commit_above(snapshot):
            snapshot.table.delete(
                any_in_sql(conditions, _literal),
                commit_properties=_commit(snapshot, version, metadata),
                post_commithook_properties=QUIET,
            )

    def update(self, snapshot: Any, update: Update, version: int, metadata: Mapping[str, str]) -> None:
        with self._commit_above(snapshot):
            snapshot.table.update(
                {update.column: _literal(update.value)},
                predicate=update.where(_literal),
                commit_properties=_commit(snapshot, version, metadata),
                post_commithook_properties=QUIET,
            )

    def compact(self, snapshot: Any, metadata: Mapping[str, str]) -> None:
        """Rewrite small files, leave the application version alone and repeat its metadata."""
        with self._commit_above(snapshot):
            snapshot.table.optimize.compact(
                target_size=COMPACTED_FILE_BYTES,
                commit_properties=_commit(snapshot, None, metadata),
                post_commithook_properties=QUIET,
            )

    def clean_up(self) -> None:
        """Checkpoint the log and delete files that no version within the retention needs."""
        with _commit_errors(self.uri):
            checkpoint_and_clean(self.uri, self._log, self._location)

    def repair_log(self) -> None:
        if self._log is not None:
            self._log.discard_torn_commit()

    @contextlib.contextmanager
    def _commit_above(self, snapshot: DeltalakeSnapshot) -> Iterator[None]:
        """Sync the commit, also if it failed: one whose response was lost is on the disk before it is read back."""
        above = snapshot.delta_version  # a handle that wrote moves on to what it wrote
        try:
            with _commit_errors(self.uri):
                yield
        finally:
            self._keep(above)

    def _keep(self, above: int) -> None:
        if self._log is not None:
            self._log.sync(above)


def checkpoint_and_clean(uri: str, log: LocalLog | None, location: TableLocation) -> None:
    """Clean up a table. The checkpoint is synced before the commits that it replaces are deleted."""
    options = location.options()
    DeltaTable(uri, storage_options=options).vacuum(retention_hours=REPLACED_FILES_KEPT_HOURS, dry_run=False, full=True)
    table = DeltaTable(uri, storage_options=options)
    table.create_checkpoint()
    if log is not None:
        log.sync(above=table.version() - 1)
        log.shorten(COMMITS_KEPT)
    table.cleanup_metadata()


QUIET = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)


def _commit(snapshot: DeltalakeSnapshot, version: int | None, metadata: Mapping[str, str]) -> CommitProperties:
    mirror, recorded = snapshot.properties[PROPERTY_MIRROR], snapshot.txn_version()
    if version is not None and recorded is not None and version <= recorded:
        raise DeltaCommitError(f"version {version} is not higher than {recorded}, which is recorded")
    return CommitProperties(
        custom_metadata={**metadata, TXN_VERSION: str(recorded if version is None else version)},
        app_transactions=None if version is None else [Transaction(mirror, version), *_counters(version, metadata)],
        max_commit_retries=0,
    )


def _counters(version: int, metadata: Mapping[str, str]) -> list[Transaction]:
    """Return the counters as application versions, which remain when the log behind a checkpoint is cleaned."""
    if not metadata.keys() >= set(COUNTERS):
        return []
    counted = {**{name: int(metadata[name] or -1) for name in COUNTERS}, COUNTED_VERSION: version}
    return [Transaction(_counter_id(name), value + 1) for name, value in counted.items()]


def _counter_id(name: str) -> str:
    return f"shallow_mirror.{name}"


@contextlib.contextmanager
def _reading_errors(operation: str, uri: str) -> Iterator[None]:
    """Raise as `store_errors_raised`, OffsetMapConflictError if a file of the table is missing or damaged, and
    StoreUnreachableError if the operating system does not let it be read.
    """
    with store_errors_raised(operation, uri):
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            cause = _damage(error, uri)
            if cause is None and _OF_SYSTEM in str(error) and store_error(error, operation, uri) is None:
                cause = StoreUnreachableError(operation, uri.rstrip("/"), one_line(error), _REMEDY_SYSTEM)
            if cause is None:
                raise
            raise cause from error


def _damage(error: Exception, uri: str) -> MirrorError | None:
    """Return the error to raise if a file of the table is missing or damaged; None for any other cause.

    The query engine has no class for it, and the text of a failed read begins with "Parquet error" whatever made it fail.
    """
    text, table = str(error), uri.rstrip("/")
    if "not found" in text:
        return OffsetMapConflictError(
            f"a file of {table} is missing: {one_line(error)}. If the table was exchanged while it was read, start again; "
            f"otherwise it is damaged: {remedy_of_damage(table)}"
        )
    if is_past_end(error) or _IS_A_FOLDER in text or (_OF_CONTENT.search(text) and not _OF_READING.search(text)):
        return damaged_table(table, one_line(error), error)
    return None


@contextlib.contextmanager
def _commit_errors(uri: str) -> Iterator[None]:
    """Raise DeltaCommitError, or ConfigError if the options of the store let nothing be written."""
    try:
        yield
    except MirrorError:
        raise
    except LIBRARY_ERRORS as error:
        cause = store_error(error, "write a commit", uri)
        if isinstance(cause, ConfigError):
            raise cause from error
        raise DeltaCommitError(str(cause) if cause is not None else f"{type(error).__name__}: {one_line(error)}") from error
    except BaseException as error:
        if not is_panic(error):
            raise
        raise DeltaCommitError(f"{uri.rstrip('/')}: {panic_text(error)}. Remedy: {REMEDY_DISK}") from error


def sql_of(condition: Condition) -> str:
    return condition_in_sql(condition, _literal) or "true"


def _literal(value: object) -> str:
    if isinstance(value, datetime):
        return f"""arrow_cast('{value.astimezone(UTC).isoformat()}', 'Timestamp(Microsecond, Some("UTC"))')"""
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)
