"""Pure: the offset map's rows of one source partition as arrays, and where they lead from either side."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from shallow_mirror.types import OffsetRange, SegmentKind
from shallow_mirror.verify.differences import DifferenceKind
from shallow_mirror.verify.fingerprints import NOWHERE, Items

COLUMNS = ["source_start", "source_end", "kind", "target_start", "rebuilt_batch_count", "size_bytes"]

KINDS = tuple(SegmentKind)
DATA, COMMIT, ABORT, ABORTED, GAP, QUARANTINED, RELEASED = (
    KINDS.index(kind)
    for kind in (
        SegmentKind.DATA,
        SegmentKind.COMMIT,
        SegmentKind.ABORT,
        SegmentKind.ABORTED,
        SegmentKind.GAP,
        SegmentKind.QUARANTINED,
        SegmentKind.RELEASED,
    )
)

BEHIND_ALL = 1 << 62
"""Above every offset."""

Longs = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class MapRows:
    """By source offset. Zero-length rows are left out; about 50 bytes a row, and as much again for the targets.

    Released rows are copies like data, but lie within quarantined ones: both are not in one `MapRows`.
    """

    def __init__(self, start: Longs, end: Longs, kind: Longs, target_start: Longs, is_rebuilt: Bools, size_bytes: Longs) -> None:
        order = np.lexsort((end, start))
        order = order[(end > start)[order]]
        self.start, self.end, self.kind = start[order], end[order], kind[order]
        self.size_bytes = size_bytes[order]
        self.is_data = np.isin(self.kind, (DATA, RELEASED))
        self._rebuilt = _Counted(self.start, self.end, is_rebuilt[order])
        self._data = _Counted(self.start, self.end, self.is_data)
        self.shift = np.where(self.is_data, target_start[order] - self.start, 0)
        self._data_rows = np.flatnonzero(self.is_data)
        self._data_ends = self.end[self._data_rows]
        self.target_rows = self._data_rows[np.argsort(self.target_start[self._data_rows], kind="stable")]
        self.target_starts, self.target_ends = self.target_start[self.target_rows], self.target_end[self.target_rows]
        self._rebuilt_targets = _Counted(self.target_starts, self.target_ends, is_rebuilt[order][self.target_rows])

    @classmethod
    def of(cls, table: pa.Table) -> MapRows:
        """From COLUMNS of all rows of one source partition, in any order."""
        kinds = {kind.value: i for i, kind in enumerate(KINDS)}
        return cls(
            _longs(table, "source_start"),
            _longs(table, "source_end"),
            np.array([kinds[kind] for kind in table.column("kind").to_pylist()], np.int64),
            _longs(table, "target_start"),
            _longs(table, "rebuilt_batch_count") > 0,
            _longs(table, "size_bytes"),
        )

    def __len__(self) -> int:
        return len(self.start)

    @property
    def target_start(self) -> Longs:
        """Meaningful for data rows."""
        return self.start + self.shift

    @property
    def target_end(self) -> Longs:
        return self.end + self.shift

    def row_of(self, offsets: Longs) -> Longs:
        """Return the row that holds each source offset; NOWHERE if none does."""
        return _index_of(self.start, self.end, offsets)

    def rows_between(self, start: int, end: int) -> range:
        """Rows that overlap source offsets [start, end)."""
        return range(int(np.searchsorted(self.end, start, "right")), int(np.searchsorted(self.start, end, "left")))

    def image(self, position: int) -> int:
        """Return the target offset at which copies of source offsets from `position` on begin; BEHIND_ALL if there are none."""
        at = int(np.searchsorted(self._data_ends, position, "right"))
        if at == len(self._data_rows):
            return BEHIND_ALL
        row = self._data_rows[at]
        return int(max(self.start[row], position) + self.shift[row])

    def locate_source(self, items: Items) -> Bools:
        """Fill in `row` and `partner`. True: only its records can tell (rebuilt, or not inside of one data row)."""
        if not len(self):
            return np.zeros(len(items), np.bool_)
        begin = np.maximum(items["offset"], self.start[0])
        row = self.row_of(begin)
        is_data = (row >= 0) & self.is_data[row]
        is_whole = is_data & (items["end"] <= self.end[row]) & (items["offset"] >= self.start[row])
        items["row"] = row
        items["partner"] = np.where(is_data, items["offset"] + self.shift[row], NOWHERE)
        is_rebuilt = self._rebuilt.any_in(begin, items["end"])
        return np.asarray(is_rebuilt | (~is_whole & self._data.any_in(begin, items["end"])), np.bool_)

    def in_quarantine(self, items: Items) -> Bools:
        """Of source items that were located."""
        return np.asarray((items["row"] >= 0) & (self.kind[items["row"]] == QUARANTINED), np.bool_)

    def locate_target(self, items: Items) -> Bools:
        """Fill in `row` and `partner` of target items. True: it touches a rebuilt row."""
        at = _index_of(self.target_starts, self.target_ends, items["offset"])
        is_named = at >= 0
        row = np.where(is_named, self.target_rows[at] if len(self.target_rows) else NOWHERE, NOWHERE)
        items["row"] = row
        items["partner"] = np.where(is_named, items["offset"] - (self.shift[row] if len(self) else 0), NOWHERE)
        return self._rebuilt_targets.any_in(items["offset"], items["end"])

    def deleted_offsets(self, rows: range, source_log_start: int, target_log_start: int) -> Deleted:
        """Count the offsets of these rows that retention has deleted, and those that it left."""
        picked = slice(rows.start, rows.stop)
        start, length, is_data = self.start[picked], (self.end - self.start)[picked], self.is_data[picked]
        at_source = np.where(np.isin(self.kind[picked], (GAP, QUARANTINED)), 0, np.clip(source_log_start - start, 0, length))
        expired = np.where(is_data, np.clip(target_log_start - self.target_start[picked], 0, length), 0)
        at_target = np.maximum(expired - at_source, 0)
        left = np.where(is_data, length - at_source - at_target, 0)
        return Deleted(int(at_source.sum()), int(at_target.sum()), int(left.sum()))


@dataclass(frozen=True, slots=True)
class Deleted:
    """Source offsets which the source's retention deleted, others whose copies the target's did; and copied ones left by both."""

    at_source: int
    at_target: int
    left: int


class _Counted:
    """Answer whether any of the ranges that overlap an interval is marked."""

    def __init__(self, starts: Longs, ends: Longs, marks: Bools) -> None:
        self._starts, self._ends = starts, ends
        self._before = np.concatenate(([0], np.cumsum(marks)))

    def any_in(self, starts: Longs, ends: Longs) -> Bools:
        first = np.searchsorted(self._ends, starts, "right")
        last = np.searchsorted(self._starts, ends, "left")
        return np.asarray(self._before[np.maximum(last, first)] > self._before[first], np.bool_)


def _index_of(starts: Longs, ends: Longs, offsets: Longs) -> Longs:
    if not len(starts):
        return np.full(len(offsets), NOWHERE, np.int64)
    at = np.searchsorted(starts, offsets, "right") - 1
    return np.asarray(np.where((at >= 0) & (offsets < ends[at]), at, NOWHERE), np.int64)


def _longs(table: pa.Table, column: str) -> Longs:
    """Null is NOWHERE."""
    return np.asarray(table.column(column).fill_null(NOWHERE).to_numpy(), np.int64)


@dataclass(frozen=True, slots=True)
class RangePair:
    """A part of a partition that is verified on its own: `rows` of the map, and the offsets of both sides that belong to it."""

    rows: range
    source: OffsetRange
    target: OffsetRange


def plan_range_pairs(rows: MapRows, *, source_from: int, target_from: int, target_until: int, size_bytes: int) -> list[RangePair]:
    """Cut the part that is not verified yet at rows, into ranges of about `size_bytes` by the sizes in the map.

    The target's offsets are cut at the first copy of the next part; all of it, up to `target_until`, is in one of
    them. There is always one range, also if no row is left.
    """
    first = int(np.searchsorted(rows.start, source_from, "left"))
    if first == len(rows):
        until = max(source_from, int(rows.end[-1]) if len(rows) else source_from)
        return [RangePair(range(first, first), OffsetRange(source_from, until), _range(target_from, target_until))]
    parts = np.cumsum(rows.size_bytes[first:]) // size_bytes
    cuts = [first, *(np.flatnonzero(np.diff(parts)) + first + 1).tolist(), len(rows)]
    range_pairs: list[RangePair] = []
    target_at = target_from
    for begin, end in itertools.pairwise(cuts):
        target_end = target_until
        if end < len(rows):
            # Rows out of order may lead below what the range before has read, or behind the log.
            target_end = min(max(target_at, rows.image(int(rows.start[end]))), max(target_until, target_at))
        source_start = source_from if begin == first else int(rows.start[begin])
        source_end = int(rows.start[end]) if end < len(rows) else int(rows.end[-1])
        range_pairs.append(RangePair(range(begin, end), _range(source_start, source_end), _range(target_at, target_end)))
        target_at = max(target_at, target_end)
    return range_pairs


def _range(start: int, end: int) -> OffsetRange:
    return OffsetRange(start, max(start, end))


@dataclass(frozen=True, slots=True)
class RowProblem:
    """The map contradicts itself at source offsets [start, end)."""

    kind: DifferenceKind
    start: int
    end: int
    reason: str


def row_problems(rows: MapRows) -> Sequence[RowProblem]:
    """Return holes and overlaps of the source offsets, and target offsets that do not rise with them."""
    problems = []
    for i in np.flatnonzero(rows.start[1:] != rows.end[:-1]).tolist():
        before, after = int(rows.end[i]), int(rows.start[i + 1])
        if before < after:
            problems.append(RowProblem(DifferenceKind.NOT_IN_MAP, before, after, "no row of the map holds these source offsets"))
        else:
            end = min(before, int(rows.end[i + 1]))
            problems.append(RowProblem(DifferenceKind.EXTRA, after, end, "two rows of the map hold these source offsets"))
    data = np.flatnonzero(rows.is_data)
    starts, ends = rows.target_start[data], rows.target_end[data]
    for i in np.flatnonzero(starts[1:] < ends[:-1]).tolist():
        row = data[i + 1]
        reason = f"the map assigns them {ends[i] - starts[i + 1]} offsets below where the copies before them end"
        problems.append(RowProblem(DifferenceKind.REORDERED, int(rows.start[row]), int(rows.end[row]), reason))
    return problems


def released_problems(rows: MapRows, released: MapRows) -> Sequence[RowProblem]:
    """Return released rows that lie in no quarantined one, or in each other."""
    problems = []
    at = rows.row_of(released.start)
    is_within = (at >= 0) & (rows.kind[at] == QUARANTINED) & (released.end <= rows.end[at]) if len(rows) else at >= 0
    for i in np.flatnonzero(~is_within).tolist():
        reason = "the map says that they were released, and not that they were quarantined"
        problems.append(RowProblem(DifferenceKind.EXTRA, int(released.start[i]), int(released.end[i]), reason))
    for i in np.flatnonzero(released.start[1:] < released.end[:-1]).tolist():
        start = int(released.start[i + 1])
        end = min(int(released.end[i]), int(released.end[i + 1]))
        problems.append(RowProblem(DifferenceKind.EXTRA, start, end, "two rows of the map say that they were released"))
    return problems
