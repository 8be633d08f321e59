"""Driver: lower the ends of a restore until they tear no transaction, by the headers of the batches around them."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import groupby

from shallow_mirror.archive_reading.segment_reader import SegmentReader
from shallow_mirror.archive_reading.transaction_cuts import TxnScan, whole_ends
from shallow_mirror.checkpoints.ledger import VISIBLE, ArchiveTable, of_partition
from shallow_mirror.checkpoints.rows import ArchiveRow
from shallow_mirror.checkpoints.tables import Comparison
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.plurals import counted
from shallow_mirror.types import OffsetRange, SegmentKind, SourcePartition

_log = logging.getLogger(__name__)

_Place = tuple[int, int]
"""Of a row of one partition: its decision and first offset."""
MARGIN = timedelta(minutes=15)
"""Parts of a transaction are looked for that were archived so long before or after a cut: transaction.max.timeout.ms."""


class WholeTransactions:
    """Lowers the ends of ranges. Reads the archive around them, also behind the cut."""

    def __init__(
        self, table: ArchiveTable, store: ObjectStore, lineages: Mapping[SourcePartition, int], margin: timedelta = MARGIN
    ) -> None:
        """`lineages`: of each partition, the one whose log is restored."""
        self._table = table
        self._store = store
        all_lineages = table.lineages()
        self._views = {source: all_lineages.view(source, lineage) for source, lineage in lineages.items()}
        self._margin = margin

    def lower(self, ranges: Mapping[SourcePartition, OffsetRange]) -> dict[SourcePartition, OffsetRange]:
        """Return the ranges with ends that tear no transaction. Raises as `SegmentReader`."""
        ends = {source: offsets.end for source, offsets in ranges.items()}
        scanned_from: datetime | None = None
        while (window := self._window(ends, ranges)) is not None and (scanned_from is None or window[0] < scanned_from):
            scan = self._scan(ranges, *window)
            self._read_on(scan, ranges, ends)
            scanned_from = window[0]
            # A lowered end may tear a transaction that lies before what was read: read from there, too.
            ends = whole_ends(ends, scan.parts())
            _report(ranges, ends, scan)
        return {source: OffsetRange(offsets.start, max(offsets.start, ends[source])) for source, offsets in ranges.items()}

    def _window(
        self, ends: Mapping[SourcePartition, int], ranges: Mapping[SourcePartition, OffsetRange]
    ) -> tuple[datetime, datetime] | None:
        """Return between which times that was decided which may hold parts of split transactions; None without any record."""
        times = [
            row.decided_at_ms
            for row in self._in_views(self._table.segments({source.topic for source in ends}))
            if (end := ends.get(row.segment.source)) is not None
            and end > ranges[row.segment.source].start
            and row.segment.source_start < end <= row.segment.source_end
        ]
        if not times:
            return None
        first, last = (datetime.fromtimestamp(at_ms / 1000, UTC) for at_ms in (min(times), max(times)))
        return first - self._margin, last + self._margin

    def _in_views(self, rows: Iterable[ArchiveRow]) -> Iterator[ArchiveRow]:
        """Yield the parts of rows that belong to restored logs."""
        for row in rows:
            view = self._views.get(row.segment.source)
            clipped = None if view is None else view.clipped_row(row)
            if clipped is not None:
                yield clipped

    def _scan(self, ranges: Mapping[SourcePartition, OffsetRange], since: datetime, until: datetime) -> TxnScan:
        scan = TxnScan()
        condition = (Comparison("decided_at", ">", since), Comparison("decided_at", "<=", until))
        for rows in self._table.decisions(condition, VISIBLE):
            by_partition: dict[SourcePartition, list[ArchiveRow]] = {}
            for row in self._in_views(rows):
                if row.segment.source in ranges:
                    by_partition.setdefault(row.segment.source, []).append(row)
            for source, rows_of_partition in sorted(by_partition.items()):
                self._add(scan, rows_of_partition, ranges[source].start, _places(rows_of_partition))
        return scan

    def _add(self, scan: TxnScan, rows: Iterable[ArchiveRow], start: int, decided: Container[_Place]) -> None:
        """Add rows of one partition, in the order of offsets. `decided`: the places of all rows of their decisions."""
        for has_batches, following in groupby(rows, key=lambda row: row.stored is not None):
            if has_batches:
                for batches in SegmentReader(self._store, list(following), start, verifies_batches=False):
                    scan.add(batches)
                continue
            for row in following:
                if _is_missing(row, decided):
                    scan.add_hole(row.segment.source, row.segment.source_end)

    def _read_on(self, scan: TxnScan, ranges: Mapping[SourcePartition, OffsetRange], ends: Mapping[SourcePartition, int]) -> None:
        """Add rows behind those of the scan until every transaction that begins below an end has its marker, if archived.

        A marker may be archived any time later: it lies behind another transaction that was open, or the archive did not run.
        """
        for source in sorted(ranges):
            if not scan.has_open(source, ends[source]):
                continue
            condition = (*of_partition(source), Comparison("source_start", ">", scan.read_end(source) - 1))
            for rows in self._table.decisions(condition, VISIBLE):
                in_view = list(self._in_views(rows))
                decided = _places(in_view)
                for row in in_view:
                    if scan.has_open(source, ends[source]):
                        self._add(scan, [row], ranges[source].start, decided)
                if not scan.has_open(source, ends[source]):
                    break


def _places(rows: Iterable[ArchiveRow]) -> frozenset[_Place]:
    return frozenset((row.micro_batch, row.segment.source_start) for row in rows)


def _is_missing(row: ArchiveRow, decided: Container[_Place]) -> bool:
    """Return whether a marker may have been at the offsets of a row without batches. `decided`: as for `_add`.

    If compaction has left no batch, a decision ends with such a row, and no marker is missing: the cleaner keeps it as long as
    data of its transaction. A rebuild puts the offsets of a lost object in front of the next row, into the decision of that.
    """
    if row.segment.source_start == row.segment.source_end:
        return False
    return row.segment.kind is SegmentKind.EXPIRED or (row.micro_batch, row.segment.source_end) in decided


def _report(ranges: Mapping[SourcePartition, OffsetRange], ends: Mapping[SourcePartition, int], scan: TxnScan) -> None:
    lowered = [offsets.end - ends[source] for source, offsets in ranges.items() if ends[source] < offsets.end]
    if lowered:
        _log.info(
            "whole transactions: %s earlier, by %s", counted(len(lowered), "partition ends", "partitions end"),
            counted(sum(lowered), "offset"),
        )  # fmt: skip
    if scan.unnamed_count:
        _log.warning(
            "whole transactions: %s around the cut of producers before transaction.version 2: they are kept whole in each "
            "partition, but which of them belong together in several partitions cannot be known",
            counted(scan.unnamed_count, "transaction is", "transactions are"),
        )
