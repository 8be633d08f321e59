"""Pure: which objects of a store were decided, where the table that said so is lost.

Copies of rows prove what was committed: rows without an object, and those of objects that have expired. Of the other objects only
footers say where a decision began in every partition, and how far it went. A decision begins where the committed ones before it
end. So an object that goes beyond the begin of a later decision was never committed, whoever wrote that one. What nothing
contradicts counts as committed: its batches are those of the source at these offsets. All of that holds for each lineage of a
partition on its own; a lineage begins where the source's log was truncated, inside of the one before it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

from shallow_mirror.archive_format import ArchivedSegment, ObjectName
from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.types import SourcePartition

_FIELDS = 4


class PartitionLineage(NamedTuple):
    source: SourcePartition
    lineage: int

    def __str__(self) -> str:
        return f"{self.source.topic_partition}{f' in lineage {self.lineage}' if self.lineage else ''}"


class Partitions:
    """Small numbers for partitions in their lineages, which many footers name."""

    def __init__(self) -> None:
        self._numbers: dict[PartitionLineage, int] = {}
        self._partitions: list[PartitionLineage] = []

    def number_of(self, source: SourcePartition, lineage: int) -> int:
        partition = PartitionLineage(source, lineage)
        number = self._numbers.setdefault(partition, len(self._partitions))
        if number == len(self._partitions):
            self._partitions.append(partition)
        return number

    def __getitem__(self, number: int) -> PartitionLineage:
        return self._partitions[number]


@dataclass(frozen=True, slots=True)
class FooterSummary:
    """The part of a footer that the choice needs, in 32 bytes for each row.

    `is_proven`: there are copies of its rows, so that it was committed, and has expired. It may be gone from the store.
    """

    name: ObjectName
    last_modified_ms: int
    _rows: array[int]
    is_proven: bool = False

    @classmethod
    def of(
        cls,
        name: ObjectName,
        last_modified_ms: int,
        rows: Sequence[ArchivedSegment | DecidedSegment],
        partitions: Partitions,
        *,
        is_proven: bool = False,
    ) -> FooterSummary:
        return cls(name, last_modified_ms, _summary(rows, partitions), is_proven)

    def rows(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield (number of the partition, start, end, checksum); -1 for a row without batches."""
        return _rows_of(self._rows)

    @property
    def row_count(self) -> int:
        return len(self._rows) // _FIELDS


@dataclass(frozen=True, slots=True)
class CopiedDecision:
    """The rows of one decision that name no object, by their copies. The numbers are those of the lost table."""

    run_epoch: int
    micro_batch: int
    decided_at_ms: int
    segments: tuple[DecidedSegment, ...]

    def rows(self, partitions: Partitions) -> list[tuple[int, int, int]]:
        """Return (number of the partition, start, end)."""
        return [(partition, start, end) for partition, start, end, _ in _rows_of(_summary(self.segments, partitions))]


def _summary(rows: Sequence[ArchivedSegment | DecidedSegment], partitions: Partitions) -> array[int]:
    summary = array("q")
    for row in rows:
        segment, checksum = row.segment, -1 if row.stored is None else row.stored.crc32c
        number = partitions.number_of(segment.source, segment.lineage)
        summary.extend((number, segment.source_start, segment.source_end, checksum))
    return summary


def _rows_of(summary: array[int]) -> Iterator[tuple[int, int, int, int]]:
    for at in range(0, len(summary), _FIELDS):
        partition, start, end, checksum = summary[at : at + _FIELDS]
        yield partition, start, end, checksum


@dataclass(frozen=True, slots=True)
class _Try:
    """The objects that one try of a slot wrote: one for each retention class."""

    objects: tuple[FooterSummary, ...]

    def spans(self) -> dict[int, tuple[int, int]]:
        """Return begin and end in each partition."""
        spans: dict[int, tuple[int, int]] = {}
        for summary in self.objects:
            for partition, start, end, _ in summary.rows():
                first, last = spans.get(partition, (start, end))
                spans[partition] = min(first, start), max(last, end)
        return spans

    def content(self) -> list[tuple[int, int, int, int]]:
        return sorted(row for summary in self.objects for row in summary.rows())

    @property
    def is_proven(self) -> bool:
        """Return whether one of its objects is: one decision commits all of them."""
        return any(summary.is_proven for summary in self.objects)

    def names(self) -> tuple[str, ...]:
        return tuple(str(summary.name) for summary in self.objects)


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets that no object has, in front of a row of `before`, or of a copied row if that is empty."""

    partition: PartitionLineage
    start: int
    end: int
    before: str

    def sentence(self) -> str:
        offsets = f"offsets {self.start} to {self.end - 1} of {self.partition}"
        return f"{offsets} are in no object, before {self.before or 'a copied row'}"


@dataclass(slots=True)
class Choice:
    """Objects and rows for the rebuilt table."""

    decisions: list[tuple[FooterSummary, ...]] = field(default_factory=list)
    """Chosen objects by version, rising."""
    copied: list[tuple[int, CopiedDecision]] = field(default_factory=list)
    """Rows without an object, each with the number of decisions in front of it, rising."""
    uncommitted: list[str] = field(default_factory=list)
    unproven: list[str] = field(default_factory=list)
    """Objects that count as committed although another one of their decision was not: only without copies of rows."""
    ambiguous: list[tuple[str, ...]] = field(default_factory=list)
    """Objects of which one was committed, and nothing says which."""
    holes: list[Hole] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)

    @property
    def row_count(self) -> int:
        """Return the number of rows, without those of holes."""
        return sum(summary.row_count for decision in self.decisions for summary in decision) + sum(
            len(decision.segments) for _, decision in self.copied
        )

    def in_order(self) -> Iterator[tuple[FooterSummary, ...] | CopiedDecision]:
        """Yield all decisions."""
        copied = iter([*self.copied, (len(self.decisions), None)])
        before, following = next(copied)
        for number in range(len(self.decisions) + 1):
            while following is not None and before == number:
                yield following
                before, following = next(copied)
            if number < len(self.decisions):
                yield self.decisions[number]


class _Proven:
    """The rows of copies, by partition: no other committed row overlaps them."""

    def __init__(self, rows: Iterable[tuple[int, int, int]]) -> None:
        self._starts: dict[int, list[int]] = {}
        self._ends: dict[int, list[int]] = {}
        """Of each start: the highest end of the rows up to it."""
        for partition, start, end in sorted(rows):
            ends = self._ends.setdefault(partition, [])
            self._starts.setdefault(partition, []).append(start)
            ends.append(max([end, *ends[-1:]]))

    def overlaps(self, partition: int, start: int, end: int) -> bool:
        at = bisect_left(self._starts.get(partition, []), end)
        return at > 0 and self._ends[partition][at - 1] > start

    def next_begin(self, partition: int, start: int) -> int | None:
        """Return the begin of the first row behind a start."""
        starts = self._starts.get(partition, [])
        at = bisect_left(starts, start + 1)
        return starts[at] if at < len(starts) else None


def choose(
    footers: Iterable[FooterSummary], partitions: Partitions, copied: Sequence[CopiedDecision] = (), *, has_copies: bool = True
) -> Choice:
    """Choose the objects whose rows the table had.

    0. A try of a slot of which an object is proven was committed, and with it the decision. A try that overlaps proven rows of
       others was not.
    1. A try of a slot that goes beyond the begin of a later decision in one of its partitions was not committed.
    2. If that holds for all tries of a slot, the whole decision was not committed, unless it is proven, or a later decision
       begins exactly at the end of another slot of it. Without copies (`has_copies`) the committed object of the slot may have
       expired: the other tries of the decision count, and are named.
    3. Of several tries that are left, those count after which later decisions go on exactly.
    4. Of several tries with the same ranges and the same checksums either is right. Others are ambiguous.
    """
    choice = Choice()
    ordered = sorted(footers, key=lambda summary: str(summary.name))
    ordered.sort(key=lambda summary: summary.name.version, reverse=True)
    without_object = {row for decision in copied for row in decision.rows(partitions)}
    with_object = ((row[0], row[1], row[2]) for summary in ordered if summary.is_proven for row in summary.rows())
    rules = _Rules(proven=_Proven([*without_object, *with_object]), without_object=without_object, has_copies=has_copies)
    for _, of_version in groupby(ordered, key=lambda summary: summary.name.version):
        slots = _tries_by_slot(of_version)
        rules.choose_of_decision(slots, choice)
        rules.add_begins(attempt for tries in slots.values() for attempt in tries)
    choice.decisions.reverse()
    _place(copied, choice, partitions)
    _find_holes(choice, partitions)
    return choice


def _tries_by_slot(summaries: Iterable[FooterSummary]) -> dict[int, list[_Try]]:
    tries: dict[tuple[int, str], list[FooterSummary]] = {}
    for summary in summaries:
        tries.setdefault((summary.name.slot, summary.name.try_id), []).append(summary)
    slots: dict[int, list[_Try]] = {}
    for (slot, _), objects in tries.items():
        slots.setdefault(slot, []).append(_Try(tuple(objects)))
    return slots


class _Rules:
    """Decisions are given from the last to the first."""

    def __init__(self, *, proven: _Proven, without_object: Set[tuple[int, int, int]], has_copies: bool) -> None:
        self._proven, self._without_object, self._has_copies = proven, without_object, has_copies
        self._begins: dict[int, int] = {}
        """Of each partition: the lowest begin of all decisions that are later."""

    def add_begins(self, tries: Iterable[_Try]) -> None:
        for attempt in tries:
            for partition, (start, _) in attempt.spans().items():
                self._begins[partition] = min(start, self._begins.get(partition, start))

    def choose_of_decision(self, slots: Mapping[int, Sequence[_Try]], choice: Choice) -> None:
        left: dict[int, Sequence[_Try]] = {}
        for slot, tries in slots.items():
            proven = [attempt for attempt in tries if attempt.is_proven]
            left[slot] = proven[:1] or [attempt for attempt in tries if not self._is_contradicted(attempt)]
        is_proven = any(
            attempt.is_proven or self._is_continued(attempt, everywhere=False) for tries in left.values() for attempt in tries
        )
        is_uncommitted = any(not tries for tries in left.values()) and not is_proven
        if is_uncommitted and self._has_copies:
            left = {slot: [] for slot in slots}
        chosen: list[FooterSummary] = []
        for slot, tries in left.items():
            candidates = [attempt for attempt in tries if self._is_continued(attempt, everywhere=True)] or tries
            if len(candidates) > 1 and any(attempt.content() != candidates[0].content() for attempt in candidates[1:]):
                choice.ambiguous.append(tuple(name for attempt in candidates for name in attempt.names()))
            kept = candidates[:1]
            chosen += [summary for attempt in kept for summary in attempt.objects]
            choice.uncommitted += [name for attempt in slots[slot] if attempt not in kept for name in attempt.names()]
            if is_uncommitted:
                choice.unproven += [name for attempt in kept for name in attempt.names()]
        if chosen:
            choice.decisions.append(tuple(chosen))

    def _is_contradicted(self, attempt: _Try) -> bool:
        if any(end > self._begins.get(partition, end) for partition, (_, end) in attempt.spans().items()):
            return True
        return any(
            self._proven.overlaps(partition, start, end)
            for summary in attempt.objects
            for partition, start, end, checksum in summary.rows()
            # A footer repeats rows without batches of its task, which have copies too.
            if not (checksum == -1 and (partition, start, end) in self._without_object)
        )

    def _is_continued(self, attempt: _Try, *, everywhere: bool) -> bool:
        """Return whether a later decision begins exactly at the end of this try, in some or all partitions with a later one."""
        continues = []
        for partition, (start, end) in attempt.spans().items():
            later = [self._begins.get(partition), self._proven.next_begin(partition, start)]
            following = min((begin for begin in later if begin is not None), default=None)
            if following is not None and start < end:
                continues.append(end == following)
        return bool(continues) and (all(continues) if everywhere else any(continues))


def _place(copied: Sequence[CopiedDecision], choice: Choice, partitions: Partitions) -> None:
    """Put rows without an object behind the decisions that have the offsets in front of them, in the order of the lost table.

    Rows that a chosen footer repeats are left out.
    """
    repeated = set[tuple[int, int, int]]()
    ends: dict[SourcePartition, list[tuple[int, int, int]]] = {}
    """Of each partition: (lineage, end, number of decisions up to the row), rising."""
    for number, decision in enumerate(choice.decisions, 1):
        for summary in decision:
            for partition, start, end, checksum in summary.rows():
                if checksum == -1:
                    repeated.add((partition, start, end))
                source, lineage = partitions[partition]
                ends.setdefault(source, []).append((lineage, end, number))
    for rows in ends.values():
        rows.sort()
    before = 0
    for of_decision in sorted(copied, key=lambda entry: (entry.run_epoch, entry.micro_batch)):
        kept = [
            segment
            for segment, row in zip(of_decision.segments, of_decision.rows(partitions), strict=True)
            if row not in repeated
        ]
        for row in kept:
            segment = row.segment
            rows = ends.get(segment.source, [])
            at = bisect_left(rows, (segment.lineage, segment.source_start, len(choice.decisions) + 1))
            before = max([before, *(number for _, _, number in rows[at - 1 : at])])
        if kept:
            choice.copied.append((before, replace(of_decision, segments=tuple(kept))))


def _find_holes(choice: Choice, partitions: Partitions) -> None:
    ends: dict[int, int] = {}
    newest: dict[SourcePartition, int] = {}
    """Ends of the newest lineages so far: the next one begins at or below it."""
    for decision in choice.in_order():
        if isinstance(decision, CopiedDecision):
            rows = sorted((row, "") for row in decision.rows(partitions))
        else:
            rows = sorted((row[:3], str(summary.name)) for summary in decision for row in summary.rows())
        for (partition, start, end), name in rows:
            of_lineage = partitions[partition]
            before = ends.get(partition, min(start, newest.get(of_lineage.source, start)))
            if start > before:
                choice.holes.append(Hole(of_lineage, before, start, name))
            elif start < before:
                choice.overlaps.append(f"{name or 'a copied row'}: offsets {start} to {before - 1} of {of_lineage}")
            ends[partition] = newest[of_lineage.source] = max(before, end)
