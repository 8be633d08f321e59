"""Driver: the table that an archive's objects belong to, recorded beside them, and whether the objects of a table are there.

A rebuilt table names the same objects as the table that it was rebuilt from, which may still be in use. Versions of the two say
nothing about each other. So each take-over adds an object `<archive id>/owners/<number>.json`, and the highest number counts.
Only runs with its table may write or delete objects. A rebuilt table becomes the owner with `archive adopt`.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow.compute as pc

from shallow_mirror.checkpoints.ledger import ArchiveTable
from shallow_mirror.checkpoints.rows import SegmentState
from shallow_mirror.checkpoints.tables import Comparison, Condition
from shallow_mirror.errors import (
    ArchiveFormatError,
    ConfigError,
    FencedError,
    MirrorError,
    ObjectExistsError,
    ObjectMissingError,
)
from shallow_mirror.object_store import ObjectStore

_log = logging.getLogger(__name__)

FORMAT = 1
KEPT_OWNERS = 10
"""Older entries are deleted by the next take-over."""

_NAME = re.compile(r".*/owners/([0-9]{10})\.json")
_VISIBLE_DATA: Condition = (
    Comparison("state", "=", SegmentState.COPY_SEGMENT_FINISHED.value),
    Comparison("kind", "=", "data"),
)
_ATTEMPTS = 5
_REMEDY = "Restore it from a copy or a former version, or move it out of the store and run `shallow-mirror archive adopt FILE`"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectOwner:
    """`table_id`: of the table, which keeps it at another location. `tables`: its location at the take-over, for messages."""

    number: int
    table_id: str
    source_cluster_id: str
    tables: str
    run_epoch: int
    run_id: str
    at_ms: int

    def __str__(self) -> str:
        at = datetime.fromtimestamp(self.at_ms / 1000, UTC).isoformat(timespec="seconds")
        return f"the table in {self.tables} (run {self.run_epoch}, since {at})"


class ObjectOwners:
    """Entries of one archive. Raises errors of the store, and ArchiveFormatError."""

    def __init__(self, store: ObjectStore, archive_id: str) -> None:
        self._store, self._archive_id = store, archive_id

    def newest(self) -> ObjectOwner | None:
        """Return None if no run has recorded itself: the archive is new, or an older release wrote it."""
        for attempt in range(1, _ATTEMPTS + 1):
            number = max(self._numbers(), default=None)
            if number is None:
                return None
            while self._store.size(self._name(number + 1)) is not None:  # a store may list late
                number += 1
            try:
                return _parse(self._name(number), number, self._store.tail(self._name(number), 1 << 16))
            except ObjectMissingError:  # deleted by later take-overs since it was listed
                if attempt == _ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    def add(self, table: ArchiveTable, *, tables: str, run_epoch: int, run_id: str, at_ms: int) -> ObjectOwner:
        """Add an entry for a run with `table`, and return it, or the one that an earlier call has added.

        Raise ConfigError if the objects belong to another table, FencedError if a later run has added one.
        """
        for _ in range(_ATTEMPTS):
            newest = self.require_table(table)
            if newest is not None and newest.run_id == run_id:
                return newest
            if newest is not None and newest.run_epoch > run_epoch:
                raise FencedError(str(newest))
            entry = ObjectOwner(
                number=1 if newest is None else newest.number + 1,
                table_id=table.table_id,
                source_cluster_id=table.source_cluster_id,
                tables=tables,
                run_epoch=run_epoch,
                run_id=run_id,
                at_ms=at_ms,
            )
            if self.put(entry):
                return entry
        raise FencedError(str(self.newest()))

    def put(self, entry: ObjectOwner) -> bool:
        """Return False if another run has added an entry of this number first."""
        document = {"format": FORMAT, **asdict(entry)}
        del document["number"]
        with self._store.writer(self._name(entry.number)) as writer:
            try:
                writer.write(json.dumps(document, sort_keys=True).encode())
                writer.close()
            except ObjectExistsError:
                return False
        old = [self._name(number) for number in self._numbers() if number <= entry.number - KEPT_OWNERS]
        try:
            self._store.delete(old)
        except MirrorError as error:  # nothing needs them to be gone
            _log.info("old entries of owners were not deleted: %s", error)
        return True

    def require(self, entry: ObjectOwner) -> None:
        """Raise FencedError if another run, of this table or of another one, has added an entry since.

        Raise ConfigError if the entry is gone, and no other one is there.
        """
        if self._store.size(self._name(entry.number + 1)) is None and self._store.size(self._name(entry.number)) is not None:
            return
        newest = self.newest()
        if newest is None:
            raise ConfigError(
                f"objects: {self._store.root} no longer holds the objects of this archive: {self._name(entry.number)} is gone. "
                "Check that the folder is mounted, then start again"
            )
        raise FencedError(str(newest))

    def require_table(self, table: ArchiveTable) -> ObjectOwner | None:
        """Return the newest entry. Raise ConfigError if the objects belong to another table. May refresh the table."""
        newest = self.newest()
        if newest is None and not table.is_rebuilt:
            return None
        if newest is not None and newest.table_id == table.table_id:
            if newest.run_epoch > _epoch_of(table):
                table.refresh()  # the entry follows the commit of its take-over
            if newest.run_epoch > _epoch_of(table):
                raise ConfigError(
                    f"{newest} is newer than this copy of it: set `tables` to it. If it is lost, rebuild it from the objects"
                )
            return newest
        if newest is None:
            belongs = "no run has recorded whose the objects are, and the table was rebuilt"
        else:
            belongs = f"the objects of the archive {table.archive} belong to {newest}, not to this table"
        raise ConfigError(
            f"{belongs}. If the other table is lost, or its archive was stopped for good: shallow-mirror archive adopt FILE. "
            "Otherwise set `tables` to that table"
        )

    def _name(self, number: int) -> str:
        return f"{self._archive_id}/owners/{number:010d}.json"

    def _numbers(self) -> list[int]:
        names = (info.name for info in self._store.list(f"{self._archive_id}/owners"))
        return [int(match[1]) for name in names if (match := _NAME.fullmatch(name)) is not None]


def _epoch_of(table: ArchiveTable) -> int:
    recorded = table.recorded()
    return -1 if recorded is None else recorded.run_epoch


def archive_id_of_entry(name: str) -> str | None:
    """Return the archive of an object that is an entry; None for any other object."""
    return name.rsplit("/", 2)[0] if _NAME.fullmatch(name) else None


def require_objects(table: ArchiveTable, store: ObjectStore) -> None:
    """Raise ConfigError if the store does not hold the objects of a table: another location, or one that is not mounted.

    A table without rows needs no object. An object that is missing alone is for `archive verify` to report.
    """
    recorded = table.recorded()
    if recorded is None or not recorded.row_count:
        return
    owner = ObjectOwners(store, table.archive_id).newest()
    if owner is not None and owner.table_id == table.table_id and owner.run_epoch == recorded.run_epoch:
        return
    missing = _newest_object(table)
    if missing is None:
        if next(store.list(table.archive_id), None) is not None:
            return
        missing = f"a folder {table.archive_id}"
    elif store.size(missing) is not None:
        return
    raise ConfigError(
        f"objects: {store.root} does not hold the objects of the archive {table.archive}: {missing} is not there, which the "
        "newest rows of `tables` need. Check `objects`, and that the folder is mounted; nothing was written"
    )


def _newest_object(table: ArchiveTable) -> str | None:
    """Return an object of the newest decision that has a visible one."""
    newest = max((pc.max(piece["micro_batch"]).as_py() or 0 for piece in table.pieces(_VISIBLE_DATA, ["micro_batch"])), default=0)
    of_decision = (*_VISIBLE_DATA, Comparison("micro_batch", "=", newest))
    names = (name for piece in table.pieces(of_decision, ["object_name"]) for name in piece["object_name"].to_pylist())
    return next(names, None)


def _parse(name: str, number: int, content: bytes) -> ObjectOwner:
    try:
        document: dict[str, Any] = json.loads(content)
        if document["format"] > FORMAT:
            raise ConfigError(
                f"object {name} has format {document['format']}, this release reads {FORMAT}. Use a newer shallow-mirror"
            )
        return ObjectOwner(
            number=number,
            table_id=str(document["table_id"]),
            source_cluster_id=str(document["source_cluster_id"]),
            tables=str(document["tables"]),
            run_epoch=int(document["run_epoch"]),
            run_id=str(document["run_id"]),
            at_ms=int(document["at_ms"]),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveFormatError(name, f"it does not name the owner of the archive's objects: {error!r}", _REMEDY) from error
