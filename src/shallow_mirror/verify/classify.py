"""Pure: classify what was left over: as a difference, or as what cannot be checked any more."""

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
from shallow_mirror.verify.matcher import Leftovers, moved_pairs, without


class Unchecked(enum.StrEnum):
    """Why source offsets cannot be checked any more."""

    SOURCE_DELETED = "deleted on the source (retention or DeleteRecords)"
    TARGET_DELETED = "deleted on the target (retention or DeleteRecords)"
    SOURCE_COMPACTED = "removed by compaction on the source"
    TARGET_COMPACTED = "removed by compaction on the target"
    SOURCE_TOPIC_GONE = "the source topic was deleted or created again"
    UNREADABLE = "behind damage that hides where the next batch begins"
    QUARANTINED = "in quarantine, not on the target; the table holds the batches as they were quarantined"


@dataclass(frozen=True, slots=True)
class Absence:
    """Source offsets [start, end) of data rows at which the source shows no record, with the reason."""

    start: int
    end: int
    why: str


@dataclass(frozen=True, slots=True)
class SideFacts:
    """`damages`: why the batch at an offset equals nothing. `unreadable`: offsets [start, end) that were skipped behind one."""

    log_start: int
    log_end: int
    is_compacted: bool
    damages: Mapping[int, str] = field(default_factory=dict)
    unreadable: Sequence[tuple[int, int]] = ()

    def may_be_compacted(self, offset: int) -> bool:
        """Return whether compaction may have removed a record. It never moves the end of a log: what is behind that is lost."""
        return self.is_compacted and offset < self.log_end


@dataclass(frozen=True, slots=True)
class VerifyContext:
    """Hold all that is known of a range of a partition besides its unmatched items."""

    source_partition: TopicPartition
    target_partition: TopicPartition
    rows: MapRows
    source: SideFacts
    target: SideFacts
    absences: Sequence[Absence] = ()

    def difference(self, kind: DifferenceKind, reason: str, **where: Any) -> Difference:
        return Difference(kind=kind, source=self.source_partition, target=self.target_partition, reason=reason, **where)


@dataclass(frozen=True, slots=True)
class Classification:
    """`unchecked` counts source offsets."""

    differences: tuple[Difference, ...]
    unchecked: Counter[Unchecked]


_OTHER_BYTES = "the bytes of the batch differ; its records cannot be opened: their offsets do not rise"


def classify_moved_and_damaged(left: Leftovers, context: VerifyContext) -> tuple[Leftovers, list[Difference]]:
    """Report the differences that need no opening of batches, and return the other unmatched items."""
    differences: list[Difference] = []
    left = _moved(left, context, differences)
    return _damaged(left, context, differences), differences


def classify_leftovers(left: Leftovers, context: VerifyContext) -> Classification:
    """Report every item that was left over once: a moved one is neither missing nor extra."""
    unchecked: Counter[Unchecked] = Counter()
    left, differences = classify_moved_and_damaged(left, context)
    left = _changed(left, context, differences)
    for item in left.source:
        _without_copy(item, context, differences, unchecked)
    for item in left.target:
        _without_original(item, context, differences, unchecked)
    return Classification(tuple(merged(differences)), unchecked)


def _span(item: Any) -> int:
    return int(item["end"] - item["offset"])


def _source_range(item: Any) -> dict[str, int]:
    return {"source_start": int(item["offset"]), "source_end": int(item["end"]), "record_count": int(item["records"])}


def _target_range(item: Any) -> dict[str, int]:
    return {"target_start": int(item["offset"]), "target_end": int(item["end"]), "record_count": int(item["records"])}


def _copy_range(item: Any) -> dict[str, int]:
    """Return the target range that the copy of a source item should have."""
    if item["partner"] == NOWHERE:
        return {}
    return {"target_start": int(item["partner"]), "target_end": int(item["partner"]) + _span(item)}


def _original_range(item: Any) -> dict[str, int]:
    """Return the source range that a target item should come from."""
    if item["partner"] == NOWHERE:
        return {}
    return {"source_start": int(item["partner"]), "source_end": int(item["partner"]) + _span(item)}


def _moved(left: Leftovers, context: VerifyContext, differences: list[Difference]) -> Leftovers:
    pairs = moved_pairs(left)
    for i, j in pairs:
        source, target = left.source[i], left.target[j]
        if source["partner"] == NOWHERE:
            kind, reason = DifferenceKind.NOT_IN_MAP, f"it was copied, but {_map_statement(source, context)}"
        else:
            shift = int(target["offset"] - source["partner"])
            kind, reason = DifferenceKind.REORDERED, f"the copy lies {shift:+d} offsets from where the map says"
        differences.append(context.difference(kind, reason, **(_target_range(target) | _source_range(source))))
    return without(left, [i for i, _ in pairs], [j for _, j in pairs])


def _map_statement(item: Any, context: VerifyContext) -> str:
    """Return the statement of the map on a source item without a copy in it."""
    if item["row"] == NOWHERE:
        return "no row of the map holds it"
    return f"the map says {KINDS[context.rows.kind[item['row']]].value}"


def _damaged(left: Leftovers, context: VerifyContext, differences: list[Difference]) -> Leftovers:
    """Report damage with its reason; overlapping items of the other side are not reported again."""
    gone_source: set[int] = set()
    gone_target: set[int] = set()
    for i in np.flatnonzero(left.source["level"] == Level.DAMAGED).tolist():
        item = left.source[i]
        where = _source_range(item) | _copy_range(item)
        reason = f"damaged on the source: {context.source.damages.get(int(item['offset']), 'unreadable')}"
        differences.append(context.difference(DifferenceKind.CHANGED, reason, **where))
        gone_source.add(i)
        if "target_start" in where:
            hidden = (left.target["offset"] < where["target_end"]) & (left.target["end"] > where["target_start"])
            gone_target.update(np.flatnonzero(hidden & (left.target["level"] != Level.DAMAGED)).tolist())
    for j in np.flatnonzero(left.target["level"] == Level.DAMAGED).tolist():
        item = left.target[j]
        reason = f"damaged on the target: {context.target.damages.get(int(item['offset']), 'unreadable')}"
        differences.append(context.difference(DifferenceKind.CHANGED, reason, **(_original_range(item) | _target_range(item))))
        gone_target.add(j)
        copies_end = left.source["partner"] + left.source["end"] - left.source["offset"]
        hidden = (left.source["partner"] < item["end"]) & (copies_end > item["offset"]) & (left.source["partner"] != NOWHERE)
        gone_source.update(np.flatnonzero(hidden).tolist())
    return without(left, gone_source, gone_target)


def _changed(left: Leftovers, context: VerifyContext, differences: list[Difference]) -> Leftovers:
    """Report another record in the place of the copy; overlapping batches were opened before."""
    by_offset = {int(offset): j for j, offset in enumerate(left.target["offset"].tolist())}
    pairs = []
    for i, partner in enumerate(left.source["partner"].tolist()):
        j = by_offset.pop(partner, None) if partner != NOWHERE else None
        if j is None:
            continue
        source, target = left.source[i], left.target[j]
        is_unopened = Level.UNOPENED in (source["level"], target["level"])
        reason = _OTHER_BYTES if is_unopened else difference_of_records(source["content"], target["content"])
        differences.append(context.difference(DifferenceKind.CHANGED, reason, **(_target_range(target) | _source_range(source))))
        pairs.append((i, j))
    return without(left, [i for i, _ in pairs], [j for _, j in pairs])


def _without_copy(item: Any, context: VerifyContext, differences: list[Difference], unchecked: Counter[Unchecked]) -> None:
    if item["partner"] == NOWHERE:
        kind = DifferenceKind.NOT_IN_MAP if item["row"] == NOWHERE else DifferenceKind.MISSING
        reason = f"readers of the source see it, but {_map_statement(item, context)}"
        differences.append(context.difference(kind, reason, **_source_range(item)))
        return
    where = _copy_range(item)
    if where["target_end"] <= context.target.log_start:
        return  # counted by the rows
    if _is_within(where["target_start"], context.target.unreadable):
        unchecked[Unchecked.UNREADABLE] += _span(item)
    elif context.target.may_be_compacted(where["target_start"]):
        unchecked[Unchecked.TARGET_COMPACTED] += _span(item)
    else:
        reason = "the target shows no record there"
        differences.append(context.difference(DifferenceKind.MISSING, reason, **(_source_range(item) | where)))


def _without_original(item: Any, context: VerifyContext, differences: list[Difference], unchecked: Counter[Unchecked]) -> None:
    if item["row"] == NOWHERE:
        reason = "readers of the target see it, but no row of the map names it: another writer, or a second copy"
        differences.append(context.difference(DifferenceKind.NOT_IN_MAP, reason, **_target_range(item)))
        return
    where = _original_range(item)
    if where["source_start"] < context.source.log_start:
        return  # counted by the rows
    if _is_within(where["source_start"], context.source.unreadable):
        unchecked[Unchecked.UNREADABLE] += _span(item)
    elif context.source.may_be_compacted(where["source_start"]):
        unchecked[Unchecked.SOURCE_COMPACTED] += _span(item)
    else:
        why = next(
            (absence.why for absence in context.absences if absence.start <= where["source_start"] < absence.end), "nothing there"
        )
        reason = f"readers of the target see it, the source shows no record: {why}"
        differences.append(context.difference(DifferenceKind.EXTRA, reason, **(where | _target_range(item))))


def missing_on_both_sides(shown: Items, context: VerifyContext) -> list[Difference]:
    """Report copies that the map names although neither side shows a record. `shown`: items of the target without an original."""
    if context.target.is_compacted:
        return []
    differences = []
    for absence in context.absences:
        for row in context.rows.rows_between(absence.start, absence.end):
            shift = int(context.rows.shift[row])
            start, end = max(absence.start, int(context.rows.start[row])), min(absence.end, int(context.rows.end[row]))
            at = max(start, context.source.log_start, context.target.log_start - shift)
            of_row = np.sort(shown[(shown["row"] == row) & (shown["partner"] < end)], order="partner")
            shown_ranges = [(int(item["partner"]), int(item["partner"]) + _span(item)) for item in of_row]
            for shown_start, shown_end in [*shown_ranges, (end, end)]:
                if at < shown_start:
                    differences.append(_neither(context, at, shown_start, shift, absence.why))
                at = max(at, shown_end)
    return differences


def _neither(context: VerifyContext, start: int, end: int, shift: int, why: str) -> Difference:
    return context.difference(
        DifferenceKind.MISSING,
        f"the map names a copy, but neither side shows a record there; on the source: {why}",
        source_start=start,
        source_end=end,
        target_start=start + shift,
        target_end=end + shift,
    )


def _is_within(offset: int, ranges: Sequence[tuple[int, int]]) -> bool:
    return any(start <= offset < end for start, end in ranges)
