"""Pure: the record of one log in another log, to which it was copied without its offset: by content, and by its neighbours.

MirrorMaker 2 copies the records of a partition in their order. After a restart it may copy some again, so its topic is a
sequence of runs, each of consecutive records of the source. For a position in that topic, r is the first record at or behind it:

A  Every source record before the one that r is a copy of was copied before the position. A group may therefore continue at that
   source record without missing any; at an earlier one it repeats some.
B  Each source record that equals r (timestamp, key, value, headers) is a candidate, and one of them is it. So the earliest
   candidate misses nothing. If the neighbours on both sides equal those of r at only one, that is exact. So is a single one, if
   the record before r says the same; otherwise the lower of both counts.
C  Compaction or retention may have removed r from the source. Then a record before the position is searched for instead: the
   nearest that the source still has, and the group continues behind it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

NEIGHBOURS = 16
"""Records on each side of a candidate that are compared."""
PREDECESSORS = 8
"""Records before a position that are searched for, in case the one behind it is not there any more."""
BEHIND_ROWS = 1_000
"""So many records behind a candidate with equal neighbours are searched for another one."""
_MOST_KEPT_ROWS = 8_192
"""Rows in memory, beside those that were added last."""

_TIMESTAMP = struct.Struct("<q")
WHOLE, WITHOUT_HEADERS = slice(0, None), slice(0, 16)
WITHOUT_TIMESTAMP, KEY_AND_VALUE = slice(8, None), slice(8, 16)
"""Parts of the content of a record that are compared. It is that of `record_content`: the timestamp, checksums of key and value,
and a digest of key, value and headers."""


class Row(NamedTuple):
    offset: int
    content: bytes

    @property
    def timestamp_ms(self) -> int:
        return int(_TIMESTAMP.unpack_from(self.content)[0])


@dataclass(frozen=True, slots=True)
class Anchor:
    """A record to search for, with its neighbours, the nearest first. `is_next`: the group reads it next; else it has read it."""

    row: Row
    before: tuple[bytes, ...]
    after: tuple[bytes, ...]
    is_next: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Where a group continues at the source. `repeats`: records that it may read again, at most."""

    offset: int
    repeats: int
    passed_over: int
    """Records next to the position that the source does not have any more."""

    @property
    def is_exact(self) -> bool:
        return self.repeats == 0


class _Hit(NamedTuple):
    offset: int
    number: int
    """Of the row in the search."""


_NOWHERE = _Hit(-1, -1)


@dataclass(slots=True)
class _Hits:
    """Where the other log has the content of an anchor."""

    count: int = 0
    first: _Hit = _NOWHERE
    last: _Hit = _NOWHERE
    with_neighbours: int = 0
    best: _Hit = _NOWHERE
    """The first of those with equal neighbours."""
    behind_equal: int = 0
    """How many are directly behind equal records. The records behind an anchor may be gone."""

    @property
    def is_sure(self) -> bool:
        return self.with_neighbours == 1 or (self.count == 1 and self.behind_equal == 1)

    @property
    def spread(self) -> int:
        """Return how many records the last one is behind the first."""
        return self.last.number - self.first.number

    def place(self, *, is_next: bool) -> _Hit:
        """Return where a group continues: at the record, or behind it."""
        hit = self.best if self.with_neighbours == 1 else self.first
        return hit if is_next else _Hit(hit.offset + 1, hit.number + 1)


def anchors_at(rows: Sequence[Row], position: int) -> list[Anchor]:
    """Return the records to search for, the best first. `rows`: around the position, in order."""
    split = next((at for at, row in enumerate(rows) if row.offset >= position), len(rows))
    indices = ([split] if split < len(rows) else []) + list(range(split - 1, max(-1, split - 1 - PREDECESSORS), -1))
    contents = [row.content for row in rows]
    return [
        Anchor(
            rows[at],
            tuple(reversed(contents[max(0, at - NEIGHBOURS) : at])),
            tuple(contents[at + 1 : at + 1 + NEIGHBOURS]),
            is_next=at == split,
        )
        for at in indices
    ]


class RecordSearch:
    """Takes the rows of the other log in order, in pieces of any size. `compared`: the part of contents that has to be equal."""

    def __init__(self, anchors: Sequence[Anchor], compared: slice = WHOLE) -> None:
        self._anchors = anchors
        self._hits = [_Hits() for _ in anchors]
        self._compared = compared
        self._neighbours = [(_parts(anchor.before, compared), _parts(anchor.after, compared)) for anchor in anchors]
        self._by_content: dict[bytes, list[int]] = {}
        for number, anchor in enumerate(anchors):
            self._by_content.setdefault(anchor.row.content[compared], []).append(number)
        self._offsets: list[int] = []
        self._contents: list[bytes] = []
        self._at = 0
        self._dropped = 0

    def add(self, rows: Sequence[Row]) -> None:
        self._offsets += [row.offset for row in rows]
        self._contents += [row.content[self._compared] for row in rows]
        self._evaluate(len(self._contents) - NEIGHBOURS)
        if self._at > _MOST_KEPT_ROWS:
            drop = self._at - NEIGHBOURS
            del self._offsets[:drop], self._contents[:drop]
            self._at -= drop
            self._dropped += drop

    @property
    def is_decided(self) -> bool:
        """Return whether more rows are unlikely to change the result."""
        best = self._hits[0].best
        return best is not _NOWHERE and self._at + self._dropped - best.number > BEHIND_ROWS

    def result(self) -> Found | None:
        """Return the position, when the last row was added; None if no record was found."""
        self._evaluate(len(self._contents))
        found = [
            (passed_over, anchor, hits)
            for passed_over, (anchor, hits) in enumerate(zip(self._anchors, self._hits, strict=True))
            if hits.count
        ]
        if not found:
            return None
        passed_over, anchor, hits = found[0]
        place = hits.place(is_next=anchor.is_next)
        repeats = 0 if hits.is_sure or hits.count == 1 else hits.spread
        if not hits.is_sure and len(found) > 1:
            # A single equal record may be another one, if compaction has removed the right one: the one before it must agree.
            _, before, other_hits = found[1]
            other = other_hits.place(is_next=before.is_next)
            repeats += max(0, place.number - other.number)
            place = min(place, other)
        return Found(offset=place.offset, repeats=repeats, passed_over=passed_over)

    @property
    def is_sure(self) -> bool:
        """Return whether the neighbours agree with one place only."""
        found = next((hits for hits in self._hits if hits.count), None)
        return found is not None and found.is_sure

    def _evaluate(self, end: int) -> None:
        for at in range(self._at, end):
            for number in self._by_content.get(self._contents[at], ()):
                self._note(number, at)
        self._at = max(self._at, end)

    def _note(self, number: int, at: int) -> None:
        hits, hit = self._hits[number], _Hit(self._offsets[at], at + self._dropped)
        hits.count += 1
        hits.first, hits.last = hit if hits.first is _NOWHERE else hits.first, hit
        before, after = self._neighbours[number]
        if not _is_equal(before, self._contents[max(0, at - NEIGHBOURS) : at][::-1]):
            return
        hits.behind_equal += bool(before) and at > 0
        if _is_equal(after, self._contents[at + 1 : at + 1 + NEIGHBOURS]):
            hits.with_neighbours += 1
            hits.best = hit if hits.best is _NOWHERE else hits.best


def _is_equal(wanted: Sequence[bytes], there: Sequence[bytes]) -> bool:
    """Compare as many as both logs have."""
    length = min(len(wanted), len(there))
    return list(wanted[:length]) == list(there[:length])


def _parts(contents: Sequence[bytes], compared: slice) -> tuple[bytes, ...]:
    return tuple(content[compared] for content in contents)
