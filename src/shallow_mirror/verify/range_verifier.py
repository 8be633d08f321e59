"""Driver: one range of one partition: both sides read once, in step, and compared; only what differs is read again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from shallow_mirror.types import OffsetRange
from shallow_mirror.verify.classify import (
    Unchecked,
    VerifyContext,
    classify_leftovers,
    classify_moved_and_damaged,
    missing_on_both_sides,
)
from shallow_mirror.verify.differences import Difference, DifferenceKind, merged
from shallow_mirror.verify.dropped_check import DroppedCheck
from shallow_mirror.verify.fingerprints import Items, joined, no_items
from shallow_mirror.verify.item_stream import Locate, OpenedCount, Piece, opened_pieces, pieces_of
from shallow_mirror.verify.map_index import BEHIND_ALL, Bools, Longs, MapRows, RangePair
from shallow_mirror.verify.matcher import Leftovers, Matcher, overlapping_batches, records_beside
from shallow_mirror.verify.partition_reader import LogReader, Skipped, bytes_per_offset, runs_of

LEFT_RECORDS = 200_000
"""What finds no partner is classified when it holds so many records, or the range is read: memory is bounded, and a copy that
lies further away than that is reported as missing here and extra there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeResult:
    """Result of the comparison of one range."""

    range_pair: RangePair
    batch_count: int
    """Whole batches that are equal."""
    record_count: int
    """Records that are equal."""
    opened_batch_count: int
    """Batches that were compared by records."""
    source_bytes: int
    target_bytes: int
    differences: tuple[Difference, ...]
    """In order of offsets."""
    unchecked: Counter[Unchecked]
    """Source offsets."""
    digest: int
    """Of everything that is equal, as `digest_of`."""
    holes: tuple[OffsetRange, ...] = ()
    """Source offsets in data rows at which the source shows no record."""


@dataclass(frozen=True, slots=True)
class PartitionReaders:
    """Both clusters' logs of a partition; `…_reopened` over connections of their own, for second readings."""

    source: LogReader
    target: LogReader
    source_reopened: LogReader
    target_reopened: LogReader
    rows: MapRows
    elsewhere: tuple[Longs, Longs]
    """Target offsets [start, end) that rows of another incarnation of the source topic name, ascending."""
    is_deep: bool
    is_by_offset: bool = False
    """No mirror has made the rows, so no record is missing at an offset that both sides lack."""


OnPosition = Callable[[int], None]
"""Called with the source offset up to which a range was read."""


def verify_range(readers: PartitionReaders, range_pair: RangePair, *, is_first: bool, on_position: OnPosition) -> RangeResult:
    """Compare both sides of a range.

    Raises RetriableError, ConfigError, and BatchRefusedError for a batch that is too large to be opened.
    """
    return _RangeVerifier(readers, range_pair, is_first, on_position).run()


class _RangeVerifier:
    def __init__(self, readers: PartitionReaders, range_pair: RangePair, is_first: bool, on_position: OnPosition) -> None:
        self._readers, self._rows, self._range_pair, self._is_first = readers, readers.rows, range_pair, is_first
        self._on_position = on_position
        self._matcher, self._opened = Matcher(), OpenedCount()
        self._dropped_check = DroppedCheck(readers.rows, range_pair.source.start)
        self._shown: list[Items] = []
        self._differences: list[Difference] = []
        self._unchecked: Counter[Unchecked] = Counter()
        picked = slice(range_pair.rows.start, range_pair.rows.stop)
        size_bytes = int(self._rows.size_bytes[picked].sum())
        self._source_estimate = bytes_per_offset(size_bytes, range_pair.source.end - range_pair.source.start)
        self._target_estimate = bytes_per_offset(size_bytes, range_pair.target.end - range_pair.target.start)

    def run(self) -> RangeResult:
        before = self._readers.source.read_bytes, self._readers.target.read_bytes
        source_at, target_at = self._rows.image(self._range_pair.source.start), self._range_pair.target.start
        self._match_both_sides(
            self._matcher, self._source_pieces(), self._target_pieces(), source_at, target_at, self._open_and_classify
        )
        self._check_dropped()
        self._report_wrong_headers()
        self._count_deleted()
        for reader in (self._readers.source, self._readers.target):
            reader.log.damages.clear()
        return RangeResult(
            range_pair=self._range_pair,
            batch_count=self._matcher.batches,
            record_count=self._matcher.records,
            opened_batch_count=self._opened.batches,
            source_bytes=self._readers.source.read_bytes - before[0],
            target_bytes=self._readers.target.read_bytes - before[1],
            differences=tuple(merged(self._differences)),
            unchecked=+self._unchecked,
            digest=self._matcher.digest,
            holes=tuple(OffsetRange(absence.start, absence.end) for absence in self._dropped_check.absences),
        )

    def _match_both_sides(
        self,
        matcher: Matcher,
        source: Iterator[Piece],
        target: Iterator[Piece],
        source_at: int,
        target_at: int,
        settle: Callable[[Leftovers], None],
    ) -> None:
        """Read from the side that is behind; `source_at` and `target_at` are offsets of the target up to which each was read."""
        is_source_done = is_target_done = False
        while not (is_source_done and is_target_done):
            if not is_source_done and (source_at <= target_at or is_target_done):
                piece = next(source, None)
                is_source_done = piece is None
                source_at = BEHIND_ALL if piece is None else self._rows.image(piece.position)
                matcher.add_source(no_items() if piece is None else piece.items)
            else:
                piece = next(target, None)
                is_target_done = piece is None
                target_at = BEHIND_ALL if piece is None else piece.position
                matcher.add_target(no_items() if piece is None else piece.items)
            # Below this offset of the target both sides are complete, so what has no partner there has none at all.
            matcher.advance(min(source_at, target_at))
            if matcher.left_records > LEFT_RECORDS:
                settle(matcher.take_leftovers())
        settle(matcher.take_leftovers())

    def _source_pieces(self) -> Iterator[Piece]:
        reader, wanted = self._readers.source, self._range_pair.source
        for chunk in reader.read(wanted, self._source_estimate, is_first=self._is_first):
            if isinstance(chunk, Skipped):
                self._dropped_check.skip(chunk.end)
            else:
                self._dropped_check.add(chunk, log_start=reader.log.log_start, is_compacted=reader.log.is_compacted)
            for piece in pieces_of(chunk, reader, self._locate_source, self._opened):
                yield Piece(self._without_uncopied(piece.items), piece.position)
            self._on_position(self._dropped_check.checked_end)
        self._dropped_check.skip(reader.log.log_start)
        self._dropped_check.close(wanted.end, is_compacted=reader.log.is_compacted)

    def _target_pieces(self) -> Iterator[Piece]:
        uncounted = OpenedCount()
        for chunk in self._readers.target.read(self._range_pair.target, self._target_estimate, is_first=self._is_first):
            for piece in pieces_of(chunk, self._readers.target, self._locate_target, uncounted):
                yield Piece(self._without_other_incarnations(piece.items), piece.position)

    def _locate_source(self, items: Items) -> Bools:
        return self._rows.locate_source(items) | self._readers.is_deep

    def _locate_target(self, items: Items) -> Bools:
        return self._rows.locate_target(items) | self._readers.is_deep

    def _without_uncopied(self, items: Items) -> Items:
        """Drop items below the first position of the mirror, quarantined ones, and those that a cut of the source leaves out."""
        source = self._readers.source
        items = items[items["offset"] < source.records_until]
        if source.data_rows is not None:
            starts, ends = source.data_rows
            at = np.searchsorted(starts, items["end"] - 1, "right") - 1
            items = items[(at >= 0) & (ends[at] > items["offset"])] if len(starts) else items[:0]
        if not len(self._rows):
            return items
        copied: Items = items[(items["end"] > self._rows.start[0]) & ~self._rows.in_quarantine(items)]
        return copied

    def _without_other_incarnations(self, items: Items) -> Items:
        """Drop items in rows of another incarnation of the source topic: their originals are gone."""
        starts, ends = self._readers.elsewhere
        if not len(starts):
            return items
        at = np.searchsorted(starts, items["offset"], "right") - 1
        return items[~((at >= 0) & (items["end"] <= ends[at]))]

    def _open_and_classify(self, left: Leftovers) -> None:
        """Open whole batches that overlap another item of the other side; classify the items without a match."""
        rest, differences = classify_moved_and_damaged(left, self._context())
        self._differences += differences
        in_source, in_target = overlapping_batches(rest)
        of_source, of_target = records_beside(rest, in_source, in_target)
        self._classify(Leftovers(rest.source[~(in_source | of_source)], rest.target[~(in_target | of_target)]))
        if in_source.any() or in_target.any():
            beside = Leftovers(rest.source[of_source], rest.target[of_target])
            self._compare_records(rest.source[in_source], rest.target[in_target], beside)

    def _compare_records(self, source: Items, target: Items, beside: Leftovers) -> None:
        """Compare batches by their records, which are read once more, and with the records `beside` them."""
        matcher = Matcher()
        matcher.add_source(beside.source)
        matcher.add_target(beside.target)
        of_source = self._read_again(self._readers.source_reopened, source, self._locate_source)
        of_target = self._read_again(self._readers.target_reopened, target, self._locate_target)
        copied = (Piece(self._without_uncopied(piece.items), piece.position) for piece in of_source)
        copies = (Piece(self._without_other_incarnations(piece.items), piece.position) for piece in of_target)
        self._match_both_sides(matcher, copied, copies, 0, 0, self._classify)
        self._opened.batches += len(source)
        self._matcher.count_with(matcher)

    def _read_again(self, reader: LogReader, batches: Items, locate: Locate) -> Iterator[Piece]:
        batches = batches[np.argsort(batches["offset"], kind="stable")]
        wanted = set(batches["offset"].tolist())
        estimate = bytes_per_offset(int(batches["size_bytes"].sum()), int((batches["end"] - batches["offset"]).sum()))
        for run in runs_of(batches["offset"], batches["end"]):
            for chunk in reader.read(run, estimate, is_first=True):
                if isinstance(chunk, Skipped):
                    continue
                base = chunk.index.headers["base_offset"]
                chosen = [i for i in chunk.chosen.tolist() if int(base[i]) in wanted]
                yield from opened_pieces(chunk, chosen, reader, locate)

    def _classify(self, left: Leftovers) -> None:
        if len(left):
            self._shown.append(left.target)
            judged = classify_leftovers(left, self._context())
            self._differences += judged.differences
            self._unchecked += judged.unchecked

    def _context(self) -> VerifyContext:
        source, target = self._readers.source, self._readers.target
        return VerifyContext(
            source.topic_partition,
            target.topic_partition,
            self._rows,
            source.log.facts(),
            target.log.facts(),
            tuple(self._dropped_check.absences),
        )

    def _check_dropped(self) -> None:
        context = self._context()
        if not self._readers.is_by_offset:
            self._differences += missing_on_both_sides(joined(self._shown), context)
        for start, end, reason in self._dropped_check.contradictions:
            self._differences.append(context.difference(DifferenceKind.CHANGED, reason, source_start=start, source_end=end))

    def _report_wrong_headers(self) -> None:
        """Report wrong headers of batches without another reported difference."""
        context, log = self._context(), self._readers.target.log
        reported = [
            (difference.target_start, difference.target_end)
            for difference in self._differences
            if difference.target_start is not None
        ]
        for (start, end), reason in log.wrong_headers.items():
            if not any(first < end and start < (last or first) for first, last in reported):
                reason = f"its records are the same, but {reason}"
                where = {"target_start": start, "target_end": end}
                self._differences.append(context.difference(DifferenceKind.CHANGED, reason, **where))
        log.wrong_headers.clear()

    def _count_deleted(self) -> None:
        """Count the offsets that retention deleted on either side, and those that compaction removed on both."""
        source, target = self._readers.source.log, self._readers.target.log
        deleted = self._rows.deleted_offsets(self._range_pair.rows, source.log_start, target.log_start)
        if source.is_compacted or target.is_compacted:
            reported_offsets = sum(
                (difference.source_end or 0) - (difference.source_start or 0) for difference in self._differences
            )
            accounted = self._matcher.offsets + reported_offsets + sum(self._unchecked.values())
            why = Unchecked.SOURCE_COMPACTED if source.is_compacted else Unchecked.TARGET_COMPACTED
            self._unchecked[why] += max(0, deleted.left - accounted)
        self._unchecked[Unchecked.SOURCE_DELETED] += deleted.at_source
        self._unchecked[Unchecked.TARGET_DELETED] += deleted.at_target
