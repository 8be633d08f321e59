"""Driver: one stretch of one partition: both sides read once, in step, and compared; only what differs is read again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from shallow_mirror.verify.classify import Circumstances, Unchecked, held_by_neither, judge, tell_moved_and_damaged
from shallow_mirror.verify.differences import Difference, DifferenceKind, merged
from shallow_mirror.verify.dropped_check import Dropped
from shallow_mirror.verify.fingerprints import Items, joined, no_items
from shallow_mirror.verify.item_stream import Locate, OpenedCount, Piece, opened_pieces, pieces_of
from shallow_mirror.verify.map_index import BEHIND_ALL, Bools, Longs, MapRows, Stretch
from shallow_mirror.verify.matcher import Leftovers, Pairing, to_open
from shallow_mirror.verify.partition_reader import Side, Skipped, bytes_per_offset, runs_of

LEFT_RECORDS = 200_000
"""What finds no partner is judged when it holds so many records, or the stretch is read: memory is bounded, and a copy that
lies further away than that is told as missing here and extra there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StretchResult:
    """`record_count` and `batch_count` (whole batches) were found equal, `opened_batch_count` were compared by records.

    `unchecked` counts source offsets. Differences are in order of offsets.
    """

    stretch: Stretch
    batch_count: int
    record_count: int
    opened_batch_count: int
    source_bytes: int
    target_bytes: int
    differences: tuple[Difference, ...]
    unchecked: Counter[Unchecked]


@dataclass(frozen=True, slots=True)
class Sides:
    """Both clusters' view of a partition; `…_again` over connections of their own, for what is read a second time.

    `elsewhere`: target offsets [start, end) that rows of another incarnation of the source topic name, ascending.
    """

    source: Side
    target: Side
    source_again: Side
    target_again: Side
    rows: MapRows
    elsewhere: tuple[Longs, Longs]
    is_deep: bool


OnPosition = Callable[[int], None]
"""Hears up to which source offset a stretch was read."""


def verify_stretch(sides: Sides, stretch: Stretch, *, is_first: bool, on_position: OnPosition) -> StretchResult:
    """Raises RetriableError, ConfigError, and BatchRefusedError for a batch that is too large to be opened."""
    return _StretchAudit(sides, stretch, is_first, on_position).run()


class _StretchAudit:
    def __init__(self, sides: Sides, stretch: Stretch, is_first: bool, on_position: OnPosition) -> None:
        self._sides, self._rows, self._stretch, self._is_first = sides, sides.rows, stretch, is_first
        self._on_position = on_position
        self._pairing, self._opened = Pairing(), OpenedCount()
        self._dropped = Dropped(sides.rows, stretch.source.start)
        self._shown: list[Items] = []
        self._differences: list[Difference] = []
        self._unchecked: Counter[Unchecked] = Counter()
        picked = slice(stretch.rows.start, stretch.rows.stop)
        size_bytes = int(self._rows.size_bytes[picked].sum())
        self._source_estimate = bytes_per_offset(size_bytes, stretch.source.end - stretch.source.start)
        self._target_estimate = bytes_per_offset(size_bytes, stretch.target.end - stretch.target.start)

    def run(self) -> StretchResult:
        before = self._sides.source.read_bytes, self._sides.target.read_bytes
        self._read_both()
        self._check_dropped()
        self._tell_wrong_headers()
        self._count_deleted()
        for side in (self._sides.source, self._sides.target):
            side.log.damages.clear()
        return StretchResult(
            stretch=self._stretch,
            batch_count=self._pairing.batches,
            record_count=self._pairing.records,
            opened_batch_count=self._opened.batches,
            source_bytes=self._sides.source.read_bytes - before[0],
            target_bytes=self._sides.target.read_bytes - before[1],
            differences=tuple(merged(self._differences)),
            unchecked=+self._unchecked,
        )

    def _read_both(self) -> None:
        source_at, target_at = self._rows.image(self._stretch.source.start), self._stretch.target.start
        self._in_step(self._pairing, self._source_pieces(), self._target_pieces(), source_at, target_at, self._open_and_judge)

    def _in_step(
        self,
        pairing: Pairing,
        source: Iterator[Piece],
        target: Iterator[Piece],
        source_at: int,
        target_at: int,
        settle: Callable[[Leftovers], None],
    ) -> None:
        """Take from the side that is behind; `source_at` and `target_at` are offsets of the target up to which each was read."""
        is_source_done = is_target_done = False
        while not (is_source_done and is_target_done):
            if not is_source_done and (source_at <= target_at or is_target_done):
                piece = next(source, None)
                is_source_done = piece is None
                source_at = BEHIND_ALL if piece is None else self._rows.image(piece.position)
                pairing.add_source(no_items() if piece is None else piece.items)
            else:
                piece = next(target, None)
                is_target_done = piece is None
                target_at = BEHIND_ALL if piece is None else piece.position
                pairing.add_target(no_items() if piece is None else piece.items)
            pairing.advance(min(source_at, target_at))
            if pairing.left_records > LEFT_RECORDS:
                settle(pairing.take_leftovers())
        settle(pairing.take_leftovers())

    def _source_pieces(self) -> Iterator[Piece]:
        side, wanted = self._sides.source, self._stretch.source
        for chunk in side.read(wanted, self._source_estimate, is_first=self._is_first):
            if isinstance(chunk, Skipped):
                self._dropped.skip(chunk.end)
            else:
                self._dropped.add(chunk, log_start=side.log.log_start, is_compacted=side.log.is_compacted)
            for piece in pieces_of(chunk, side, self._locate_source, self._opened):
                yield Piece(self._copied(piece.items), piece.position)
            self._on_position(self._dropped.seen)
        self._dropped.skip(side.log.log_start)
        self._dropped.close(wanted.end, is_compacted=side.log.is_compacted)

    def _target_pieces(self) -> Iterator[Piece]:
        uncounted = OpenedCount()
        for chunk in self._sides.target.read(self._stretch.target, self._target_estimate, is_first=self._is_first):
            for piece in pieces_of(chunk, self._sides.target, self._locate_target, uncounted):
                yield Piece(self._named_here(piece.items), piece.position)

    def _locate_source(self, items: Items) -> Bools:
        return self._rows.locate_source(items) | self._sides.is_deep

    def _locate_target(self, items: Items) -> Bools:
        return self._rows.locate_target(items) | self._sides.is_deep

    def _copied(self, items: Items) -> Items:
        """Without what lies below the first position: the mirror began behind it; and without what was quarantined."""
        if not len(self._rows):
            return items
        copied: Items = items[(items["end"] > self._rows.start[0]) & ~self._rows.in_quarantine(items)]
        return copied

    def _named_here(self, items: Items) -> Items:
        """Without what rows of another incarnation of the source topic name: its originals are gone."""
        starts, ends = self._sides.elsewhere
        if not len(starts):
            return items
        at = np.searchsorted(starts, items["offset"], "right") - 1
        return items[~((at >= 0) & (items["end"] <= ends[at]))]

    def _open_and_judge(self, left: Leftovers) -> None:
        """Open whole batches that overlap something else of the other side; what is left then is judged."""
        rest, differences = tell_moved_and_damaged(left, self._circumstances())
        self._differences += differences
        in_source, in_target = to_open(rest)
        self._judge(Leftovers(rest.source[~in_source], rest.target[~in_target]))
        if in_source.any() or in_target.any():
            self._compare_records(rest.source[in_source], rest.target[in_target])

    def _compare_records(self, source: Items, target: Items) -> None:
        """Of batches that are read once more."""
        pairing = Pairing()
        of_source = self._pieces_again(self._sides.source_again, source, self._locate_source)
        of_target = self._pieces_again(self._sides.target_again, target, self._locate_target)
        copied = (Piece(self._copied(piece.items), piece.position) for piece in of_source)
        self._in_step(pairing, copied, of_target, 0, 0, self._judge)
        self._opened.batches += len(source)
        self._pairing.count_with(pairing)

    def _pieces_again(self, side: Side, batches: Items, locate: Locate) -> Iterator[Piece]:
        batches = batches[np.argsort(batches["offset"], kind="stable")]
        wanted = set(batches["offset"].tolist())
        estimate = bytes_per_offset(int(batches["size_bytes"].sum()), int((batches["end"] - batches["offset"]).sum()))
        for run in runs_of(batches["offset"], batches["end"]):
            for chunk in side.read(run, estimate, is_first=True):
                if isinstance(chunk, Skipped):
                    continue
                base = chunk.index.headers["base_offset"]
                chosen = [i for i in chunk.chosen.tolist() if int(base[i]) in wanted]
                yield from opened_pieces(chunk, chosen, side, locate)

    def _judge(self, left: Leftovers) -> None:
        if len(left):
            self._shown.append(left.target)
            judged = judge(left, self._circumstances())
            self._differences += judged.differences
            self._unchecked += judged.unchecked

    def _circumstances(self) -> Circumstances:
        source, target = self._sides.source, self._sides.target
        return Circumstances(
            source.place, target.place, self._rows, source.log.facts(), target.log.facts(), tuple(self._dropped.absences)
        )

    def _check_dropped(self) -> None:
        known = self._circumstances()
        self._differences += held_by_neither(joined(self._shown), known)
        for start, end, reason in self._dropped.contradictions:
            self._differences.append(known.difference(DifferenceKind.CHANGED, reason, source_start=start, source_end=end))

    def _tell_wrong_headers(self) -> None:
        """Where nothing else was told of their batches."""
        known, log = self._circumstances(), self._sides.target.log
        told = [(one.target_start, one.target_end) for one in self._differences if one.target_start is not None]
        for (start, end), reason in log.wrong_headers.items():
            if not any(first < end and start < (last or first) for first, last in told):
                reason = f"its records are the same, but {reason}"
                where = {"target_start": start, "target_end": end}
                self._differences.append(known.difference(DifferenceKind.CHANGED, reason, **where))
        log.wrong_headers.clear()

    def _count_deleted(self) -> None:
        """What retention took from either side, and what compaction took from both."""
        source, target = self._sides.source.log, self._sides.target.log
        deleted = self._rows.deleted_offsets(self._stretch.rows, source.log_start, target.log_start)
        if source.is_compacted or target.is_compacted:
            told = sum((one.source_end or 0) - (one.source_start or 0) for one in self._differences)
            known = self._pairing.offsets + told + sum(self._unchecked.values())
            why = Unchecked.SOURCE_COMPACTED if source.is_compacted else Unchecked.TARGET_COMPACTED
            self._unchecked[why] += max(0, deleted.left - known)
        self._unchecked[Unchecked.SOURCE_DELETED] += deleted.at_source
        self._unchecked[Unchecked.TARGET_DELETED] += deleted.at_target
