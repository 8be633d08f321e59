"""Pure: names of an archive's objects.

A name carries the run epoch and the decision that its object was written for, so that an object of a decision that is over, and
that no row names, is an orphan, whatever its age. `try_id` gives every try of a task its own object.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ID = r"[A-Za-z0-9._-]+"
_NAME = re.compile(rf"({_ID})/([0-9]{{8,10}})/([0-9]{{10}})-([0-9]{{4,10}})-([0-9]{{2,10}})-([0-9a-f]{{8}})\.batches")
_DECISION_BITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectName:
    """`decision` is the n of the version (run_epoch << 32) | n. `retention_class` is a number; rows carry its pattern."""

    archive_id: str
    run_epoch: int
    decision: int
    slot: int
    retention_class: int
    try_id: str

    def __post_init__(self) -> None:
        match = _NAME.fullmatch(str(self))
        if match is None or match[1] in {".", ".."} or self.decision >> _DECISION_BITS:
            raise ValueError(f"not a name of an archive's object: {str(self)!r}")

    def __str__(self) -> str:
        task = f"{self.decision:010d}-{self.slot:04d}-{self.retention_class:02d}-{self.try_id}"
        return f"{prefix_of_run(self.archive_id, self.run_epoch)}{task}.batches"

    @property
    def version(self) -> int:
        """Return the version of the decision, as the table records it."""
        return self.run_epoch << _DECISION_BITS | self.decision

    @classmethod
    def parse(cls, name: str) -> ObjectName | None:
        """Return None for an object that is not named like one of an archive."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        run_epoch, decision, slot, retention_class = map(int, match.groups()[1:5])
        try:
            parsed = cls(
                archive_id=match[1],
                run_epoch=run_epoch,
                decision=decision,
                slot=slot,
                retention_class=retention_class,
                try_id=match[6],
            )
        except ValueError:
            return None
        return parsed if str(parsed) == name else None


def prefix_of_run(archive_id: str, run_epoch: int) -> str:
    """Return the prefix of the names of all objects of a run."""
    return f"{archive_id}/{run_epoch:08d}/"
