"""Pure: what it means that something was left over: a difference, or nothing that anybody could still check."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shallow_mirror.types import TopicPartition
from shallow_mirror.verify.differences import Difference, DifferenceKind, merged
from shallow_mirror.verify.fingerprints import NOWHERE, Items, Level, difference_of_records
from shallow_mirror.verify.map_index import KINDS, MapRows
from shallow_mirror.verify.matcher import Leftovers, found_elsewhere, without


class Unchecked(enum.StrEnum):
    """Why nothing can be said of source offsets any more."""

    SOURCE_DELETED = "deleted on the source (retention or DeleteRecords)"
    TARGET_DELETED = "deleted on the target (retention or DeleteRecords)"
    SOURCE_COMPACTED = "removed by compaction on the source"
    TARGET_COMPACTED = "removed by compaction on the target"
    SOURCE_TOPIC_GONE = "the source topic was deleted or created again"
    UNREADABLE = "behind damage that hides where the next batch begins"
    QUARANTINED = "in quarantine, not on the target; the table holds the batches as they were set aside"


@dataclass(frozen=True, slots=True)
class Absence:
    """Source offsets [start, end) of data rows where the source shows no record, and why."""

    start: int
    end: int
    why: str


@dataclass(frozen=True, slots=True)
class SideFacts:
    """`damages`: why the batch at an offset equals nothing. `unreadable`: offsets [start, end) that were skipped behind one."""

    log_start: int
    is_compacted: bool
    damages: Mapping[int, str] = field(default_factory=dict)
    unreadable: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True, slots=True)
class Circumstances:
    """All that is known of a part of a partition besides what was left over."""

    source_place: TopicPartition
    target_place: TopicPartition
    rows: MapRows
    source: SideFacts
    target: SideFacts
    absences: Sequence[Absence] = ()

    def difference(self, kind: DifferenceKind, reason: str, **where: Any) -> Difference:
        return Difference(kind=kind, source=self.source_place, target=self.target_place, reason=reason, **where)


@dataclass(frozen=True, slots=True)
class Judgement:
    """`unchecked` counts source offsets."""

    differences: tuple[Difference, ...]
    unchecked: Counter[Unchecked]


def tell_moved_and_damaged(left: Leftovers, known: Circumstances) -> tuple[Leftovers, list[Difference]]:
    """What needs no opening to be told, and what is left over then."""
    differences: list[Difference] = []
    left = _moved(left, known, differences)
    return _damaged(left, known, differences), differences


def judge(left: Leftovers, known: Circumstances) -> Judgement:
    """Every item that was left over is told once: a moved one is neither missing nor extra."""
    unchecked: Counter[Unchecked] = Counter()
    left, differences = tell_moved_and_damaged(left, known)
    left = _changed(left, known, differences)
    for item in left.source:
        _without_copy(item, known, differences, unchecked)
    for item in left.target:
        _without_original(item, known, differences, unchecked)
    return Judgement(tuple(merged(differences)), unchecked)


def _span(item: Any) -> int:
    return int(item["end"] - item["offset"])


def _source_range(item: Any) -> dict[str, int]:
    return {"source_start": int(item["offset"]), "source_end": int(item["end"]), "record_count": int(item["records"])}


def _target_range(item: Any) -> dict[str, int]:
    return {"target_start": int(item["offset"]), "target_end": int(item["end"]), "record_count": int(item["records"])}


def _copy_range(item: Any) -> dict[str, int]:
    """Where the copy of a source item ought to be."""
    if item["partner"] == NOWHERE:
        return {}
    return {"target_start": int(item["partner"]), "target_end": int(item["partner"]) + _span(item)}


def _original_range(item: Any) -> dict[str, int]:
    """Where a target item ought to come from."""
    if item["partner"] == NOWHERE:
        return {}
    return {"source_start": int(item["partner"]), "source_end": int(item["partner"]) + _span(item)}


def _moved(left: Leftovers, known: Circumstances, differences: list[Difference]) -> Leftovers:
    pairs = found_elsewhere(left)
    for i, j in pairs:
        source, target = left.source[i], left.target[j]
        if source["partner"] == NOWHERE:
            kind, reason = DifferenceKind.NOT_IN_MAP, f"it was copied, but {_says(source, known)}"
        else:
            shift = int(target["offset"] - source["partner"])
            kind, reason = DifferenceKind.REORDERED, f"the copy lies {shift:+d} offsets from where the map says"
        differences.append(known.difference(kind, reason, **(_target_range(target) | _source_range(source))))
    return without(left, [i for i, _ in pairs], [j for _, j in pairs])


def _says(item: Any, known: Circumstances) -> str:
    """What the map says of a source item that it names no copy of."""
    if item["row"] == NOWHERE:
        return "no row of the map holds it"
    return f"the map says {KINDS[known.rows.kind[item['row']]].value}"


def _damaged(left: Leftovers, known: Circumstances, differences: list[Difference]) -> Leftovers:
    """Damage is told with its reason; what it overlaps on the other side is not told again."""
    gone_source: set[int] = set()
    gone_target: set[int] = set()
    for i in np.flatnonzero(left.source["level"] == Level.DAMAGED).tolist():
        item = left.source[i]
        where = _source_range(item) | _copy_range(item)
        reason = f"damaged on the source: {known.source.damages.get(int(item['offset']), 'unreadable')}"
        differences.append(known.difference(DifferenceKind.CHANGED, reason, **where))
        gone_source.add(i)
        if "target_start" in where:
            hidden = (left.target["offset"] < where["target_end"]) & (left.target["end"] > where["target_start"])
            gone_target.update(np.flatnonzero(hidden & (left.target["level"] != Level.DAMAGED)).tolist())
    for j in np.flatnonzero(left.target["level"] == Level.DAMAGED).tolist():
        item = left.target[j]
        reason = f"damaged on the target: {known.target.damages.get(int(item['offset']), 'unreadable')}"
        differences.append(known.difference(DifferenceKind.CHANGED, reason, **(_original_range(item) | _target_range(item))))
        gone_target.add(j)
        copies_end = left.source["partner"] + left.source["end"] - left.source["offset"]
        hidden = (left.source["partner"] < item["end"]) & (copies_end > item["offset"]) & (left.source["partner"] != NOWHERE)
        gone_source.update(np.flatnonzero(hidden).tolist())
    return without(left, gone_source, gone_target)


def _changed(left: Leftovers, known: Circumstances, differences: list[Difference]) -> Leftovers:
    """Another record stands where the copy ought to be; batches that overlap were opened before."""
    by_offset = {int(offset): j for j, offset in enumerate(left.target["offset"].tolist())}
    pairs = []
    for i, partner in enumerate(left.source["partner"].tolist()):
        j = by_offset.pop(partner, None) if partner != NOWHERE else None
        if j is None:
            continue
        source, target = left.source[i], left.target[j]
        reason = difference_of_records(source["content"], target["content"])
        differences.append(known.difference(DifferenceKind.CHANGED, reason, **(_target_range(target) | _source_range(source))))
        pairs.append((i, j))
    return without(left, [i for i, _ in pairs], [j for _, j in pairs])


def _without_copy(item: Any, known: Circumstances, differences: list[Difference], unchecked: Counter[Unchecked]) -> None:
    if item["partner"] == NOWHERE:
        kind = DifferenceKind.NOT_IN_MAP if item["row"] == NOWHERE else DifferenceKind.MISSING
        reason = f"readers of the source see it, but {_says(item, known)}"
        differences.append(known.difference(kind, reason, **_source_range(item)))
        return
    where = _copy_range(item)
    if where["target_end"] <= known.target.log_start:
        return  # counted by the rows
    if _is_within(where["target_start"], known.target.unreadable):
        unchecked[Unchecked.UNREADABLE] += _span(item)
    elif known.target.is_compacted:
        unchecked[Unchecked.TARGET_COMPACTED] += _span(item)
    else:
        reason = "the target shows no record there"
        differences.append(known.difference(DifferenceKind.MISSING, reason, **(_source_range(item) | where)))


def _without_original(item: Any, known: Circumstances, differences: list[Difference], unchecked: Counter[Unchecked]) -> None:
    if item["row"] == NOWHERE:
        reason = "readers of the target see it, but no row of the map names it: another writer, or a second copy"
        differences.append(known.difference(DifferenceKind.NOT_IN_MAP, reason, **_target_range(item)))
        return
    where = _original_range(item)
    if where["source_start"] < known.source.log_start:
        return  # counted by the rows
    if _is_within(where["source_start"], known.source.unreadable):
        unchecked[Unchecked.UNREADABLE] += _span(item)
    elif known.source.is_compacted:
        unchecked[Unchecked.SOURCE_COMPACTED] += _span(item)
    else:
        why = next((one.why for one in known.absences if one.start <= where["source_start"] < one.end), "nothing there")
        reason = f"readers of the target see it, the source shows no record: {why}"
        differences.append(known.difference(DifferenceKind.EXTRA, reason, **(where | _target_range(item))))


def held_by_neither(shown: Items, known: Circumstances) -> list[Difference]:
    """Copies that the map names where neither side shows a record. `shown`: what the target shows without an original."""
    if known.target.is_compacted:
        return []
    differences = []
    for one in known.absences:
        for row in known.rows.rows_between(one.start, one.end):
            shift = int(known.rows.shift[row])
            start, end = max(one.start, int(known.rows.start[row])), min(one.end, int(known.rows.end[row]))
            at = max(start, known.source.log_start, known.target.log_start - shift)
            of_row = np.sort(shown[(shown["row"] == row) & (shown["partner"] < end)], order="partner")
            held = [(int(item["partner"]), int(item["partner"]) + _span(item)) for item in of_row]
            for held_start, held_end in [*held, (end, end)]:
                if at < held_start:
                    differences.append(_neither(known, at, held_start, shift, one.why))
                at = max(at, held_end)
    return differences


def _neither(known: Circumstances, start: int, end: int, shift: int, why: str) -> Difference:
    return known.difference(
        DifferenceKind.MISSING,
        f"the map names a copy, but neither side shows a record there; on the source: {why}",
        source_start=start,
        source_end=end,
        target_start=start + shift,
        target_end=end + shift,
    )


def _is_within(offset: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(start <= offset < end for start, end in ranges)
