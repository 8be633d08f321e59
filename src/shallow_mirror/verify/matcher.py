"""Pure: match items of both sides, in the order they are read, each with its partner. What has none is left over.

Both sides are read in step, the one that is behind first. Below the horizon both are complete, so an item there that has
no partner has none at all: memory holds what one side is ahead, and what is left over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from shallow_mirror.verify.fingerprints import NOWHERE, Items, Level, digest_of, joined, no_items, same_content
from shallow_mirror.verify.map_index import Bools


@dataclass(slots=True)
class Leftovers:
    """Items without a partner: not at the offset that the map says, or with other content."""

    source: Items = field(default_factory=no_items)
    target: Items = field(default_factory=no_items)

    def __len__(self) -> int:
        return len(self.source) + len(self.target)


class Matcher:
    """`batches`, `records` and `offsets` of the source count equal items, with the records of batches that were opened.

    `digest`: of the equal items, as `digest_of`.
    """

    def __init__(self) -> None:
        self._source, self._target = no_items(), no_items()
        self._left_source: list[Items] = []
        self._left_target: list[Items] = []
        self.left_records = 0
        self.batches = self.records = self.offsets = self.digest = 0

    def add_source(self, items: Items) -> None:
        self._source = joined([self._source, items])

    def add_target(self, items: Items) -> None:
        self._target = joined([self._target, items])

    def advance(self, horizon: int) -> None:
        """Match items below `horizon`, an offset of the target below which everything was added, from both sides."""
        is_ready_source = self._source["partner"] < horizon
        is_ready_target = self._target["offset"] < horizon
        source, self._source = self._source[is_ready_source], self._source[~is_ready_source]
        target, self._target = self._target[is_ready_target], self._target[~is_ready_target]
        left = self.pair(source, target)
        self._left_source.append(left.source)
        self._left_target.append(left.target)
        self.left_records += int(left.source["records"].sum() + left.target["records"].sum())

    def pair(self, source: Items, target: Items) -> Leftovers:
        """Count equal items and return the others."""
        paired_source, paired_target = partners(source, target)
        equal = source[paired_source]
        self.batches += int((equal["level"] == Level.BATCH).sum())
        self.records += int(equal["records"].sum())
        self.offsets += int((equal["end"] - equal["offset"]).sum())
        self.digest += digest_of(equal)
        return Leftovers(source[~paired_source], target[~paired_target])

    def count_with(self, other: Matcher) -> None:
        """Add the counts of `other`, which compared the leftovers of this one."""
        self.batches += other.batches
        self.records += other.records
        self.offsets += other.offsets
        self.digest += other.digest

    def take_leftovers(self) -> Leftovers:
        """Return and forget the leftovers since the last call, unless they match each other: rows may be out of order."""
        left = self.pair(joined(self._left_source), joined(self._left_target))
        self._left_source, self._left_target, self.left_records = [], [], 0
        return left


def partners(source: Items, target: Items) -> tuple[Bools, Bools]:
    """Return masks of the items that have the place of the map and the same content. No item has two partners."""
    in_source, in_target = np.zeros(len(source), np.bool_), np.zeros(len(target), np.bool_)
    if not len(source) or not len(target):
        return in_source, in_target
    order = np.argsort(target["offset"], kind="stable")
    offsets = target["offset"][order]
    # A partner behind all offsets would be an index out of range; the comparison below says that it is not there.
    at = np.minimum(np.searchsorted(offsets, source["partner"]), len(target) - 1)
    chosen = order[at]
    is_there = (offsets[at] == source["partner"]) & (source["partner"] != NOWHERE)
    is_same = is_there & same_content(source, target[chosen])
    # Several source items may point at one target item, where rows of the map overlap: the first of them gets it.
    first = np.zeros(len(source), np.bool_)
    candidates = np.flatnonzero(is_same)
    first[candidates[np.unique(chosen[candidates], return_index=True)[1]]] = True
    in_source, in_target[chosen[first]] = first, True
    return in_source, in_target


def moved_pairs(left: Leftovers) -> list[tuple[int, int]]:
    """Return the indices of items with the same content at another offset than the map says, the k-th with the k-th."""
    by_content: dict[tuple[int, bytes], list[int]] = {}
    for i, (level, content) in enumerate(zip(left.target["level"].tolist(), left.target["content"], strict=True)):
        if level != Level.DAMAGED:
            by_content.setdefault((level, content.tobytes()), []).append(i)
    pairs = []
    for i, (level, content) in enumerate(zip(left.source["level"].tolist(), left.source["content"], strict=True)):
        same_content_at = by_content.get((level, content.tobytes()))
        if same_content_at:
            pairs.append((i, same_content_at.pop(0)))
    return pairs


def without(left: Leftovers, source: Iterable[int], target: Iterable[int]) -> Leftovers:
    return Leftovers(np.delete(left.source, list(source)), np.delete(left.target, list(target)))


def overlapping_batches(left: Leftovers) -> tuple[Bools, Bools]:
    """Return masks of the whole batches that overlap an item of the other side: only their records show the difference."""
    source, target = left.source, left.target
    has_partner = source["partner"] != NOWHERE
    starts, ends = source["partner"], source["partner"] + source["end"] - source["offset"]
    of_source = _overlaps(starts, ends, target["offset"], target["end"]) & has_partner
    of_target = _overlaps(target["offset"], target["end"], starts[has_partner], ends[has_partner])
    return of_source & (source["level"] == Level.BATCH), of_target & (target["level"] == Level.BATCH)


def records_beside(left: Leftovers, in_source: Bools, in_target: Bools) -> tuple[Bools, Bools]:
    """Return masks of the single records that overlap one of the chosen batches of the other side.

    A batch that the map, or the end of a comparison, cuts is opened on one side only.
    """
    source, target = left.source, left.target
    starts, ends = source["partner"], source["partner"] + source["end"] - source["offset"]
    of_source = _overlaps(starts, ends, target["offset"][in_target], target["end"][in_target]) & (starts != NOWHERE)
    of_target = _overlaps(target["offset"], target["end"], starts[in_source], ends[in_source])
    return of_source & (source["level"] == Level.RECORD), of_target & (target["level"] == Level.RECORD)


def _overlaps(starts: np.ndarray, ends: np.ndarray, other_starts: np.ndarray, other_ends: np.ndarray) -> Bools:
    """Return for each interval whether any of the others overlaps it: more have begun before its end than ended by its start."""
    begun = np.searchsorted(np.sort(other_starts), ends, "left")
    over = np.searchsorted(np.sort(other_ends), starts, "right")
    return np.asarray(begun > over, np.bool_)
