"""Driver: the offset map's table through deltalake, without a JVM. Its runtime does not survive fork.

Every commit is a compare-and-set: the snapshot that was looked at is the one that is written with, and a commit is tried
once, at the table version right after the snapshot's. deltalake by itself writes lower application versions happily.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from shallow_mirror.checkpoints.local_log import local_log
from shallow_mirror.checkpoints.schema import OFFSET_MAP, PROPERTY_MIRROR, TIMESTAMP
from shallow_mirror.checkpoints.table_writer import (
    TABLE_SETTINGS,
    TXN_VERSION,
    CommitEntry,
    CommitFailed,
    Comparison,
    Condition,
    commit_entry,
    expression_of,
    user_metadata_entry,
)
from shallow_mirror.errors import OffsetMapConflict

_HISTORY_STEPS = (1, 10, 1000, None)


@dataclass(frozen=True, slots=True)
class DeltalakeSnapshot:
    table: DeltaTable

    @property
    def delta_version(self) -> int:
        return int(self.table.version())

    @property
    def properties(self) -> Mapping[str, str]:
        return dict(self.table.metadata().configuration)

    @property
    def columns(self) -> list[tuple[str, str]]:
        """(name, Arrow type). The strings of a Delta table have one type, Arrow's have three."""
        schema = pa.schema(self.table.schema().to_arrow())
        return [(field.name, str(field.type).replace("large_", "").replace("string_view", "string")) for field in schema]

    def txn_version(self) -> int | None:
        mirror = self.properties.get(PROPERTY_MIRROR)
        found = None if mirror is None else self.table.transaction_version(mirror)
        return None if found is None else int(found)

    def commits(self) -> Iterator[CommitEntry]:
        """Newest first, also those that Spark wrote. The library's history goes on behind this snapshot; ours does not."""
        seen, recorded = 0, self.txn_version() or 0
        for limit in _HISTORY_STEPS:
            entries = self.table.history(limit)
            for entry in entries[seen:]:
                found = commit_entry(entry) or user_metadata_entry(entry.get("userMetadata"))
                if found is not None and found.version <= recorded:
                    yield found
            seen = len(entries)

    def read(self, condition: Condition = (), columns: list[str] | None = None) -> pa.Table:
        return self.table.to_pyarrow_dataset().to_table(filter=_expression(condition), columns=columns)

    def batches(self, condition: Condition = (), columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The same rows piece by piece, for maps that are larger than memory."""
        yield from self.table.to_pyarrow_dataset().to_batches(filter=_expression(condition), columns=columns)


class DeltalakeWriter:
    """`uri` is the table's folder."""

    name = "deltalake"

    def __init__(self, uri: str) -> None:
        self.uri, self._log = uri, local_log(uri)

    def create(self, properties: Mapping[str, str]) -> None:
        """Only one of several that create at once wins; the others find its table."""
        try:
            DeltaTable.create(
                self.uri,
                OFFSET_MAP,
                mode="error",
                configuration={**TABLE_SETTINGS, **properties},
                raise_if_key_not_exists=False,
                # With retries the loser of a race would commit its own properties on top of the winner's.
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except DeltaError:
            if self.snapshot() is None:
                raise
        self._keep(above=-1)

    def snapshot(self) -> DeltalakeSnapshot | None:
        """None when there is no table. An unreadable one is an OffsetMapConflict, an unreachable one an OSError."""
        try:
            return DeltalakeSnapshot(DeltaTable(self.uri))
        except TableNotFoundError:
            return None
        except DeltaError as error:
            raise OffsetMapConflict(
                f"{self.uri} is not a readable Delta table (a commit that a power failure left half-written is set aside by the "
                f"next run): {error}"
            ) from error

    def append(self, snapshot: Any, rows: pa.Table, version: int, metadata: Mapping[str, str]) -> None:
        """Columns of a later schema version that the rows lack become null."""
        with self._commit_above(snapshot):
            write_deltalake(
                snapshot.table, rows, mode="append", schema_mode="merge", commit_properties=_commit(snapshot, version, metadata),
                post_commithook_properties=_QUIET,
            )  # fmt: skip

    def delete(self, snapshot: Any, condition: Condition, version: int, metadata: Mapping[str, str]) -> None:
        with self._commit_above(snapshot):
            snapshot.table.delete(
                sql_of(condition), commit_properties=_commit(snapshot, version, metadata), post_commithook_properties=_QUIET
            )

    def compact(self, snapshot: Any, metadata: Mapping[str, str]) -> None:
        """Rewrites small files; leaves the application version alone and repeats its metadata."""
        with self._commit_above(snapshot):
            snapshot.table.optimize.compact(
                commit_properties=_commit(snapshot, None, metadata), post_commithook_properties=_QUIET
            )

    def clean_up(self) -> None:
        """Checkpoints the log and deletes what no version within the retention needs."""
        with _commit_errors():
            table = DeltaTable(self.uri)
            table.vacuum(dry_run=False, full=True)  # by the table's retention, a week
            table = DeltaTable(self.uri)
            table.create_checkpoint()
            self._keep(table.version() - 1)  # before it is all that is left of what is cleaned now
            table.cleanup_metadata()

    def mend(self) -> None:
        if self._log is not None:
            self._log.set_torn_aside()

    @contextlib.contextmanager
    def _commit_above(self, snapshot: DeltalakeSnapshot) -> Iterator[None]:
        """Also a commit whose reply was lost is on the disk before it is read back."""
        above = snapshot.delta_version  # a handle that wrote moves on to what it wrote
        try:
            with _commit_errors():
                yield
        finally:
            self._keep(above)

    def _keep(self, above: int) -> None:
        if self._log is not None:
            self._log.sync(above)


_QUIET = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)


def _commit(snapshot: DeltalakeSnapshot, version: int | None, metadata: Mapping[str, str]) -> CommitProperties:
    mirror, recorded = snapshot.properties[PROPERTY_MIRROR], snapshot.txn_version()
    if version is not None and recorded is not None and version <= recorded:
        raise CommitFailed(f"version {version} is not higher than {recorded}, which is recorded")
    return CommitProperties(
        custom_metadata={**metadata, TXN_VERSION: str(recorded if version is None else version)},
        app_transactions=None if version is None else [Transaction(mirror, version)],
        max_commit_retries=0,
    )


@contextlib.contextmanager
def _commit_errors() -> Iterator[None]:
    try:
        yield
    except (DeltaError, OSError, ValueError, RuntimeError) as error:
        raise CommitFailed(f"{type(error).__name__}: {error}") from error


def _expression(condition: Condition) -> pc.Expression | None:
    return expression_of(condition, _sides)


def _sides(comparison: Comparison) -> tuple[pc.Expression, pa.Scalar]:
    field, value = pc.field(comparison.column), comparison.value
    if isinstance(value, str):
        # Texts of files that a delete has rewritten are of Arrow's newer type, which its comparisons do not know.
        return field.cast(pa.string()), pa.scalar(value)
    return field, pa.scalar(value, TIMESTAMP if isinstance(value, datetime) else None)


def sql_of(condition: Condition) -> str:
    return " AND ".join(f"{one.column} {one.operator} {_literal(one.value)}" for one in condition) or "true"


def _literal(value: object) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)
