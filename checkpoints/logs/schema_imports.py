"""Driver: the table `schema_imports`: which subjects of a target's Schema Registry this mirror has set to IMPORT.

A row is added before the mode of a subject is set, and one after it was set back; of each subject the newest row counts. So a run
that was killed in between is noticed by the next one, which knows the mode before, and which versions were registered only to be
deleted. Rows are only added.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, Self

from shallow_mirror.checkpoints.rows.codec import TimeMs, row_codec
from shallow_mirror.checkpoints.tables.storage import DurableTable, TableStorage
from shallow_mirror.checkpoints.tables.table_location import Tables

SCHEMA_IMPORTS_TABLE = "schema_imports"

ImportAction = Literal["import", "restore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaImportRow:
    """A row of the table. `mode_before`: of the subject; None: it had none, or `action` is "restore"."""

    sequence: int
    registry: str
    subject: str
    action: ImportAction
    mode_before: str | None
    at_ms: TimeMs
    host: str
    pid: int
    to_delete: tuple[int, ...] = ()
    """Versions that this mirror registers, or has registered, and then deletes softly, as they are at the source."""


SCHEMA_IMPORTS = row_codec(SchemaImportRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedImport:
    """A subject that was set to IMPORT, and not back. `mode_before`: its own mode before; None: it had none."""

    subject: str
    mode_before: str | None
    at_ms: int
    host: str
    pid: int


class SchemaImports:
    """The imports of one registry. Raises as `Controls`: OutcomeUnknownError, OffsetMapConflictError."""

    def __init__(
        self,
        rows: DurableTable[SchemaImportRow],
        registry: str,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._rows, self._registry, self._now_ms = rows, registry, now_ms

    @classmethod
    def open(cls, storage: TableStorage | Tables, registry: str) -> Self:
        """Open the table. `registry`: the URL of the target's registry."""
        return cls(TableStorage.of(storage).durable_table(SCHEMA_IMPORTS_TABLE, SCHEMA_IMPORTS), registry)

    def unfinished(self) -> list[UnfinishedImport]:
        """Return the subjects that this mirror has set to IMPORT and not back, sorted."""
        return [
            UnfinishedImport(subject=subject, mode_before=row.mode_before, at_ms=row.at_ms, host=row.host, pid=row.pid)
            for subject, row in sorted(self._newest().items())
            if row.action == "import"
        ]

    def undeleted(self) -> frozenset[tuple[str, int]]:
        """Return subject and number of the versions that this mirror was about to register and delete, and has not deleted."""
        return frozenset((subject, number) for subject, row in self._newest().items() for number in row.to_delete)

    def begin(self, modes_before: Mapping[str, str | None], to_delete: Collection[tuple[str, int]] = ()) -> None:
        """Record the subjects that are about to be set to IMPORT, with their versions to be deleted; on the disk at the end."""
        self._add("import", modes_before, to_delete)

    def end(self, subjects: Iterable[str], to_delete: Collection[tuple[str, int]] = ()) -> None:
        """Record the subjects that were set back, with their versions that are still to be deleted."""
        self._add("restore", dict.fromkeys(subjects), to_delete)

    def _newest(self) -> dict[str, SchemaImportRow]:
        rows = sorted(self._rows.read(), key=lambda row: row.sequence)
        return {row.subject: row for row in rows if row.registry == self._registry}

    def _add(self, action: ImportAction, modes: Mapping[str, str | None], to_delete: Collection[tuple[str, int]]) -> None:
        if not modes:
            return
        newest = max((row["sequence"] for row in self._rows.read_columns((), ["sequence"])), default=0)
        at_ms, host, pid = self._now_ms(), socket.gethostname(), os.getpid()
        self._rows.append(
            [
                SchemaImportRow(
                    sequence=sequence,
                    registry=self._registry,
                    subject=subject,
                    action=action,
                    mode_before=mode,
                    at_ms=at_ms,
                    host=host,
                    pid=pid,
                    to_delete=tuple(sorted(number for name, number in to_delete if name == subject)),
                )
                for sequence, (subject, mode) in enumerate(modes.items(), start=newest + 1)
            ]
        )
