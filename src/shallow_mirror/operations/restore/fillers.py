"""Pure: how many fillers a restore with preserved offsets takes, as the rows of an archive tell without reading a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shallow_mirror.archive_format import AbortedTxn
from shallow_mirror.checkpoints.rows import ArchiveRow
from shallow_mirror.plurals import counted
from shallow_mirror.types import IsolationLevel
from shallow_mirror.wire.records import FILLER_KEY, filler_record


@dataclass(slots=True, kw_only=True)
class FillerCount:
    """Of one partition. `leading`: below its first offset, deleted when its first records are there. `least` and `most`: of all
    others. They differ if a row is restored in part, or has aborted records, which rows do not count.
    """

    is_compacted: bool
    leading: int = 0
    least: int = 0
    most: int = 0

    @property
    def most_bytes(self) -> int:
        """Return the size of all of them, without the headers of their batches."""
        return (self.leading + self.most) * self._size_bytes

    @property
    def _size_bytes(self) -> int:
        return len(filler_record(FILLER_KEY if self.is_compacted else None))

    def add(self, row: ArchiveRow, start: int, end: int, isolation: IsolationLevel, *, is_clipped: bool) -> None:
        """Add a row of which offsets [start, end) are restored. `is_clipped`: its counts are those of a longer row."""
        segment = row.segment
        first, behind = max(segment.source_start, start), min(segment.source_end, end)
        if first >= behind:
            return
        offsets = behind - first
        elsewhere = segment.record_count if is_clipped else segment.source_end - segment.source_start - offsets
        self.least += offsets - min(offsets, segment.record_count)
        records = max(0, segment.record_count - elsewhere)
        if isolation is IsolationLevel.READ_COMMITTED and row.stored is not None:
            records = max(0, records - _covered(row.stored.aborted, first, behind))
        self.most += offsets - min(offsets, records)

    def sentences(self) -> list[str]:
        parts = []
        if self.leading:
            size = self._of(self.leading)
            parts.append(f"{counted(self.leading, 'filler')} below its first offset ({size}), which are deleted later")
        if self.most:
            bound = f"{self.least:,} to " if self.least < self.most else ""
            parts.append(f"{bound}{counted(self.most, 'filler')} for offsets without a record ({self._of(self.most)})")
        return parts

    def _of(self, count: int) -> str:
        return counted(count * self._size_bytes, "byte")


def _covered(aborted: Sequence[AbortedTxn], start: int, end: int) -> int:
    """Return how many offsets of [start, end) lie between the first record and the marker of an aborted transaction."""
    covered, reached = 0, start
    for txn in sorted(aborted, key=lambda txn: txn.first_offset):
        first, behind = max(txn.first_offset, reached), min(end if txn.last_offset is None else txn.last_offset, end)
        if first < behind:
            covered, reached = covered + behind - first, behind
    return covered
