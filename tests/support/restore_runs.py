"""Restores that run inside the test process."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from shallow_mirror.config import ArchiveConfig, RestoreConfig
from shallow_mirror.sinks import Observer, observe_nothing
from shallow_mirror.streaming.runs import Restore


def document(archive: ArchiveConfig, target: str, /, **groups: Any) -> dict[str, Any]:
    """Return a restore file. `groups` are merged into it, one level deep. Restored topics end in `-back`."""
    made: dict[str, Any] = {
        "restore": f"r-{uuid.uuid5(uuid.NAMESPACE_URL, f'{archive.archive} {groups}')}",
        "archive": {"tables": archive.tables, "objects": archive.objects, "alias": "east"},
        "target": {"alias": "west", "client": {"bootstrap.servers": target}},
        "topics": {"target_name": "{source}.{topic}"},
        "write": {"transaction_timeout_ms": 60_000},
        "tables": "restore",
    }
    for name, value in groups.items():
        made[name] = made.get(name, {}) | value if isinstance(value, dict) else value
    return made


def config(folder: Path, archive: ArchiveConfig, target: str, /, **groups: Any) -> RestoreConfig:
    return RestoreConfig.from_document(document(archive, target, **groups), folder=folder)


def restore(settings: RestoreConfig, spark: Any, observer: Observer = observe_nothing) -> None:
    Restore(settings, observer=observer).run(spark)
