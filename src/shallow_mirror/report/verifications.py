"""Driver, for the cli: verifications as the table `audit` has them, with what was copied since each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shallow_mirror.checkpoints import Position
from shallow_mirror.checkpoints.logs.runs import RecordedVerification
from shallow_mirror.checkpoints.tables import BestEffortTables
from shallow_mirror.plurals import counted, listed
from shallow_mirror.types import SourcePartition

VERIFICATIONS_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownVerification:
    """`copied_since_offsets`: source offsets of its partitions that were copied behind what it compared.

    `other_partitions`: partitions of the offset map, with rows, that it did not compare.
    """

    recorded: RecordedVerification
    copied_since_offsets: int
    other_partitions: int

    @property
    def scope(self) -> str:
        """Return what was asked for."""
        scope = self.recorded.scope
        topics = "everything" if scope["topics"] is None else listed(scope["topics"])
        since = ", what was copied since an earlier one" if "after" in scope else ""
        return f"{topics}{since}{', every batch opened' if scope['deep'] else ''}"

    @property
    def outcome(self) -> str:
        """Return the result; never one that the verification does not have."""
        result = self.recorded.result
        if self.recorded.finished_at_ms is None:
            return "not finished: interrupted, or under way"
        if result is None:
            return "finished by a release that did not record results"
        differences = sum(result["difference_counts"].values())
        if differences:
            return counted(differences, "difference")
        return "no difference in what was covered" if result["uncovered_count"] else "no difference"

    @property
    def not_covered(self) -> str:
        result = self.recorded.result
        if result is None:
            return "not known"
        parts = list(result["uncovered"][:3])
        more = result["uncovered_count"] - len(parts)
        parts += [f"and {more:,} more"] if more > 0 else []
        parts += [f"{counted(result['unchecked_offsets'], 'offset')} cannot be checked"] if result["unchecked_offsets"] else []
        parts += [f"{counted(self.other_partitions, 'partition')} of the map"] if self.other_partitions else []
        return "; ".join(parts) or "nothing"

    @property
    def equal(self) -> str:
        result: Mapping[str, Any] | None = self.recorded.result
        if result is None:
            return "not known"
        return f"{counted(result['record_count'], 'record')} of {counted(result['partition_count'], 'partition')}"


def shown_verifications(tables: BestEffortTables, positions: Mapping[SourcePartition, Position]) -> Sequence[ShownVerification]:
    """Return the last verifications, the newest first."""
    shown = []
    for recorded in RecordedVerification.newest(tables, VERIFICATIONS_SHOWN):
        ends = recorded.ends
        compared = [(position.offset, ends[source]) for source, position in positions.items() if source in ends]
        others = [position for source, position in positions.items() if source not in ends and position.offset > position.start]
        shown.append(
            ShownVerification(
                recorded=recorded,
                copied_since_offsets=sum(max(0, offset - end) for offset, end in compared),
                other_partitions=len(others),
            )
        )
    return shown
