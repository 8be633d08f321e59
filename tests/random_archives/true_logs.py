"""Pure: the truth of what an archive has of each log: of a partition in one lineage, and of what only that lineage has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tests.random_archives.documented_reader import VISIBLE, Row
from tests.random_archives.histories import ArchiveHistory
from tests.random_archives.random_sources import Archived
from tests.random_archives.source_logs import LogBatch, LogRecord, SourceLog, TxnKey
from tests.random_archives.whole_ends import NO_END

from shallow_mirror.types import SourcePartition


@dataclass(frozen=True, slots=True)
class TrueLog:
    """Offsets [start, archived.end) of a log. `final`: what the archive has of it at its end.

    `deleted_end`: where the rows end that retention has deleted. `lost`: offsets that had expired at the source.
    """

    source: SourcePartition
    log: SourceLog
    archived: Archived
    final: Archived
    start: int
    deleted_end: int | None
    lost: Sequence[tuple[int, int]]

    @property
    def lineage(self) -> int:
        return self.archived.lineage

    @property
    def end(self) -> int:
        return max(self.start, self.archived.end)

    def batches(self, end: int) -> Iterator[LogBatch]:
        """Yield the batches that the archive has in front of an offset, also those with a part in front of it only."""
        for batch in self.log.between(self.start, end):
            if any(self._has(offset, end) for offset in range(batch.base_offset, batch.end_offset)):
                yield batch

    def seen_batches(self, end: int, undecided: frozenset[TxnKey], *, is_committed_only: bool = True) -> Iterator[LogBatch]:
        """Yield those whose records a consumer sees. Transactions that are `undecided` count as committed."""
        for batch in self.batches(end):
            is_aborted = self.log.is_aborted(batch) and batch.txn not in undecided
            if batch.records and not (is_aborted and is_committed_only):
                yield batch

    def records(self, end: int, *, is_committed_only: bool = True) -> list[LogRecord]:
        """Return the records in front of an offset that a consumer sees."""
        return [
            record
            for batch in self.seen_batches(end, self.archived.undecided, is_committed_only=is_committed_only)
            for record in batch.records
            if self._has(record.offset, end)
        ]

    def end_at(self, time_ms: int, *, is_committed_only: bool = True) -> int:
        """Return the end of a cut by time: the first newer record, or its batch if no record of the batch is in front of it."""
        for batch in self.seen_batches(self.end, self.archived.undecided, is_committed_only=is_committed_only):
            offsets = [offset for offset in range(batch.base_offset, batch.end_offset) if self._has(offset, self.end)]
            records = [record for record in batch.records if record.offset in offsets]
            newer = [record.offset for record in records if record.timestamp_ms > time_ms]
            if newer:
                return offsets[0] if newer[0] == records[0].offset else newer[0]
        return self.end

    def _has(self, offset: int, end: int) -> bool:
        return self.start <= offset < end and not any(first <= offset < behind for first, behind in self.lost)

    def log_start(self, end: int) -> int:
        """Return where the log begins, behind offsets that had expired."""
        start = self.start
        for first, behind in sorted(self.lost):
            start = behind if first <= start < behind else start
        return max(min(self.start, end), min(start, end))


class TrueLogs:
    """Of one history. `rows`: of the archive's table, for what retention has deleted."""

    def __init__(self, history: ArchiveHistory, rows: Iterable[Row]) -> None:
        self._history = history
        self._deleted = [row for row in rows if row.state != VISIBLE]

    def log(self, source: SourcePartition, lineage: int | None = None, decision: int | None = None) -> TrueLog:
        """Return the log of a partition; `lineage` None: the newest at the decision."""
        starts = self._history.lineage_starts
        decided = [each for each in self._history.decisions if source in each.positions]
        up_to = [each.positions[source] for each in decided if decision is None or each.number <= decision]
        archived = [each for each in up_to if lineage is None or each.lineage <= lineage][-1]
        final = [each.positions[source] for each in decided if each.positions[source].lineage == archived.lineage][-1]
        numbers = range(archived.lineage + 1)
        deleted_end = max(
            (
                min(row.end, clip)
                for row in self._deleted
                if SourcePartition(*row.source) == source
                and row.lineage <= archived.lineage
                and row.start < (clip := self._clip(source, row.lineage, archived.lineage))
            ),
            default=None,
        )
        start = min(starts[source, number] for number in numbers) if deleted_end is None else deleted_end
        clips = {number: self._clip(source, number, archived.lineage) for number in numbers}
        return TrueLog(
            source,
            self._history.logs[source, archived.lineage],
            archived,
            final,
            start,
            deleted_end,
            lost=_clipped(self._history.lost, source, clips),
        )

    def _clip(self, source: SourcePartition, lineage: int, newest: int) -> int:
        starts = [self._history.lineage_starts[source, number] for number in range(lineage + 1, newest + 1)]
        return min(starts, default=NO_END)

    def own_log(self, source: SourcePartition, lineage: int) -> TrueLog:
        """Return what the rows of one lineage have, from the offset on at which it began."""
        whole = self.log(source, lineage)
        own = [row.end for row in self._deleted if SourcePartition(*row.source) == source and row.lineage == lineage]
        start = max([self._history.lineage_starts[source, lineage], *own])
        lost = _clipped(self._history.lost, source, {lineage: NO_END})
        return replace(whole, start=start, lost=lost)


def _clipped(
    ranges: Iterable[tuple[SourcePartition, int, int, int]], source: SourcePartition, clips: Mapping[int, int]
) -> list[tuple[int, int]]:
    """Return the offsets of a partition that lie in the log of a lineage. `clips`: where the rows of each lineage end in it."""
    return [
        (first, min(behind, clips[lineage]))
        for of_source, lineage, first, behind in ranges
        if of_source == source and first < clips.get(lineage, 0)
    ]
