"""Driver, for the cli: removal of the objects that interrupted runs of an archive left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from shallow_mirror.checkpoints.archive_table import ArchiveTable
from shallow_mirror.checkpoints.storage import MirrorStorage
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.object_store.base import DELETE_PAGE
from shallow_mirror.object_store.object_store import ObjectStore
from shallow_mirror.operations.archive_objects import Orphan, find_orphans
from shallow_mirror.plurals import counted


@dataclass(slots=True)
class Cleaned:
    object_count: int = 0
    unfinished_count: int = 0
    size_bytes: int = 0
    is_dry_run: bool = False

    def sentence(self) -> str:
        done = "would be removed" if self.is_dry_run else "removed"
        count = f"{counted(self.object_count, 'object')} and {counted(self.unfinished_count, 'unfinished file')}"
        return f"{done}: {count}, {counted(self.size_bytes, 'byte')}"


def clean(
    config: ArchiveConfig, spark: Any = None, *, is_dry_run: bool = False, on_orphan: Callable[[Orphan], None] = lambda _: None
) -> Cleaned:
    """Remove orphans; `on_orphan` is called for each once it is gone. Safe beside a running archive, and to repeat.

    Raises ConfigError, OffsetMapConflictError, StoreUnreachableError (some may be removed).
    """
    table = ArchiveTable.open(MirrorStorage(config.table_location, spark), archive=config.archive)
    store = ObjectStore.open(config.objects, config.storage_options)
    cleaned = Cleaned(is_dry_run=is_dry_run)
    orphans = find_orphans(table, store)
    while page := tuple(islice(orphans, DELETE_PAGE)):
        if not is_dry_run:
            store.delete([orphan.info.name for orphan in page])
        for orphan in page:
            on_orphan(orphan)
            cleaned.object_count += not orphan.is_unfinished
            cleaned.unfinished_count += orphan.is_unfinished
            cleaned.size_bytes += orphan.info.size_bytes
    return cleaned
