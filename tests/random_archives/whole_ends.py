"""Pure: the highest ends of partitions that tear no transaction, by trying again until nothing changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shallow_mirror.types import SourcePartition

NO_END = (1 << 63) - 1
"""Of a part whose marker is not archived."""


@dataclass(frozen=True, slots=True)
class Part:
    """Records [start, end) of a committed transaction in one partition. `name` None: it has no known parts elsewhere."""

    source: SourcePartition
    start: int
    end: int
    name: tuple[int, int] | None


def whole_ends(ends: Mapping[SourcePartition, int], parts: Iterable[Part]) -> dict[SourcePartition, int]:
    """Return the highest ends, none above `ends`, with all parts of a transaction below them or none."""
    lowered = dict(ends)
    groups: defaultdict[object, list[Part]] = defaultdict(list)
    for part in parts:
        groups[part if part.name is None else part.name].append(part)
    is_changed = True
    while is_changed:
        is_changed = False
        for group in groups.values():
            if all(part.end <= lowered[part.source] for part in group):
                continue
            for part in group:
                if part.start < lowered[part.source]:
                    lowered[part.source] = part.start
                    is_changed = True
    return lowered
