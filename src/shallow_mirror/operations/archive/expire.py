"""Driver, for the cli: what the retention of an archive does not keep, deleted by a run of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from shallow_mirror.checkpoints.ledger import ArchiveTable, RunIdentity
from shallow_mirror.checkpoints.logs.runs import recorded_run
from shallow_mirror.checkpoints.tables import ARCHIVE_LAYOUT, TableStorage
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.operations.status import run_status
from shallow_mirror.sinks import Observer, observe_nothing, take_over_archive
from shallow_mirror.sinks.archive import (
    Expired,
    ExpiredObject,
    Expiry,
    GroupNoteExpiry,
    ObjectOwners,
    expired_objects,
    interrupted_objects,
    require_objects,
    retention_of,
)
from shallow_mirror.version import __version__


def expire(
    config: ArchiveConfig,
    spark: Any = None,
    *,
    is_dry_run: bool = False,
    takes_over: bool = False,
    on_object: Callable[[ExpiredObject], None] = lambda _: None,
    now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    observer: Observer = observe_nothing,
) -> Expired:
    """Delete expired objects. Safe to repeat after any error; needs no source. `on_object`: of a dry run, for each object.

    `takes_over`: also from a run that seems to be alive. Raise ConfigError (such a run, no table, objects that are not there or
    belong to another table), FencedError, OutcomeUnknownError, OffsetMapConflictError, DeletionFailedError.
    """
    storage = TableStorage.to_write(config.table_location, config.tables_writer, spark, layout=ARCHIVE_LAYOUT)
    table = ArchiveTable.open(storage, archive=config.archive)
    retention = retention_of(config.retention)
    store = ObjectStore.open(config.objects, config.storage_options)
    ObjectOwners(store, table.archive_id).require_table(table)
    require_objects(table, store)
    if is_dry_run:
        report = Expired(is_dry_run=True)
        for entry in (*interrupted_objects(table), *expired_objects(table, retention, now_ms())):
            on_object(entry)
            report.add([entry])
        return report
    if not takes_over:
        _require_stopped(config, storage, table)
    storage.require_conditional_writes()
    run = RunIdentity.of_this_process()
    archive = take_over_archive(
        storage, store, archive=config.archive, source_cluster_id=table.source_cluster_id, run=run, now_ms=now_ms
    )
    owner = archive.table
    tables = storage.background_tables()
    with recorded_run(tables, owner.run_epoch, run, __version__, "expire: failed", now_ms=now_ms) as end:
        owner.settle()
        owner.positions()  # counts the rows: where some were removed, RESTORE TABLE would name objects that were deleted since
        table.refresh()
        archive.complete_copies(table)
        notes = GroupNoteExpiry(storage.best_effort_tables(), table, config.groups.keep_s, now_ms)
        expired = Expiry(archive, table, store, retention, now_ms=now_ms, observer=observer, group_notes=notes).run()
        end.outcome = "expire: done"
    return expired


def _require_stopped(config: ArchiveConfig, storage: TableStorage, table: ArchiveTable) -> None:
    recorded = table.recorded()
    run = None if recorded is None else run_status(storage.best_effort_tables(), recorded)
    if run is None or run.is_over:
        return
    state = "is running" if run.is_alive else "has a run that recorded no end"
    raise ConfigError(
        f"the archive {config.archive} {state} (run {run.run_epoch}, pid {run.pid} on {run.host}): a running archive expires by "
        "itself. Stop it first, or take over with --take-over: it then ends with exit code 3"
    )
