"""Pure: the rows of the table `migration`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from shallow_mirror.checkpoints.schema import TIMESTAMP

MIGRATION_TABLE = "migration"

MIGRATION = pa.schema(
    [
        ("sequence", pa.int64()),
        ("conductor_epoch", pa.int32()),
        ("wave", pa.string()),
        ("event", pa.string()),
        ("step", pa.string()),
        ("detail", pa.string()),
        ("fingerprint", pa.string()),
        ("host", pa.string()),
        ("pid", pa.int64()),
        ("run_id", pa.string()),
        ("at", TIMESTAMP),
    ]
)

TAKEN_OVER, ENDED = "taken over", "ended"
"""Events of a conductor itself: its first row, and its last one unless it was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationRow:
    """`wave` and `step` are empty where a row is of the whole migration. `fingerprint`: of the files that the conductor read."""

    sequence: int
    conductor_epoch: int
    wave: str
    event: str
    step: str
    detail: Mapping[str, Any]
    fingerprint: str
    host: str
    pid: int
    run_id: str
    at: datetime
