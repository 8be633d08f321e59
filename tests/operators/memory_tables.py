"""Delta tables in memory, with deltalake's rule of commits: a commit takes the version behind its snapshot, or fails.

A version is never changed, so tables are copied, and older ones put back, by lists of versions.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from tests.operators.lives import Lives

from shallow_mirror.checkpoints.rows.schema import PROPERTY_MIRROR
from shallow_mirror.checkpoints.rows.table_layout import TableShape
from shallow_mirror.checkpoints.tables import OFFSET_MAP_LAYOUT, Comparison, Condition, TableLocation
from shallow_mirror.checkpoints.tables.table_protocol import (
    COUNTED_VERSION,
    COUNTERS,
    TXN_VERSION,
    CommitEntry,
    Conditions,
    DeltaCommitError,
    Update,
    WriterName,
    commit_entry,
)
from shallow_mirror.errors import MirrorError

_COMPARE = {"=": pc.equal, "!=": pc.not_equal, "<=": pc.less_equal, ">": pc.greater}


@dataclass(frozen=True, slots=True)
class Version:
    """One version of a table. `recorded`: its application version. `entry`: of the commit that made it."""

    rows: pa.Table
    properties: Mapping[str, str] = field(default_factory=dict)
    recorded: int | None = None
    entry: CommitEntry | None = None
    counters: Mapping[str, int] = field(default_factory=dict)


Versions = list[Version]


class TableStore:
    """All tables of one folder, by name."""

    def __init__(self, lives: Lives) -> None:
        self.lives = lives
        self.tables: dict[str, Versions] = {}

    def copy(self) -> dict[str, Versions]:
        return {name: list(versions) for name, versions in self.tables.items()}

    def put_back(self, tables: Mapping[str, Versions]) -> None:
        self.tables = {name: list(versions) for name, versions in tables.items()}

    def commit(self, table: str, expected: int, version: Version) -> None:
        """Append a version behind `expected`; -1: the table is created. Raises DeltaCommitError."""
        self.lives.before_effect()
        versions = self.tables.setdefault(table, [])
        if len(versions) - 1 != expected:
            raise DeltaCommitError(f"version {expected + 1} of {table} is taken")
        versions.append(version)
        self.lives.after_effect()


class MemorySnapshot:
    """`TableSnapshot` of one version."""

    def __init__(self, versions: Versions) -> None:
        self._versions = tuple(versions)
        self.delta_version = len(versions) - 1
        self.newest = versions[-1]

    @property
    def properties(self) -> Mapping[str, str]:
        return self.newest.properties

    @property
    def columns(self) -> list[tuple[str, str]]:
        return [(column.name, str(column.type)) for column in self.newest.rows.schema]

    def txn_version(self) -> int | None:
        return self.newest.recorded

    def commits(self) -> Iterator[CommitEntry]:
        return (version.entry for version in reversed(self._versions) if version.entry is not None)

    def read(self, condition: Condition = (), columns: list[str] | None = None) -> pa.Table:
        rows = _matching(self.newest.rows, condition)
        return rows if columns is None else rows.select(columns)

    def batches(self, condition: Condition = (), columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
        yield from self.read(condition, columns).to_batches()

    def row_count(self) -> int:
        return int(self.newest.rows.num_rows)

    def counters(self) -> Mapping[str, int]:
        return self.newest.counters


class MemoryWriter:
    """`TableWriter` of a table of decisions."""

    name: WriterName = "deltalake"

    def __init__(self, store: TableStore, layout: TableShape) -> None:
        self._store, self._layout = store, layout

    def create(self, properties: Mapping[str, str]) -> None:
        if self._layout.table in self._store.tables:
            return
        self._store.commit(self._layout.table, -1, Version(self._layout.schema.empty_table(), dict(properties)))

    def snapshot(self) -> MemorySnapshot | None:
        versions = self._store.tables.get(self._layout.table)
        return MemorySnapshot(versions) if versions else None

    def reread(self, snapshot: Any) -> MemorySnapshot:
        newest = self.snapshot()
        assert newest is not None
        return newest

    def append(self, snapshot: Any, rows: pa.Table, version: int, metadata: Mapping[str, str]) -> None:
        self._commit(snapshot, joined(snapshot.newest.rows, rows), version, metadata)

    def delete(self, snapshot: Any, conditions: Conditions, version: int, metadata: Mapping[str, str]) -> None:
        if not all(conditions):
            raise ValueError("an empty condition would delete every row of the table")
        rows = snapshot.newest.rows
        for condition in conditions:
            rows = _others(rows, condition)
        self._commit(snapshot, rows, version, metadata)

    def update(self, snapshot: Any, update: Update, version: int, metadata: Mapping[str, str]) -> None:
        raise NotImplementedError("only archives update rows")

    def compact(self, snapshot: Any, metadata: Mapping[str, str]) -> None:
        self._commit(snapshot, snapshot.newest.rows, None, metadata)

    def clean_up(self) -> None:
        """Keep everything."""

    def repair_log(self) -> None:
        """Do nothing: no version is half-written."""

    def _commit(self, snapshot: MemorySnapshot, rows: pa.Table, version: int | None, metadata: Mapping[str, str]) -> None:
        newest = snapshot.newest
        if version is not None and newest.recorded is not None and version <= newest.recorded:
            raise DeltaCommitError(f"version {version} is not higher than {newest.recorded}, which is recorded")
        assert PROPERTY_MIRROR in newest.properties
        recorded = newest.recorded if version is None else version
        counters = newest.counters
        if version is not None and metadata.keys() >= set(COUNTERS):
            counters = {**{name: int(metadata[name] or -1) for name in COUNTERS}, COUNTED_VERSION: version}
        entry = commit_entry({**metadata, TXN_VERSION: str(recorded)})
        made = replace(newest, rows=rows, recorded=recorded, entry=entry, counters=counters)
        self._store.commit(self._layout.table, snapshot.delta_version, made)


class MemoryBackend:
    """`TableBackend` of a folder."""

    name: WriterName = "deltalake"
    errors: tuple[type[Exception], ...] = (OSError, DeltaCommitError, MirrorError)

    def __init__(self, store: TableStore) -> None:
        self._store = store

    def decisions(self, layout: TableShape) -> MemoryWriter:
        return MemoryWriter(self._store, layout)

    def append(self, table: str, rows: pa.Table) -> None:
        versions = self._store.tables.get(table, [])
        before = versions[-1].rows if versions else rows.schema.empty_table()
        self._store.commit(table, len(versions) - 1, Version(joined(before, rows)))

    append_durably = append

    def read(self, table: str, condition: Condition, columns: list[str] | None = None) -> list[dict[str, Any]]:
        versions = self._store.tables.get(table)
        if not versions:
            return []
        rows = _matching(versions[-1].rows, condition)
        return list((rows if columns is None else rows.select(columns)).to_pylist())

    def delete(self, table: str, condition: Condition) -> None:
        versions = self._store.tables.get(table)
        if versions:
            self._store.commit(table, len(versions) - 1, Version(_others(versions[-1].rows, condition)))

    def tidy(self, table: str, many_files: int) -> None:
        """Do nothing: there are no files."""

    @contextlib.contextmanager
    def raised(self, operation: str, table: str) -> Iterator[None]:
        yield

    def cause_of(self, error: Exception, operation: str, table: str) -> MirrorError | None:
        return None


class TableFolders:
    """Stands in for the file system: a store for every root of tables."""

    def __init__(self, lives: Lives) -> None:
        self._lives = lives
        self.stores: dict[str, TableStore] = {}

    def at(self, root: str) -> TableStore:
        return self.stores.setdefault(root, TableStore(self._lives))

    def backend(self, location: TableLocation) -> MemoryBackend:
        return MemoryBackend(self.at(location.root))

    def writer(self, _uri: str, location: TableLocation, layout: TableShape = OFFSET_MAP_LAYOUT) -> MemoryWriter:
        return MemoryWriter(self.at(location.root), layout)


def joined(before: pa.Table, rows: pa.Table) -> pa.Table:
    """Columns that either of them lacks become null."""
    if before.schema.equals(rows.schema):
        return pa.concat_tables([before, rows])
    return pa.concat_tables([before, rows], promote_options="default")


def _mask(rows: pa.Table, condition: Condition) -> Any:
    mask = None
    for comparison in condition:
        holds = _holds(rows, comparison)
        mask = holds if mask is None else pc.and_(mask, holds)
    return mask


def _holds(rows: pa.Table, comparison: Comparison) -> Any:
    column = rows.column(comparison.column)
    return pc.fill_null(_COMPARE[comparison.operator](column, pa.scalar(comparison.value, column.type)), False)


def _matching(rows: pa.Table, condition: Condition) -> pa.Table:
    return rows.filter(_mask(rows, condition)) if condition else rows


def _others(rows: pa.Table, condition: Condition) -> pa.Table:
    return rows.filter(pc.invert(_mask(rows, condition)))


def settled_rows(versions: Sequence[Version]) -> list[dict[str, Any]]:
    """Return the rows of a table of decisions as a user reads them from its newest version."""
    return list(versions[-1].rows.to_pylist()) if versions else []
