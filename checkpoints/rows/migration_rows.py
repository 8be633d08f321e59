"""Pure: the rows of the table `migration`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from shallow_mirror.checkpoints.rows.codec import Int32, Json, row_codec

MIGRATION_TABLE = "migration"

TAKEN_OVER, ENDED = "taken over", "ended"
"""Events of a conductor itself: its first row, and its last one unless it was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MigrationRow:
    """`wave` and `step` are empty if a row is of the whole migration. `fingerprint`: of the files that the conductor read."""

    sequence: int
    conductor_epoch: Int32
    wave: str
    event: str
    step: str
    detail: Annotated[Mapping[str, Any], Json()]
    fingerprint: str
    host: str
    pid: int
    run_id: str
    at: datetime


MIGRATION = row_codec(MigrationRow)
