"""Pure: what is wrong with an archive: counts by kind, and the first of each kind by name."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any

from shallow_mirror.plurals import counted

MOST_NAMED = 1_000
"""Findings of each kind that a report names; the others are counted."""
MOST_SHOWN = 20
"""Of those, how many a text shows."""


class FindingKind(enum.StrEnum):
    MISSING = "missing"
    DAMAGED = "damaged"
    HOLE = "hole"
    OVERLAP = "overlap"
    REPLACED = "replaced"
    ORPHAN = "orphan"


IS_DIFFERENCE = frozenset(FindingKind) - {FindingKind.REPLACED, FindingKind.ORPHAN}
"""Nothing of the archive is lost with a replaced object. Orphans are no part of it: `archive clean` removes them."""

_MEANINGS = {
    FindingKind.MISSING: "in the tables, and not in the store",
    FindingKind.DAMAGED: "other bytes than were archived",
    FindingKind.HOLE: "offsets that no row covers",
    FindingKind.OVERLAP: "offsets that two rows cover",
    FindingKind.REPLACED: "damaged, but all of it is in other objects: move it out of the store",
    FindingKind.ORPHAN: "named by no row: `shallow-mirror archive clean FILE` removes them",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """`object_name` is empty for findings on rows only."""

    kind: FindingKind
    object_name: str
    detail: str
    size_bytes: int = 0

    def sentence(self) -> str:
        return f"{self.object_name}: {self.detail}" if self.object_name else self.detail


@dataclass(slots=True)
class Findings:
    """Bounded: `named` holds the first MOST_NAMED of each kind."""

    counts: dict[FindingKind, int] = field(default_factory=dict)
    size_bytes: dict[FindingKind, int] = field(default_factory=dict)
    named: dict[FindingKind, list[Finding]] = field(default_factory=dict)

    def add(self, finding: Finding) -> None:
        kind = finding.kind
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.size_bytes[kind] = self.size_bytes.get(kind, 0) + finding.size_bytes
        named = self.named.setdefault(kind, [])
        if len(named) < MOST_NAMED:
            named.append(finding)

    @property
    def has_difference(self) -> bool:
        return any(kind in IS_DIFFERENCE for kind in self.counts)

    def document(self) -> dict[str, Any]:
        return {
            kind.value: {
                "count": self.counts.get(kind, 0),
                "size_bytes": self.size_bytes.get(kind, 0),
                "named": [{"object_name": finding.object_name, "detail": finding.detail} for finding in self.named.get(kind, [])],
            }
            for kind in FindingKind
        }

    def sentences(self) -> list[str]:
        lines: list[str] = []
        for kind, count in self.counts.items():
            size = f", {counted(self.size_bytes[kind], 'byte')}" if self.size_bytes[kind] else ""
            lines.append(f"{kind.value}: {count:,}{size} ({_MEANINGS[kind]})")
            shown = self.named[kind][:MOST_SHOWN]
            lines += [f"  {finding.sentence()}" for finding in shown]
            if count > len(shown):
                lines.append(f"  and {count - len(shown):,} more (--json names up to {MOST_NAMED:,})")
        return lines
