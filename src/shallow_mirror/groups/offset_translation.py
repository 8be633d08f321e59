"""Pure: translate committed offsets to the other side of a mirror, in bulk: many of them, the map read once.

A committed offset c is the NEXT offset to read. With S the copied records of a partition and T(s) the offset of the copy of s,
the result t for c up to the position (the end of the rows) obeys, whatever c points at (a record, a hole, a marker, an aborted or
quarantined batch, what expired, the start, the exact end):

A  Nothing is missed: every copied record s >= c, and every one that is copied later, has T(s) >= t.
B  Nothing is repeated: no copied record s < c has T(s) >= t. Records released from quarantine are behind their neighbours, so
   that A and B may contradict each other: A holds then, and what is repeated is counted.
C  t is monotonic in c.
D  Rows that come later change no result in a way that a reader would notice.

So t is the lowest offset of the copy of a record s >= c, and behind the last copied record where there is none. Above the
position nothing is known: the records in between may come yet. Failing back is the same with the roles of the sides exchanged.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from shallow_mirror.types import SegmentKind, SourcePartition, TargetPartition

Side = Literal["source", "target"]

_KEYS = ("source_topic", "source_topic_id", "source_partition", "target_topic", "target_topic_id", "target_partition")
_NUMBERS = ("source_start", "source_end", "target_start", "target_end", "record_count", "micro_batch")
_WRITERS = ("transactional_id", "target_producer_id")
COMMIT_COLUMNS = [*_KEYS, *_NUMBERS, "kind", *_WRITERS]

_NEVER = np.iinfo(np.int64).max

_KINDS = {kind: number for number, kind in enumerate((SegmentKind.DATA, SegmentKind.RELEASED, SegmentKind.QUARANTINED))}
_KINDS |= {kind: len(_KINDS) for kind in SegmentKind if kind not in _KINDS}
"""Kinds that are copied come first; those that say nothing of target offsets share a number."""


class Commit(NamedTuple):
    """An offset of a partition that the map calls `source`: of the source's log, or of the target's when failing back."""

    source: SourcePartition
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The map of one source partition: rows cover [start, position); copies of it lie below `target_end`.

    `target_end` and `source_end` are 0 as long as nothing was copied. `first_micro_batch` orders incarnations of a topic.
    `is_preserved`: every offset of the source leads to itself, also if no row says so yet.
    """

    target: TargetPartition
    start: int
    position: int
    source_end: int
    target_end: int
    first_micro_batch: int
    is_preserved: bool = False


class TranslatedOffset(NamedTuple):
    """The translation of one commit. `is_end`: no copied record lies at or above it."""

    offset: int
    is_end: bool


class Quarantined(NamedTuple):
    source_start: int
    source_end: int
    record_count: int


class Released(NamedTuple):
    source_start: int
    source_end: int
    target_start: int

    def offset_of(self, commit: int, side: Side) -> int | None:
        """Return the offset of the copy of its first record at or above the commit; None if there is none."""
        start, leads_to = self.source_start, self.target_start
        if side == "target":
            start, leads_to = leads_to, start
        distance = max(0, commit - start)
        return leads_to + distance if distance < self.source_end - self.source_start else None


@dataclass(slots=True)
class _Line:
    """A line while rows are added. Of each commit: where its first row of kind data ends and leads to, and its micro-batch."""

    commits: NDArray[np.int64]
    best: NDArray[np.int64]
    first_end: NDArray[np.int64]
    found_in: NDArray[np.int64]
    target: TargetPartition
    last_micro_batch: int = -1
    start: int = _NEVER
    position: int = -1
    source_end: int = 0
    target_end: int = 0
    first_micro_batch: int = _NEVER
    shared_in: int = -1
    """The last micro-batch that wrote with a shared producer id, and with a transaction; -1: none did."""
    written_in: int = -1
    released: dict[int, Released] = field(default_factory=dict)
    quarantined: dict[int, Quarantined] = field(default_factory=dict)
    before: _Line | None = None
    best_of: dict[int, int] | None = None
    """`best` by commit, for single ones; None: rows were added since it was made."""

    @classmethod
    def of(cls, target: TargetPartition, commits: NDArray[np.int64]) -> _Line:
        unknown = np.full(len(commits), _NEVER)
        return cls(commits, unknown, unknown.copy(), unknown.copy(), target)

    def continue_with(self, commits: NDArray[np.int64]) -> _Line:
        """Return a line for other commits. Known translations are kept: later copies are behind them."""
        after = replace(_Line.of(self.target, commits), **{name: getattr(self, name) for name in _KEPT}, before=self)
        self.before = None
        if len(self.commits):
            at = np.minimum(np.searchsorted(self.commits, commits), len(self.commits) - 1)
            is_same = self.commits[at] == commits
            for name in ("best", "first_end", "found_in"):
                getattr(after, name)[is_same] = getattr(self, name)[at][is_same]
        return after

    def starts_at(self, commit: int, unseen: int) -> int:
        """Return the first micro-batch that may change a translation, by that of the last commit that is not above it."""
        if commit >= self.source_end:
            return unseen
        at = int(np.searchsorted(self.commits, commit, side="right")) - 1
        if at < 0:
            return 0
        if self.commits[at] == commit and self.best[at] != _NEVER:
            return unseen
        return int(min(self.found_in[at], unseen))


_KEPT = (
    "last_micro_batch", "start", "position", "source_end", "target_end", "first_micro_batch", "shared_in", "written_in",
    "released", "quarantined"
)  # fmt: skip


class CommitTranslator:
    """Take rows in any order and in pieces of any size, also twice. Holds a few numbers for each partition and commit."""

    def __init__(self, commits: Iterable[Commit], side: Side = "source") -> None:
        """`side`: whose offsets the commits are."""
        self._side: Side = side
        offsets: defaultdict[SourcePartition, set[int]] = defaultdict(set)
        for commit in commits:
            offsets[commit.source].add(commit.offset)
        self._commits: dict[SourcePartition, NDArray[np.int64]] = {
            source: np.array(sorted(of_partition), np.int64) for source, of_partition in offsets.items()
        }
        self._topics = {source.topic for source in self._commits}
        self._covered: set[str] = set()
        self._lines: dict[SourcePartition, _Line] = {}

    def add(self, rows: pa.Table) -> None:
        """Add COMMIT_COLUMNS of settled rows. Those of other topics are skipped."""
        for source, target, part in _by_line(rows, self._topics):
            self._add(self._line(source, target), target, part)

    def _line(self, source: SourcePartition, target: TargetPartition) -> _Line:
        if source not in self._lines:
            self._lines[source] = _Line.of(target, self._commits.get(source, np.zeros(0, np.int64)))
        return self._lines[source]

    def _add(self, line: _Line, target: TargetPartition, part: _Part) -> None:
        line.best_of = None
        last = int(part.micro_batch.max())
        if last > line.last_micro_batch:
            line.last_micro_batch, line.target = last, target
        line.first_micro_batch = min(line.first_micro_batch, int(part.micro_batch.min()))
        line.shared_in = max(line.shared_in, int(part.micro_batch[part.is_shared].max(initial=-1)))
        line.written_in = max(line.written_in, int(part.micro_batch[part.is_written].max(initial=-1)))
        line.start = min(line.start, int(part.source_start.min()))
        line.position = max(line.position, int(part.source_end.max()))
        data = part.of(SegmentKind.DATA)
        if len(data):
            line.source_end = max(line.source_end, int(data.source_end.max()))
            line.target_end = max(line.target_end, int(data.target_end.max()))
            if len(line.commits):
                _find_nearest(line, data, self._side)
        if (part.kind == _KINDS[SegmentKind.RELEASED]).any():
            released = part.of(SegmentKind.RELEASED)
            line.source_end = max(line.source_end, int(released.source_end.max()))
            line.target_end = max(line.target_end, int(released.target_end.max()))
            spans = zip(released.source_start.tolist(), released.source_end.tolist(), released.target_start.tolist(), strict=True)
            line.released.update({start: Released(start, end, target_start) for start, end, target_start in spans})
        if (part.kind == _KINDS[SegmentKind.QUARANTINED]).any():
            quarantined = part.of(SegmentKind.QUARANTINED)
            spans = zip(
                quarantined.source_start.tolist(), quarantined.source_end.tolist(), quarantined.record_count.tolist(), strict=True
            )
            line.quarantined.update({start: Quarantined(start, end, count) for start, end, count in spans})

    def lines(self) -> dict[SourcePartition, Line]:
        """Return the line of every incarnation of the topics of the commits."""
        return {
            source: Line(
                target=rows.target,
                start=rows.start,
                position=rows.position,
                source_end=rows.source_end,
                target_end=rows.target_end,
                first_micro_batch=rows.first_micro_batch,
                is_preserved=rows.shared_in > rows.written_in,
            )
            for source, rows in self._lines.items()
        }

    def continue_with(self, commits: Iterable[Commit]) -> CommitTranslator:
        """Return a translator for later commits of the source, with the known partitions."""
        after = CommitTranslator(commits, self._side)
        after._covered = self._topics
        for source, line in self._lines.items():
            if source.topic in after._topics:
                after._lines[source] = line.continue_with(after._commits.get(source, np.zeros(0, np.int64)))
        return after

    def reads_from(self) -> int:
        """Return the first micro-batch whose rows have to be added; 0: all of them. To be called before any is added."""
        unseen = 1 + max((line.last_micro_batch for line in self._lines.values()), default=-1)
        first = unseen
        for source, commits in self._commits.items():
            if source.topic not in self._covered:
                return 0
            line = self._lines.get(source)
            if line is not None and line.before is not None:
                first = min([first, *(line.before.starts_at(commit, unseen) for commit in commits.tolist())])
        return first

    def translate(self, commit: Commit) -> TranslatedOffset:
        """Return the offset at which to continue; above the position, the known end.

        Raises KeyError without a line, and for a commit that is not one of those.
        """
        line = self._lines[commit.source]
        if line.best_of is None:
            line.best_of = dict(zip(line.commits.tolist(), line.best.tolist(), strict=True))
        offset = line.best_of[commit.offset]
        # Released records lie behind their neighbours, so a later one may have the lowest offset of all that are missing.
        for released in line.released.values():
            candidate = released.offset_of(commit.offset, self._side)
            offset = offset if candidate is None else min(offset, candidate)
        if offset == _NEVER:
            return TranslatedOffset(offset=self._end_of(commit.source), is_end=True)
        return TranslatedOffset(offset=offset, is_end=False)

    def _end_of(self, source: SourcePartition) -> int:
        """Return the end of the last copied record on the other side. Of an incarnation without any: that of older ones."""
        line = self._lines[source]
        if self._side == "target":
            return line.source_end or line.start
        topic_partition, first = line.target.topic_partition, line.first_micro_batch
        before = (
            older
            for older in self._lines.values()
            if older.target.topic_partition == topic_partition and older.first_micro_batch <= first
        )
        return line.target_end or max(older.target_end for older in before)

    def withheld(self, commit: Commit) -> int:
        """Count the records in quarantine at or above a commit of the source, at most: readers of the target do not see them."""
        line = self._lines[commit.source]
        count = 0
        for quarantined in line.quarantined.values():
            if quarantined.source_end > commit.offset and not any(
                quarantined.source_start <= at < quarantined.source_end for at in line.released
            ):
                count += min(quarantined.record_count, quarantined.source_end - max(commit.offset, quarantined.source_start))
        return count

    def may_repeat(self) -> bool:
        """Return whether there is anything for a `RepeatCounter` to count."""
        return any(line.released and len(line.commits) for line in self._lines.values())


class RepeatCounter:
    """Count in a second pass over the rows how many copied records below each commit are at or above its translation. See B."""

    def __init__(self, offsets: Mapping[Commit, int], side: Side = "source") -> None:
        self._side: Side = side
        self._offsets: dict[SourcePartition, list[tuple[Commit, int]]] = defaultdict(list)
        for commit, offset in offsets.items():
            self._offsets[commit.source].append((commit, offset))
        self.counts = dict.fromkeys(offsets, 0)

    def add(self, rows: pa.Table) -> None:
        for source, _, part in _by_line(rows, {source.topic for source in self._offsets}):
            starts, ends, leads_to = part.of(SegmentKind.DATA, SegmentKind.RELEASED).line(self._side)
            for commit, offset in self._offsets.get(source, ()):
                first, end = np.maximum(starts, starts + (offset - leads_to)), np.minimum(ends, commit.offset)
                self.counts[commit] += int(np.maximum(0, end - first).sum())


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of one line as columns. Offsets of the target are -1 where a row has none."""

    source_start: NDArray[np.int64]
    source_end: NDArray[np.int64]
    target_start: NDArray[np.int64]
    target_end: NDArray[np.int64]
    record_count: NDArray[np.int64]
    micro_batch: NDArray[np.int64]
    kind: NDArray[np.int8]
    """Numbers of _KINDS."""
    is_shared: NDArray[np.bool_]
    """Whether a row was written with a shared producer id: with preserved offsets."""
    is_written: NDArray[np.bool_]
    """Whether a row was written in a transaction."""

    def __len__(self) -> int:
        return len(self.kind)

    def of(self, first: SegmentKind, last: SegmentKind | None = None) -> _Part:
        """Return the rows of a kind, or of those of _KINDS from `first` to `last`."""
        low, high = _KINDS[first], _KINDS[last or first]
        return self.take((low <= self.kind) & (self.kind <= high))

    def take(self, which: NDArray[np.bool_] | NDArray[np.int64] | slice) -> _Part:
        return _Part(
            self.source_start[which],
            self.source_end[which],
            self.target_start[which],
            self.target_end[which],
            self.record_count[which],
            self.micro_batch[which],
            self.kind[which],
            self.is_shared[which],
            self.is_written[which],
        )

    def line(self, side: Side) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return starts and ends on a side, and the start of each on the other."""
        if side == "source":
            return self.source_start, self.source_end, self.target_start
        return self.target_start, self.target_end, self.source_start


def _find_nearest(line: _Line, data: _Part, side: Side) -> None:
    """Take the first row of kind data that ends above each commit. Offsets rise along such rows, so no later one is lower."""
    starts, ends, leads_to = data.line(side)
    order = np.argsort(ends, kind="stable")
    at = np.searchsorted(ends, line.commits, side="right", sorter=order)
    matched = np.flatnonzero(at < len(ends))
    row = order[at[matched]]
    is_nearer = ends[row] < line.first_end[matched]  # rows come in any order: an earlier piece may hold a nearer one
    matched, row = matched[is_nearer], row[is_nearer]
    line.first_end[matched], line.found_in[matched] = ends[row], data.micro_batch[row]
    line.best[matched] = leads_to[row] + np.maximum(0, line.commits[matched] - starts[row])


def _by_line(rows: pa.Table, topics: set[str]) -> Iterable[tuple[SourcePartition, TargetPartition, _Part]]:
    """Yield the rows of source topics, a part for every partition, incarnation and target."""
    columns = [rows.column(name).combine_chunks().dictionary_encode() for name in _KEYS] if rows.num_rows else []
    if not columns:
        return
    codes = np.zeros(rows.num_rows, np.int64)
    for column in columns:
        codes = np.unique(codes * len(column.dictionary) + column.indices.to_numpy(), return_inverse=True)[1].astype(np.int64)
    order = np.argsort(codes, kind="stable")
    bounds = np.append(np.flatnonzero(np.diff(codes[order], prepend=-1)), len(order))
    ordered = _rows_as_columns(rows).take(order)
    firsts = order[bounds[:-1]]
    names = [column.dictionary.take(column.indices.take(pa.array(firsts))).to_pylist() for column in columns]
    for *key, first, end in zip(*names, bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        if key[0] in topics:
            yield SourcePartition(*key[:3]), TargetPartition(*key[3:]), ordered.take(slice(first, end))


def _rows_as_columns(rows: pa.Table) -> _Part:
    numbers = {name: np.asarray(rows.column(name).fill_null(-1).to_numpy(), np.int64) for name in _NUMBERS}
    kinds = rows.column("kind").cast(pa.string()).combine_chunks().dictionary_encode()
    kind_numbers = np.array([_KINDS[SegmentKind(name)] for name in kinds.dictionary.to_pylist()], np.int8)
    is_written = np.asarray(rows.column("transactional_id").is_valid().to_numpy(), np.bool_)
    is_shared = np.asarray(rows.column("target_producer_id").is_valid().to_numpy(), np.bool_) & ~is_written
    return _Part(**numbers, kind=kind_numbers[kinds.indices.to_numpy()], is_shared=is_shared, is_written=is_written)
