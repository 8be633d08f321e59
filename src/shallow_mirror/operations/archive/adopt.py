"""Driver, for the cli: the table of an archive file becomes the owner of the archive's objects."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from shallow_mirror.archive_format import ObjectName
from shallow_mirror.checkpoints.ledger import ArchiveTable
from shallow_mirror.checkpoints.rows import SegmentState
from shallow_mirror.checkpoints.tables import Comparison, TableStorage
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.errors import ConfigError, FencedError
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.operations.archive.objects import NamedObjects, OnlyCopies, fingerprint_of
from shallow_mirror.plurals import counted
from shallow_mirror.sinks import KEY_COLUMNS, RowCopies
from shallow_mirror.sinks.archive import ObjectOwner, ObjectOwners

_SHOWN = 5
_VISIBLE = Comparison("state", "=", SegmentState.COPY_SEGMENT_FINISHED.value)


def adopt(config: ArchiveConfig, spark: Any = None, *, now_ms: Callable[[], int] = lambda: int(time.time() * 1000)) -> str:
    """Record the table as the owner, and copy its rows that have no copy. Return a sentence.

    A run with the table that was the owner ends with FencedError. Raise ConfigError if the objects have more than the table:
    it was rebuilt before they were written or deleted. Raise FencedError if a run takes over at the same time.
    """
    table = ArchiveTable.open(TableStorage(config.table_location, spark), archive=config.archive)
    store = ObjectStore.open(config.objects, config.storage_options)
    owners = ObjectOwners(store, table.archive_id)
    newest, recorded = owners.newest(), table.recorded()
    if recorded is None:
        raise ConfigError("the table has no decision and no rows: start the archive with `shallow-mirror archive run FILE`")
    if newest is not None and newest.table_id == table.table_id and newest.run_epoch <= recorded.run_epoch:
        RowCopies(store, table.archive_id).complete(table, is_whole=True)
        return f"the objects belong to this table already: {newest}"
    problems = _newer_objects(table, store)
    if problems:
        more = f", and {counted(len(problems) - _SHOWN, 'more object')}" if len(problems) > _SHOWN else ""
        raise ConfigError(
            f"the objects have changed since this table was made: {'; '.join(problems[:_SHOWN])}{more}. Stop the archive that "
            "writes them, and rebuild again (`shallow-mirror archive verify FILE --rebuild TABLES`)"
        )
    entry = ObjectOwner(
        number=1 if newest is None else newest.number + 1,
        table_id=table.table_id,
        source_cluster_id=table.source_cluster_id,
        tables=config.tables,
        run_epoch=recorded.run_epoch,
        run_id=recorded.run.run_id,
        at_ms=now_ms(),
    )
    if not owners.put(entry):
        raise FencedError(str(owners.newest()))
    RowCopies(store, table.archive_id).complete(table, is_whole=True)
    former = "" if newest is None else f", and to {newest} no longer"
    return f"the objects of the archive {table.archive} belong to the table in {config.tables} now{former}"


def _newer_objects(table: ArchiveTable, store: ObjectStore) -> list[str]:
    """Return the contents of the store that the table lacks: offsets in objects, and deletions."""
    names = [info.name for info in store.list(table.archive_id) if ObjectName.parse(info.name) is not None]
    problems: list[str] = []
    if fingerprint_of(names) != table.rebuilt_from:
        only_copies, named = OnlyCopies(table), NamedObjects.of_table(table)
        found = (only_copies.problem_of(store, name) for name in names if name not in named)
        problems += [problem for problem in found if problem is not None]
    copied = {name for name in RowCopies(store, table.archive_id).read(KEY_COLUMNS)["object_name"].to_pylist() if name}
    visible = {name for piece in table.pieces((_VISIBLE,), ["object_name"]) for name in piece["object_name"].to_pylist() if name}
    return problems + [f"{name} has expired" for name in sorted(copied & visible)]
