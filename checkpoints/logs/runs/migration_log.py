"""Driver and commands: the table `migration`: every step of a migration, by the conductor that did it. Rows are only added.

A conductor owns the table as a run owns an offset map: its first row has the next epoch, and each later one is committed right
behind a state whose newest epoch is its own. So of two conductors one is fenced at its next row.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from shallow_mirror.checkpoints.ledger.commit_metadata import RunIdentity
from shallow_mirror.checkpoints.ledger.commits import ATTEMPTS, read_back, read_snapshot, try_commit
from shallow_mirror.checkpoints.rows.migration_rows import MIGRATION, MIGRATION_TABLE, TAKEN_OVER, MigrationRow
from shallow_mirror.checkpoints.rows.schema import PROPERTY_MIRROR, PROPERTY_WRITER
from shallow_mirror.checkpoints.rows.table_layout import TableShape
from shallow_mirror.checkpoints.tables.storage import TableStorage
from shallow_mirror.checkpoints.tables.table_protocol import TableSnapshot, TableWriter
from shallow_mirror.errors import ConfigError, FencedError, OffsetMapConflictError, OutcomeUnknownError

_SHAPE = TableShape(table=MIGRATION_TABLE, title="the table of the migration", schema=MIGRATION.schema)


def ignore_row(_row: MigrationRow) -> None:
    """Do nothing with a row that was added."""


class MigrationLog:
    """The rows as a reader sees them. Raises ConfigError if the table is of another migration, OffsetMapConflictError."""

    def __init__(self, writer: TableWriter, migration: str) -> None:
        self._writer = writer
        self._migration = migration

    @classmethod
    def open(cls, storage: TableStorage, migration: str) -> MigrationLog:
        return cls(storage.decisions(_SHAPE), migration)

    def rows(self) -> tuple[MigrationRow, ...]:
        """Return all rows in their order; none before the first conductor."""
        snapshot = read_snapshot(self._writer, _SHAPE.title)
        return () if snapshot is None else self._rows_of(snapshot)

    def take_over(
        self, run: RunIdentity, fingerprint: str, now_ms: Callable[[], int], on_row: Callable[[MigrationRow], None] = ignore_row
    ) -> MigrationOwner:
        """Create the table if there is none, and fence every older conductor. `on_row`: called with each row that was added.

        Raises FencedError (another one took over at the same time), OutcomeUnknownError, ConfigError, OffsetMapConflictError.
        """
        self._writer.repair_log()
        for _ in range(ATTEMPTS):
            before = read_snapshot(self._writer, _SHAPE.title)
            if before is None:
                self._writer.create({PROPERTY_MIRROR: self._migration, PROPERTY_WRITER: self._writer.name})
                continue
            rows = self._rows_of(before)
            epoch = rows[-1].conductor_epoch + 1 if rows else 1
            owner = MigrationOwner(self._writer, self._rows_of, epoch, run, fingerprint, now_ms, on_row)
            if owner.try_append(before, rows, event=TAKEN_OVER):
                return owner
        raise OffsetMapConflictError(f"could not take over {_SHAPE.title} in {ATTEMPTS} attempts: other writers keep committing")

    def _rows_of(self, snapshot: TableSnapshot) -> tuple[MigrationRow, ...]:
        found = snapshot.properties.get(PROPERTY_MIRROR)
        if found != self._migration:
            raise ConfigError(
                f"{_SHAPE.title} is of migration {found!r}, not of {self._migration!r}: give each migration `tables` of its own"
            )
        rows = MIGRATION.rows(snapshot.read().to_pylist())
        return tuple(sorted(rows, key=lambda row: row.sequence))


class MigrationOwner:
    """Adds rows, as long as no other conductor has taken over. Every row is on the disk when `append` returns."""

    def __init__(
        self,
        writer: TableWriter,
        rows_of: Callable[[TableSnapshot], tuple[MigrationRow, ...]],
        epoch: int,
        run: RunIdentity,
        fingerprint: str,
        now_ms: Callable[[], int],
        on_row: Callable[[MigrationRow], None] = ignore_row,
    ) -> None:
        self.epoch = epoch
        self._on_row = on_row
        self._writer = writer
        self._rows_of = rows_of
        self._run = run
        self._fingerprint = fingerprint
        self._now_ms = now_ms

    def rows(self) -> tuple[MigrationRow, ...]:
        """Return all rows. Raises FencedError if they are another conductor's by now."""
        return self._own_rows(self._snapshot())

    def append(self, *, event: str, wave: str = "", step: str = "", detail: Mapping[str, Any] | None = None) -> None:
        """Add a row. Raises FencedError, OutcomeUnknownError (the row may be there: the next conductor reads it)."""
        for _ in range(ATTEMPTS):
            snapshot = self._snapshot()
            if self.try_append(snapshot, self._own_rows(snapshot), event=event, wave=wave, step=step, detail=detail):
                return
        raise OffsetMapConflictError(f"could not write to {_SHAPE.title} in {ATTEMPTS} attempts: other writers keep committing")

    def try_append(
        self,
        snapshot: TableSnapshot,
        rows: tuple[MigrationRow, ...],
        *,
        event: str,
        wave: str = "",
        step: str = "",
        detail: Mapping[str, Any] | None = None,
    ) -> bool:
        """Return whether the row was added right behind `snapshot`; False if another commit took its place."""
        sequence = rows[-1].sequence + 1 if rows else 1
        row = MigrationRow(
            sequence=sequence,
            conductor_epoch=self.epoch,
            wave=wave,
            event=event,
            step=step,
            detail=dict(detail or {}),
            fingerprint=self._fingerprint,
            host=self._run.host,
            pid=self._run.pid,
            run_id=self._run.run_id,
            at=datetime.fromtimestamp(self._now_ms() / 1000, UTC),
        )
        table = MIGRATION.to_arrow([row])
        base = snapshot.delta_version
        failure = try_commit(functools.partial(self._writer.append, snapshot, table, sequence, {}))
        after = read_back(self._writer, failure, snapshot, _SHAPE.title)
        newest = self._rows_of(after)[sequence - 1 :]
        if newest and newest[0].run_id == self._run.run_id and newest[0].sequence == sequence:
            self._on_row(row)
            return True
        if failure is not None and after.delta_version == base:
            raise OutcomeUnknownError(f"writing to {_SHAPE.title}: {failure}") from failure
        return False

    def _snapshot(self) -> TableSnapshot:
        snapshot = read_snapshot(self._writer, _SHAPE.title)
        if snapshot is None:
            raise OffsetMapConflictError(f"{_SHAPE.title} was deleted while a conductor owns it")
        return snapshot

    def _own_rows(self, snapshot: TableSnapshot) -> tuple[MigrationRow, ...]:
        rows = self._rows_of(snapshot)
        if rows and rows[-1].conductor_epoch != self.epoch:
            newest = rows[-1]
            raise FencedError(f"conductor {newest.conductor_epoch} on {newest.host} (pid {newest.pid})")
        return rows
