"""Pure: the cut that a restore file asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """What a restore file asks for. At most one of `time_ms`, `decision` and `offsets`; `topics`: names to include."""

    topics: tuple[str, ...]
    time_ms: int | None = None
    decision: int | None = None
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    lineage: int | None = None
    whole_transactions: bool = False
    is_committed_only: bool = True

    def until(self) -> dict[str, Any]:
        """Return the section `until` of the restore file."""
        until: dict[str, Any] = {"whole_transactions": self.whole_transactions}
        if self.time_ms is not None:
            until["time"] = datetime.fromtimestamp(self.time_ms / 1000, UTC).isoformat(timespec="milliseconds")
        if self.decision is not None:
            until["decision"] = self.decision
        if self.offsets:
            until["offsets"] = {topic: dict(partitions) for topic, partitions in self.offsets.items()}
        if self.lineage is not None:
            until["lineage"] = self.lineage
        return until
