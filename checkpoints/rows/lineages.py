"""Pure: lineages: which rows of an archive make up the log of a partition as it is now, or as it was before a truncation.

A log that is truncated below the archive's position (an unclean leader election, a lost disk) begins the next lineage at the
offset where it diverges. Rows of one lineage have no hole and no overlap, and nothing is overwritten: what the former lineage
has from that offset on stays. So the log of a lineage is: its own rows, and below its start those of the former ones, each up
to the lowest start of the later ones. Only this file knows that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from shallow_mirror.archive_format import AbortedTxn
from shallow_mirror.checkpoints.rows.archive_schema import ArchiveRow
from shallow_mirror.checkpoints.rows.schema import DecidedSegment
from shallow_mirror.types import SourcePartition

NO_END = (1 << 63) - 1


class TxnKey(NamedTuple):
    """An aborted transaction of one partition."""

    producer_id: int
    first_offset: int


@dataclass(frozen=True, slots=True)
class LineageView:
    """The log of one partition in one lineage."""

    lineage: int
    ends: Mapping[int, int]
    """Of each lineage that has a part in it, the offset from which on its rows have none."""
    marker_lost: Mapping[int, frozenset[TxnKey]] = field(default_factory=dict)
    """Of former lineages, aborted transactions whose marker was lost with the end of that log."""
    aborted_later: Mapping[int, frozenset[TxnKey]] = field(default_factory=dict)
    """Of former lineages, transactions whose marker was lost with the end of that log, and which a later one aborted."""

    def part_of(self, lineage: int, start: int, end: int) -> tuple[int, int] | None:
        """Return the part of [start, end) of a lineage that belongs to this log; None if none does."""
        bound = self.ends.get(lineage)
        if bound is None or start > bound or start == bound < end:
            return None
        return start, min(end, bound)

    def clipped(self, row: DecidedSegment) -> DecidedSegment | None:
        """Return the part of a row that belongs to this log; None if none does.

        Counts, sizes and checksum stay those of the whole row.
        """
        segment = row.segment
        part = self.part_of(segment.lineage, segment.source_start, segment.source_end)
        if part is None:
            return None
        if segment.lineage == self.lineage:
            return row
        _, end = part
        if segment.source_end > end:
            is_copied = segment.target_end is not None
            segment = replace(segment, source_end=end, target_end=end if is_copied else None)
        stored = row.stored
        if stored is not None:
            stored = replace(stored, aborted=self._aborted(segment.lineage, segment.source_end, stored.aborted))
        return replace(row, segment=segment, stored=stored)

    def clipped_row(self, row: ArchiveRow) -> ArchiveRow | None:
        """Return the same with the columns of the decision."""
        clipped = self.clipped(row.row)
        return None if clipped is None else replace(row, row=clipped)

    def _aborted(self, lineage: int, end: int, aborted: tuple[AbortedTxn, ...]) -> tuple[AbortedTxn, ...]:
        """Return the aborted transactions of a row of a former lineage, as this log ended them."""
        lost, later = self.marker_lost.get(lineage, frozenset()), self.aborted_later.get(lineage, frozenset())
        if not lost and not later:
            return aborted
        kept = tuple(txn for txn in aborted if TxnKey(txn.producer_id, txn.first_offset) not in lost)
        named = {TxnKey(txn.producer_id, txn.first_offset) for txn in kept}
        return kept + tuple(AbortedTxn(*txn, None) for txn in sorted(later - named) if txn.first_offset < end)


_ONLY_LINEAGE = LineageView(0, {0: NO_END})


@dataclass(slots=True)
class PartitionLineages:
    """The lineages of one partition while its rows are looked through.

    `starts`: lowest offset of each lineage. `markers`: by lineage, the abort marker of each aborted transaction; NO_END if no
    row has it.
    """

    starts: dict[int, int] = field(default_factory=dict)
    markers: dict[int, dict[TxnKey, int]] = field(default_factory=dict)

    def add_start(self, lineage: int, start: int) -> None:
        """Take the start of a row."""
        self.starts[lineage] = min(start, self.starts.get(lineage, start))

    def add_aborted(self, lineage: int, producer_id: int, first_offset: int, last_offset: int | None) -> None:
        """Take an aborted transaction that a row lists. Another row of it may have the marker."""
        of_lineage, key = self.markers.setdefault(lineage, {}), TxnKey(producer_id, first_offset)
        of_lineage[key] = min(NO_END if last_offset is None else last_offset, of_lineage.get(key, NO_END))

    @property
    def numbers(self) -> tuple[int, ...]:
        """Return the numbers, rising. After a rebuild those of which no object is left are missing."""
        return tuple(sorted(self.starts))

    def view(self, lineage: int | None = None) -> LineageView:
        """Return the log of a lineage; None: of the newest one. Without that number, of the highest one below it."""
        numbers = [number for number in self.numbers if lineage is None or number <= lineage]
        if not numbers:
            return _ONLY_LINEAGE
        ends: dict[int, int] = {}
        marker_lost: dict[int, frozenset[TxnKey]] = {}
        aborted_later: dict[int, frozenset[TxnKey]] = {}
        end, later = NO_END, frozenset[TxnKey]()
        for number in reversed(numbers):
            ends[number] = end
            markers = self.markers.get(number, {})
            marker_lost[number] = frozenset(key for key, marker in markers.items() if marker >= end and end < NO_END)
            aborted_later[number] = later
            later |= markers.keys() - marker_lost[number]
            end = min(end, self.starts[number])
        return LineageView(numbers[-1], ends, marker_lost, aborted_later)


class Lineages:
    """The partitions of an archive that have more than one lineage. All others have lineage 0 only."""

    def __init__(self, partitions: Mapping[SourcePartition, PartitionLineages]) -> None:
        self._partitions = partitions

    def __len__(self) -> int:
        return len(self._partitions)

    def __contains__(self, source: object) -> bool:
        return source in self._partitions

    def __iter__(self) -> Iterator[SourcePartition]:
        return iter(sorted(self._partitions))

    def numbers(self, source: SourcePartition) -> tuple[int, ...]:
        """Return the numbers of the lineages of a partition, rising."""
        partition = self._partitions.get(source)
        return (0,) if partition is None else partition.numbers

    def view(self, source: SourcePartition, lineage: int | None = None) -> LineageView:
        """Return the log of a partition in a lineage, as `PartitionLineages.view`."""
        partition = self._partitions.get(source)
        return _ONLY_LINEAGE if partition is None else partition.view(lineage)
