"""Pure: which objects of a store were decided, where the table that said so is lost.

Footers say where a decision began in every partition, and how far it went. A decision begins where the committed ones before it
end. So an object that goes beyond the begin of a later decision was never committed, whoever wrote that one. What no later object
contradicts counts as committed: its batches are those of the source at these offsets. All of that holds for each lineage of a
partition on its own; a lineage begins where the source's log was truncated, inside of the one before it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from shallow_mirror.archive_format.archived_batches import ArchivedSegment
from shallow_mirror.archive_format.object_names import ObjectName
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
    """What of a footer the choice needs, in 32 bytes for each row."""

    name: ObjectName
    last_modified_ms: int
    _rows: array[int]

    @classmethod
    def of(
        cls, name: ObjectName, last_modified_ms: int, rows: Sequence[ArchivedSegment], partitions: Partitions
    ) -> FooterSummary:
        summary = array("q")
        for row in rows:
            segment, checksum = row.segment, -1 if row.stored is None else row.stored.crc32c
            number = partitions.number_of(segment.source, segment.lineage)
            summary.extend((number, segment.source_start, segment.source_end, checksum))
        return cls(name, last_modified_ms, summary)

    def rows(self) -> Iterator[tuple[int, int, int, int]]:
        """Yield (number of the partition, start, end, checksum); -1 for a row without batches."""
        for at in range(0, len(self._rows), _FIELDS):
            partition, start, end, checksum = self._rows[at : at + _FIELDS]
            yield partition, start, end, checksum

    @property
    def row_count(self) -> int:
        return len(self._rows) // _FIELDS


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

    def names(self) -> tuple[str, ...]:
        return tuple(str(summary.name) for summary in self.objects)


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets that no object has, in front of a row of `before`."""

    partition: PartitionLineage
    start: int
    end: int
    before: str

    def sentence(self) -> str:
        offsets = f"offsets {self.start} to {self.end - 1} of {self.partition}"
        return f"{offsets} are in no object, before {self.before}"


@dataclass(slots=True)
class Choice:
    """`decisions`: chosen objects by version, rising. `ambiguous`: objects of which one was committed, and nothing says which."""

    decisions: list[tuple[FooterSummary, ...]] = field(default_factory=list)
    uncommitted: list[str] = field(default_factory=list)
    ambiguous: list[tuple[str, ...]] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)
    overlaps: list[str] = field(default_factory=list)

    @property
    def row_count(self) -> int:
        """Return the number of rows, without those of holes."""
        return sum(summary.row_count for decision in self.decisions for summary in decision)


def choose(footers: Iterable[FooterSummary], partitions: Partitions) -> Choice:
    """Choose the objects whose rows the table had.

    1. A try of a slot that goes beyond the begin of a later decision in one of its partitions was not committed.
    2. Where that holds for all tries of a slot, the whole decision was not committed, unless a later decision begins exactly
       where another slot of it ends.
    3. Of several tries that are left, those count after which later decisions go on exactly.
    4. Of several tries with the same ranges and the same checksums either is right. Others are ambiguous.
    """
    choice = Choice()
    # Of each partition: the lowest begin of all decisions that are later than the one in the loop.
    begins: dict[int, int] = {}
    ordered = sorted(footers, key=lambda summary: str(summary.name))
    ordered.sort(key=lambda summary: summary.name.version, reverse=True)
    for _, of_version in groupby(ordered, key=lambda summary: summary.name.version):
        slots = _tries_by_slot(of_version)
        _choose_of_decision(slots, begins, choice)
        for attempt in (attempt for tries in slots.values() for attempt in tries):
            for partition, (start, _) in attempt.spans().items():
                begins[partition] = min(start, begins.get(partition, start))
    choice.decisions.reverse()
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


def _choose_of_decision(slots: Mapping[int, Sequence[_Try]], begins: Mapping[int, int], choice: Choice) -> None:
    left = {slot: [attempt for attempt in tries if not _is_beyond(attempt, begins)] for slot, tries in slots.items()}
    is_proven = any(_is_continued(attempt, begins) for tries in left.values() for attempt in tries)
    is_contradicted = any(not tries for tries in left.values())
    if is_contradicted and not is_proven:
        left = {slot: [] for slot in slots}
    chosen: list[FooterSummary] = []
    for slot, tries in left.items():
        candidates = [attempt for attempt in tries if _is_continued(attempt, begins, everywhere=True)] or tries
        if len(candidates) > 1 and any(attempt.content() != candidates[0].content() for attempt in candidates[1:]):
            choice.ambiguous.append(tuple(name for attempt in candidates for name in attempt.names()))
        kept = candidates[:1]
        chosen += [summary for attempt in kept for summary in attempt.objects]
        choice.uncommitted += [name for attempt in slots[slot] if attempt not in kept for name in attempt.names()]
    if chosen:
        choice.decisions.append(tuple(chosen))


def _is_beyond(attempt: _Try, begins: Mapping[int, int]) -> bool:
    return any(end > begins.get(partition, end) for partition, (_, end) in attempt.spans().items())


def _is_continued(attempt: _Try, begins: Mapping[int, int], *, everywhere: bool = False) -> bool:
    """Return whether a later decision begins exactly where this try ends, in some or in all partitions that have a later one."""
    continues = [
        end == begins[partition] for partition, (start, end) in attempt.spans().items() if partition in begins and start < end
    ]
    return bool(continues) and (all(continues) if everywhere else any(continues))


def _find_holes(choice: Choice, partitions: Partitions) -> None:
    ends: dict[int, int] = {}
    newest: dict[SourcePartition, int] = {}
    """Ends of the newest lineages so far: the next one begins at or below it."""
    for decision in choice.decisions:
        rows = sorted((row, str(summary.name)) for summary in decision for row in summary.rows())
        for (partition, start, end, _), name in rows:
            of_lineage = partitions[partition]
            before = ends.get(partition, min(start, newest.get(of_lineage.source, start)))
            if start > before:
                choice.holes.append(Hole(of_lineage, before, start, name))
            elif start < before:
                choice.overlaps.append(f"{name}: offsets {start} to {before - 1} of {of_lineage}")
            ends[partition] = newest[of_lineage.source] = max(before, end)
