"""Pure: what a verification reports: kinds of differences, their places, and neighbours joined to one."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from shallow_mirror.types import TopicPartition


class DifferenceKind(enum.StrEnum):
    MISSING = "missing"
    """Readers of the source see it, the target has no copy of it."""
    EXTRA = "extra"
    """Readers of the target see it where the map names a copy, the source has nothing there."""
    CHANGED = "changed"
    REORDERED = "reordered"
    """It is on the target, at another offset than the map says."""
    NOT_IN_MAP = "not in map"
    """Readers see it, no row of the map names it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Half-open ranges of offsets; both ends are None on a side that has no offsets in it. `reason` says nothing of offsets."""

    kind: DifferenceKind
    source: TopicPartition
    target: TopicPartition
    source_start: int | None = None
    source_end: int | None = None
    target_start: int | None = None
    target_end: int | None = None
    record_count: int = 0
    reason: str

    @property
    def sentence(self) -> str:
        at_source = _offsets(self.source_start, self.source_end)
        at_target = _offsets(self.target_start, self.target_end)
        parts = [
            f"source {self.source} {at_source}" if at_source else "",
            f"target {self.target} {at_target}" if at_target else "",
        ]
        return f"{self.kind}: {', '.join(part for part in parts if part)}: {self.reason}"

    def document(self) -> dict[str, Any]:
        """Return the difference for JSON; `from_document` reads it."""
        fields = asdict(self) | {"kind": self.kind.value, "sentence": self.sentence}
        del fields["source"], fields["target"]
        return {
            "source_topic": self.source.topic,
            "source_partition": self.source.partition,
            "target_topic": self.target.topic,
            "target_partition": self.target.partition,
            **fields,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Difference:
        return cls(
            kind=DifferenceKind(document["kind"]),
            source=TopicPartition(document["source_topic"], document["source_partition"]),
            target=TopicPartition(document["target_topic"], document["target_partition"]),
            **{name: document[name] for name in ("source_start", "source_end", "target_start", "target_end")},
            record_count=document["record_count"],
            reason=document["reason"],
        )


def _offsets(start: int | None, end: int | None) -> str:
    if start is None or end is None:
        return ""
    return f"offset {start}" if end - start <= 1 else f"offsets {start} to {end - 1}"


def merged(differences: Iterable[Difference]) -> list[Difference]:
    """In order of place; neighbours on both sides with one kind and reason become one."""
    out: list[Difference] = []
    for difference in sorted(differences, key=_sort_key):
        last = out[-1] if out else None
        if last is None or not _continues(last, difference):
            out.append(difference)
            continue
        out[-1] = replace(
            last,
            source_end=difference.source_end,
            target_end=difference.target_end,
            record_count=last.record_count + difference.record_count,
        )
    return out


def _sort_key(difference: Difference) -> tuple[bool, int, int]:
    start = difference.source_start if difference.source_start is not None else difference.target_start
    return difference.source_start is None, start or 0, difference.target_start or 0


def _continues(last: Difference, difference: Difference) -> bool:
    return (
        (last.kind, last.reason, last.source, last.target)
        == (difference.kind, difference.reason, difference.source, difference.target)
        and last.source_end == difference.source_start
        and last.target_end == difference.target_start
    )
