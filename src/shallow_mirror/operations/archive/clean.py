"""Driver, for the cli: removal of the objects that interrupted runs of an archive left."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from shallow_mirror.checkpoints.ledger import ArchiveTable
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.object_store import DELETE_PAGE, ObjectStore
from shallow_mirror.operations.archive.objects import OnlyCopies, Orphan, find_orphans, named_of
from shallow_mirror.plurals import counted
from shallow_mirror.sinks.archive import ObjectOwners, require_objects

OLDER_THAN_S = 86_400.0
"""Younger objects are left alone. By the clock of the store."""
_SHOWN = 20


@dataclass(slots=True)
class Cleaned:
    """`kept`: objects that no row names, by name, and why they were kept: no row of data has all of their offsets."""

    object_count: int = 0
    unfinished_count: int = 0
    size_bytes: int = 0
    is_dry_run: bool = False
    kept: dict[str, str] = field(default_factory=dict)

    def sentences(self) -> list[str]:
        lines = [f"kept: {problem}" for problem in list(self.kept.values())[:_SHOWN]]
        if self.kept:
            lines.append(
                f"kept {counted(len(self.kept), 'object')} that may be the only copy: remove them yourself once the source, or "
                "another archive, has these offsets"
            )
        done = "would be removed" if self.is_dry_run else "removed"
        count = f"{counted(self.object_count, 'object')} and {counted(self.unfinished_count, 'unfinished file')}"
        return [*lines, f"{done}: {count}, {counted(self.size_bytes, 'byte')}"]


def clean(
    config: ArchiveConfig,
    spark: Any = None,
    *,
    is_dry_run: bool = False,
    older_than_s: float = OLDER_THAN_S,
    on_orphan: Callable[[Orphan], None] = lambda _: None,
    now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
) -> Cleaned:
    """Remove orphans; `on_orphan` is called for each once it is gone. Safe beside a running archive, and to repeat.

    Raises ConfigError (also if the objects belong to another table), OffsetMapConflictError, StoreUnreachableError (some may
    be removed).
    """
    table = ArchiveTable.open(TableStorage(config.table_location, spark), archive=config.archive)
    store = ObjectStore.open(config.objects, config.storage_options)
    require_objects(table, store)
    owners = ObjectOwners(store, table.archive_id)
    if owners.require_table(table) is None:
        raise ConfigError(
            "no run has recorded yet that the objects belong to this table: start the archive once (`shallow-mirror archive run "
            "FILE`), and clean again"
        )
    latest_ms = now_ms() - int(older_than_s * 1000)
    cleaned = Cleaned(is_dry_run=is_dry_run)
    only_copies = OnlyCopies(table)
    orphans = (orphan for orphan in find_orphans(table, store) if orphan.info.last_modified_ms <= latest_ms)
    while found := tuple(islice(orphans, DELETE_PAGE)):
        # Right before the deletion: another table may have become the owner since, and a row may name an object.
        table.refresh()
        owners.require_table(table)
        named = named_of(table, [orphan.info.name for orphan in found])
        page = []
        for orphan in found:
            if orphan.info.name in named:
                continue
            problem = None if orphan.is_unfinished else only_copies.problem_of(store, orphan.info.name)
            if problem is None:
                page.append(orphan)
            else:
                cleaned.kept[orphan.info.name] = problem
        if not is_dry_run:
            store.delete([orphan.info.name for orphan in page])
        for orphan in page:
            on_orphan(orphan)
            cleaned.object_count += not orphan.is_unfinished
            cleaned.unfinished_count += orphan.is_unfinished
            cleaned.size_bytes += orphan.info.size_bytes
    return cleaned
