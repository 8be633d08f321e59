"""Driver: the offset map's table through deltalake, without a JVM. Its runtime does not survive fork.

Every commit is a compare-and-set: the snapshot that was looked at is the one that is written with, and a commit is tried
once, at the table version right after the snapshot's. deltalake by itself writes lower application versions happily.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction, write_deltalake
from deltalake.exceptions import DeltaError, TableNotFoundError

from shallow_mirror.checkpoints.schema import OFFSET_MAP, PROPERTY_MIRROR
from shallow_mirror.errors import OffsetMapConflict

TXN_VERSION = "delta_txn_version"
"""In the metadata of every commit: which application version it belongs to. Compaction repeats that of its predecessor."""

LOG_RETENTION = "interval 1 days"
STATS_COLUMNS = "source_topic,source_partition,source_start,source_end,micro_batch,decided_at"
"""What readers look for. Statistics of every column double the time that opening a map of many files takes."""
_HISTORY_STEPS = (1, 10, 1000, None)


class CommitFailed(Exception):
    """Internal: the library raised. The commit may have been written all the same: read back."""


class TableSnapshot(Protocol):
    """The table at one version of its log; later commits are not seen."""

    @property
    def delta_version(self) -> int: ...
    @property
    def properties(self) -> Mapping[str, str]: ...
    @property
    def columns(self) -> list[tuple[str, str]]: ...
    def txn_version(self) -> int | None: ...
    def metadata(self) -> Mapping[str, str] | None: ...
    def read(self, condition: pc.Expression | None = None, columns: list[str] | None = None) -> pa.Table: ...
    def batches(self, condition: pc.Expression | None = None, columns: list[str] | None = None) -> Iterable[pa.RecordBatch]: ...


class TableWriter(Protocol):
    """Commits that succeed only on top of the given snapshot. They raise CommitFailed; nothing is retried inside."""

    name: str

    def create(self, properties: Mapping[str, str]) -> None: ...
    def snapshot(self) -> TableSnapshot | None: ...
    def append(self, snapshot: Any, rows: pa.Table, version: int, metadata: Mapping[str, str]) -> None: ...
    def delete(self, snapshot: Any, predicate: str, version: int, metadata: Mapping[str, str]) -> None: ...
    def compact(self, snapshot: Any, metadata: Mapping[str, str]) -> None: ...
    def clean_up(self) -> None: ...


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

    def metadata(self) -> Mapping[str, str] | None:
        """Of the newest commit that belongs to the recorded version; None when the log no longer holds it."""
        wanted = str(self.txn_version())
        for limit in _HISTORY_STEPS:
            for entry in self.table.history(limit):
                if entry.get(TXN_VERSION) == wanted:
                    return {name: str(value) for name, value in entry.items()}
        return None

    def read(self, condition: pc.Expression | None = None, columns: list[str] | None = None) -> pa.Table:
        return self.table.to_pyarrow_dataset().to_table(filter=condition, columns=columns)

    def batches(self, condition: pc.Expression | None = None, columns: list[str] | None = None) -> Iterable[pa.RecordBatch]:
        """The same rows piece by piece, for maps that are larger than memory."""
        yield from self.table.to_pyarrow_dataset().to_batches(filter=condition, columns=columns)


class DeltalakeWriter:
    """`uri` is the table's folder."""

    name = "deltalake"

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def create(self, properties: Mapping[str, str]) -> None:
        """Only one of several that create at once wins; the others find its table."""
        configuration = {
            **properties,
            "delta.logRetentionDuration": LOG_RETENTION,
            "delta.dataSkippingStatsColumns": STATS_COLUMNS,
        }
        try:
            DeltaTable.create(
                self.uri,
                OFFSET_MAP,
                mode="error",
                configuration=configuration,
                raise_if_key_not_exists=False,
                # With retries the loser of a race would commit its own properties on top of the winner's.
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except DeltaError:
            if self.snapshot() is None:
                raise

    def snapshot(self) -> DeltalakeSnapshot | None:
        """None when there is no table. An unreadable one is an OffsetMapConflict, an unreachable one an OSError."""
        try:
            return DeltalakeSnapshot(DeltaTable(self.uri))
        except TableNotFoundError:
            return None
        except DeltaError as error:
            raise OffsetMapConflict(f"{self.uri} is not a readable Delta table: {error}") from error

    def append(self, snapshot: Any, rows: pa.Table, version: int, metadata: Mapping[str, str]) -> None:
        """Columns of a later schema version that the rows lack become null."""
        with _commit_errors():
            write_deltalake(
                snapshot.table, rows, mode="append", schema_mode="merge", commit_properties=_commit(snapshot, version, metadata),
                post_commithook_properties=_QUIET,
            )  # fmt: skip

    def delete(self, snapshot: Any, predicate: str, version: int, metadata: Mapping[str, str]) -> None:
        """Commits nothing at all when no row matches."""
        with _commit_errors():
            snapshot.table.delete(
                predicate, commit_properties=_commit(snapshot, version, metadata), post_commithook_properties=_QUIET
            )

    def compact(self, snapshot: Any, metadata: Mapping[str, str]) -> None:
        """Rewrites small files; leaves the application version alone and repeats its metadata."""
        with _commit_errors():
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
            table.cleanup_metadata()


_QUIET = PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)


def _commit(snapshot: DeltalakeSnapshot, version: int | None, metadata: Mapping[str, str]) -> CommitProperties:
    mirror = snapshot.properties[PROPERTY_MIRROR]
    recorded = snapshot.txn_version() if version is None else version
    return CommitProperties(
        custom_metadata={**metadata, TXN_VERSION: str(recorded)},
        app_transactions=None if version is None else [Transaction(mirror, version)],
        max_commit_retries=0,
    )


@contextlib.contextmanager
def _commit_errors() -> Iterator[None]:
    try:
        yield
    except (DeltaError, OSError, ValueError, RuntimeError) as error:
        raise CommitFailed(f"{type(error).__name__}: {error}") from error
