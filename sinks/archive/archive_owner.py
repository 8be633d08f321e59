"""Driver: the take-over of an archive: of its table, and of the objects that the table names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shallow_mirror.checkpoints.ledger import ArchiveTable, LedgerOwner, Recorded, RunIdentity, read_snapshot
from shallow_mirror.checkpoints.tables import ARCHIVE_LAYOUT, TableStorage
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.sinks.archive.object_owner import ObjectOwner, ObjectOwners, require_objects
from shallow_mirror.sinks.archive.row_copies import RowCopies

NO_TARGET_CLUSTER = "archive"
"""In the place of the id of the target cluster, among the properties of the table."""


@dataclass(frozen=True, slots=True)
class ArchiveOwner:
    """`table` writes decisions, and copies their rows that have no object. Not for several threads."""

    table: LedgerOwner
    copies: RowCopies
    _owners: ObjectOwners
    _entry: ObjectOwner
    _needs_all_copies: bool

    def check(self) -> None:
        """Raise FencedError if the objects belong to another run by now. To be called before objects are deleted."""
        self._owners.require(self._entry)

    def complete_copies(self, table: ArchiveTable) -> None:
        """Copy the rows that have no copy yet. To be called before the first decision after a take-over or an error."""
        self.copies.complete(table, is_whole=self._needs_all_copies)


def take_over_archive(
    storage: TableStorage,
    store: ObjectStore,
    *,
    archive: str,
    source_cluster_id: str,
    run: RunIdentity,
    now_ms: Callable[[], int],
) -> ArchiveOwner:
    """Raise as `LedgerOwner.take_over`, and ConfigError if the objects are not there, or belong to another table.

    Repeat it with the same `run` after any error: it recognises its own entries.
    """
    before = check_before_take_over(storage, store, archive)
    owner = LedgerOwner.take_over(
        storage,
        layout=ARCHIVE_LAYOUT,
        name=archive,
        source_cluster_id=source_cluster_id,
        target_cluster_id=NO_TARGET_CLUSTER,
        run=run,
        now_ms=now_ms,
    )
    # Between the check and the commit another table may have become the owner.
    table = ArchiveTable.open(storage, archive=archive)
    owners = ObjectOwners(store, owner.map_id)
    newest = owners.require_table(table)
    entry = owners.add(table, tables=storage.location.root, run_epoch=owner.run_epoch, run_id=run.run_id, at_ms=now_ms())
    copies = RowCopies(store, owner.map_id, now_ms=now_ms)
    owner.on_decided = copies.copy_decided
    is_known = newest is not None and before is not None and newest.run_id == before.run.run_id
    return ArchiveOwner(owner, copies, owners, entry, _needs_all_copies=not is_known)


def check_before_take_over(storage: TableStorage, store: ObjectStore, archive: str) -> Recorded | None:
    """Raise ConfigError if the objects are not there, or belong to another table. Writes nothing.

    Return the last commit of the run before; None without a table.
    """
    writer = storage.decisions(ARCHIVE_LAYOUT)
    writer.repair_log()
    if read_snapshot(writer, ARCHIVE_LAYOUT.title) is None:
        return None
    table = ArchiveTable.open(storage, archive=archive)
    ObjectOwners(store, table.archive_id).require_table(table)
    require_objects(table, store)
    return table.recorded()
