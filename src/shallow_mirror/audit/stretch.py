"""Driver: one stretch of one partition: both sides read once, in step, and compared; only what differs is read again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from shallow_mirror.audit.differences import Difference, DifferenceKind, merged
from shallow_mirror.audit.dropped import Dropped
from shallow_mirror.audit.items import Items, joined
from shallow_mirror.audit.judgement import Circumstances, Judgement, Unchecked, held_by_neither, judge
from shallow_mirror.audit.pairing import Leftovers, Pairing, found_elsewhere, to_open, without
from shallow_mirror.audit.pieces import Locate, OpenedCount, Piece, opened_items, pieces_of
from shallow_mirror.audit.rows import BEHIND_ALL, Bools, Longs, MapRows, Stretch
from shallow_mirror.audit.side import Side, Skipped, bytes_per_offset, runs_of

LEFT_ITEMS = 20_000
"""What finds no partner is judged when there is so much of it, or the stretch is read: memory is bounded, and a copy that
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
    """Raises Retriable, ConfigError, and BatchRefused for a batch that is too large to be opened."""
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
        self._settle()
        self._check_dropped()
        self._tell_wrong_headers()
        self._count_deleted()
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
        source, target = self._source_pieces(), self._target_pieces()
        source_at, target_at = self._rows.image(self._stretch.source.start), self._stretch.target.start
        is_source_done = is_target_done = False
        while not (is_source_done and is_target_done):
            if not is_source_done and (source_at <= target_at or is_target_done):
                piece = next(source, None)
                is_source_done = piece is None
                source_at = BEHIND_ALL if piece is None else self._rows.image(piece.position)
                if piece is not None:
                    self._pairing.add_source(piece.items)
            else:
                piece = next(target, None)
                is_target_done = piece is None
                target_at = BEHIND_ALL if piece is None else piece.position
                if piece is not None:
                    self._pairing.add_target(piece.items)
            self._pairing.advance(min(source_at, target_at))
            if self._pairing.left_count > LEFT_ITEMS:
                self._settle()

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
        """Without what lies below the first position: the mirror began behind it."""
        return items[items["end"] > self._rows.start[0]] if len(self._rows) else items

    def _named_here(self, items: Items) -> Items:
        """Without what rows of another incarnation of the source topic name: its originals are gone."""
        starts, ends = self._sides.elsewhere
        if not len(starts):
            return items
        at = np.searchsorted(starts, items["offset"], "right") - 1
        return items[~((at >= 0) & (items["end"] <= ends[at]))]

    def _settle(self) -> None:
        """Open what overlaps and differs, then judge what is still left over."""
        left = self._pairing.take_leftovers()
        if not len(left):
            return
        moved = found_elsewhere(left)
        rest = without(left, [i for i, _ in moved], [j for _, j in moved])
        in_source, in_target = to_open(rest)
        opened = self._pairing.pair(
            self._records(self._sides.source_again, rest.source[in_source], self._locate_source),
            self._records(self._sides.target_again, rest.target[in_target], self._locate_target),
        )
        self._opened.batches += int(in_source.sum())
        remaining = Leftovers(
            joined([left.source[[i for i, _ in moved]], rest.source[~in_source], opened.source]),
            joined([left.target[[j for _, j in moved]], rest.target[~in_target], opened.target]),
        )
        self._shown.append(remaining.target)
        self._take(judge(remaining, self._circumstances()))

    def _records(self, side: Side, batches: Items, locate: Locate) -> Items:
        """The records of `batches`, read once more."""
        batches = batches[np.argsort(batches["offset"], kind="stable")]
        wanted = set(batches["offset"].tolist())
        found: list[Items] = []
        for run in runs_of(batches["offset"], batches["end"]):
            for chunk in side.read(run, bytes_per_offset(int(batches["size_bytes"].sum()), len(batches)), is_first=True):
                if isinstance(chunk, Skipped):
                    continue
                for i in chunk.chosen.tolist():
                    if int(chunk.index.headers["base_offset"][i]) in wanted:
                        found += opened_items(chunk, i, side, locate)
        return self._copied(joined(found)) if side is self._sides.source_again else joined(found)

    def _circumstances(self) -> Circumstances:
        source, target = self._sides.source, self._sides.target
        return Circumstances(
            source.place, target.place, self._rows, source.log.facts(), target.log.facts(), tuple(self._dropped.absences)
        )

    def _take(self, judged: Judgement) -> None:
        self._differences += judged.differences
        self._unchecked += judged.unchecked

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
