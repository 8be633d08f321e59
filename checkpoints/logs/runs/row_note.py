"""Pure: what names a row of a migration's table outside of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from shallow_mirror.checkpoints.rows.migration_rows import MigrationRow


@dataclass(frozen=True, slots=True)
class RowNote:
    conductor_epoch: int
    sequence: int
    run_id: str
    at: datetime

    @classmethod
    def of(cls, row: MigrationRow) -> Self:
        return cls(row.conductor_epoch, row.sequence, row.run_id, row.at)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the note; None for any other text."""
        try:
            found = json.loads(text)
            return cls(int(found["conductor"]), int(found["row"]), str(found["run"]), datetime.fromisoformat(found["at"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    def build(self) -> str:
        return json.dumps(
            {"conductor": self.conductor_epoch, "row": self.sequence, "run": self.run_id, "at": self.at.isoformat()}
        )

    @property
    def position(self) -> tuple[int, int]:
        """Return what the newest row has the highest of."""
        return self.conductor_epoch, self.sequence

    def __str__(self) -> str:
        at = self.at.isoformat(timespec="seconds")
        return f"row {self.sequence} of conductor {self.conductor_epoch} ({at}, run {self.run_id})"
