"""Everywhere: the whole batches of archived segments of one partition, in order of offsets, by ranged reads ahead.

A segment is read in windows: consecutive runs of its index, WINDOW_BYTES and `read_ahead_bytes` at most unless one run is larger.
Threads read windows while earlier ones are processed; `read_ahead_bytes` bounds what they hold. The buffer of a window is used
again once nothing views it: memory that is new to the process costs more than what is read into it. A run outside the wanted
offsets or times is never read. Every run is compared with its checksum in the row before anything is decoded: that of a batch
leaves out its base offset, and does not say that it is the batch that was archived.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from shallow_mirror.archive_format import AbortedTxn, IndexEntry, StoredBatches
from shallow_mirror.archive_reading.old_rows import DAMAGE_REMEDY, checked_runs, warn_of_unverified
from shallow_mirror.errors import ArchiveFormatError
from shallow_mirror.object_store import READ_BYTES, ObjectStore
from shallow_mirror.reused_buffers import ReusedBuffers
from shallow_mirror.types import Segment, SourcePartition
from shallow_mirror.wire import crc32c, verify_crcs
from shallow_mirror.wire.batches import BatchIndex, index_batches

WINDOW_BYTES = READ_BYTES
"""Of one window: what is decoded and handed over at once."""
READ_AHEAD_BYTES = 16 << 20
"""Held by windows that are read ahead; a reader holds the window that is processed as well."""
_READS_AHEAD = 4
_NO_END = (1 << 63) - 1


class StoredSegment(Protocol):
    """A row of an archive: DecidedSegment, ArchivedSegment."""

    @property
    def segment(self) -> Segment: ...

    @property
    def stored(self) -> StoredBatches | None: ...


@dataclass(frozen=True, slots=True)
class SegmentBatches:
    """Whole batches of one archived segment that hold offsets of [start, end)."""

    records: memoryview
    """Writable, and valid as long as held."""
    index: BatchIndex
    aborted: tuple[tuple[int, int], ...]
    """As in a Fetch response, (producer id, first offset) of aborted transactions that reach into these batches."""
    segment: StoredSegment
    start: int
    """The first batch may begin below it: those records are not wanted."""
    end: int
    """The last batch may end behind it: nor are those."""

    @property
    def source(self) -> SourcePartition:
        return self.segment.segment.source

    def batch(self, i: int) -> memoryview:
        start = int(self.index.pos[i])
        return self.records[start : start + int(self.index.size_bytes[i])]


@dataclass(frozen=True, slots=True)
class _Window:
    """Runs [first, end) of the index of one segment. `crcs`: of all its runs; None if they are not known."""

    segment: StoredSegment
    stored: StoredBatches
    crcs: Sequence[int] | None
    first: int
    end: int

    @property
    def runs(self) -> Sequence[IndexEntry]:
        return self.stored.index[self.first : self.end]

    @property
    def size_bytes(self) -> int:
        return sum(run.size_bytes for run in self.runs)


class SegmentReader:
    """Iterate over the batches of [start_offset, end_offset) of one partition. Each iteration reads again.

    `segments`: of one partition, in any order, without those that are being deleted; those without batches have none. With
    `min_timestamp_ms` runs are left out whose records are all older. With `is_read_once` a folder's page cache does not keep
    the pages. Readers that follow each other may share `buffers`.

    Every byte is compared with the checksums of its row. `verifies_batches`: also each batch with its own checksum, which a
    batch that was damaged at the source does not match. Rows of format 1.0 are read as a whole first; with
    `trusts_old_offsets` those that are read in part are verified by the checksums of their batches alone, which is logged.
    """

    def __init__(
        self,
        store: ObjectStore,
        segments: Sequence[StoredSegment],
        start_offset: int = 0,
        end_offset: int = _NO_END,
        read_ahead_bytes: int = READ_AHEAD_BYTES,
        *,
        min_timestamp_ms: int | None = None,
        verifies_batches: bool = True,
        trusts_old_offsets: bool = False,
        is_read_once: bool = False,
        buffers: ReusedBuffers | None = None,
    ) -> None:
        if len({segment.segment.source for segment in segments}) > 1:
            raise ValueError("the segments belong to several partitions")
        self._store = store
        self._segments = sorted(segments, key=lambda segment: segment.segment.source_start)
        self._start = start_offset
        self._end = end_offset
        self._read_ahead_bytes = read_ahead_bytes
        self._min_timestamp_ms = min_timestamp_ms
        self._verifies_batches = verifies_batches
        self._trusts_old_offsets = trusts_old_offsets
        self._is_read_once = is_read_once
        self._buffers = ReusedBuffers() if buffers is None else buffers
        self._window_bytes = min(WINDOW_BYTES, read_ahead_bytes)

    def __iter__(self) -> Generator[SegmentBatches]:
        """Yield batches; close it to end its reads.

        Raises ArchiveFormatError, ObjectMissingError, StoreUnreachableError, ConfigError.
        """
        row_checksum = _RowChecksum()
        for window, records, index in self._read_windows():
            if window.crcs is None:
                row_checksum.add(window, records)
            batches = self._wanted(window, records, index)
            if batches is not None:
                yield batches

    def _read_windows(self) -> Iterator[tuple[_Window, memoryview, BatchIndex]]:
        """Yield windows in order, while those behind them are read."""
        ahead: deque[tuple[_Window, Future[tuple[memoryview, BatchIndex]]]] = deque()
        ahead_bytes = 0
        pool = ThreadPoolExecutor(_READS_AHEAD, thread_name_prefix="archive-reader")
        try:
            for window in self._windows():
                while ahead and ahead_bytes + window.size_bytes > self._read_ahead_bytes:
                    before, read = ahead.popleft()
                    ahead_bytes -= before.size_bytes
                    yield before, *read.result()
                ahead.append((window, pool.submit(self._read, window)))
                ahead_bytes += window.size_bytes
            while ahead:
                before, read = ahead.popleft()
                yield before, *read.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _windows(self) -> Iterator[_Window]:
        for segment in self._segments:
            stored = segment.stored
            if stored is None:
                continue
            first, size = 0, 0
            wanted = self._wanted_runs(segment.segment, stored)
            crcs = self._crcs_of(segment.segment, stored) if any(wanted) else None
            for i, run in enumerate(stored.index):
                # A run that is left out ends a window: it may hold the marker of a transaction in front of it.
                if i > first and (not wanted[i] or size + run.size_bytes > self._window_bytes):
                    yield _Window(segment, stored, crcs, first, i)
                    first, size = i, 0
                if wanted[i]:
                    size += run.size_bytes
                else:
                    first = i + 1
            if first < len(stored.index):
                yield _Window(segment, stored, crcs, first, len(stored.index))

    def _crcs_of(self, segment: Segment, stored: StoredBatches) -> Sequence[int] | None:
        if stored.run_crc32c is not None:
            if len(stored.run_crc32c) != len(stored.index):
                detail = f"its row has {len(stored.run_crc32c)} checksums for {len(stored.index)} runs"
                raise ArchiveFormatError(stored.object_name, detail, "Write the table again with `archive verify --rebuild`")
            return stored.run_crc32c
        if self._trusts_old_offsets:
            warn_of_unverified(stored)
            return None
        return checked_runs(self._store, segment, stored, self._buffers, is_read_once=self._is_read_once)

    def _wanted_runs(self, segment: Segment, stored: StoredBatches) -> list[bool]:
        ends = [run.start_offset for run in stored.index[1:]] + [segment.source_end]
        # A segment that is clipped to the start of a later lineage has runs behind its end.
        wanted_end = min(self._end, segment.source_end)
        return [
            run.start_offset < wanted_end
            # The first run holds all that the row has below the second one.
            and end > self._start
            and (self._min_timestamp_ms is None or run.max_timestamp_ms >= self._min_timestamp_ms)
            for run, end in zip(stored.index, ends, strict=True)
        ]

    def _read(self, window: _Window) -> tuple[memoryview, BatchIndex]:
        """Return the bytes of a window, verified, and their batches."""
        ranges = [(run.position, run.size_bytes) for run in window.runs]
        records = self._buffers.take(window.size_bytes)
        self._store.read_into(window.stored.object_name, ranges, records, is_read_once=self._is_read_once)
        _compare(window, records)
        index = index_batches(records)
        if index.stop is not None or index.consumed_bytes != len(records):
            detail = "it ends inside of a batch" if index.stop is None else index.stop.detail
            raise _damaged(window, index.consumed_bytes, f"there is no record batch ({detail})")
        self._check(window, records, index)
        return records, index

    def _check(self, window: _Window, records: memoryview, index: BatchIndex) -> None:
        base, last = index.headers["base_offset"], index.last_offset
        run_start = 0
        for run in window.runs:
            i = int(np.searchsorted(index.pos, run_start))
            if i == len(index) or int(index.pos[i]) != run_start:
                raise _damaged(window, run_start, "a run of the index does not begin with a batch")
            if not base[i] <= run.start_offset <= last[i]:
                raise _damaged(window, run_start, f"the batch has base offset {base[i]}, the index says {run.start_offset}")
            run_start += run.size_bytes
        is_behind = (last < base) | np.append(False, base[1:] <= last[:-1])
        if is_behind.any():
            raise _damaged(window, int(index.pos[int(is_behind.argmax())]), "the offsets of the batches do not rise")
        if self._verifies_batches and not (is_whole := verify_crcs(records, index.pos, index.headers)).all():
            i = int(is_whole.argmin())
            raise _damaged(window, int(index.pos[i]), f"the checksum of the batch at offset {base[i]} does not match")

    def _wanted(self, window: _Window, records: memoryview, index: BatchIndex) -> SegmentBatches | None:
        """Return the batches of a window that hold wanted offsets; None if none does."""
        segment = window.segment.segment
        start, end = max(self._start, segment.source_start), min(self._end, segment.source_end)
        base, last = index.headers["base_offset"], index.last_offset
        first, behind = int(np.searchsorted(last, start)), int(np.searchsorted(base, end))
        if first >= behind:
            return None
        begin = int(index.pos[first])
        size = int(index.pos[behind - 1] + index.size_bytes[behind - 1]) - begin
        part = slice(first, behind)
        return SegmentBatches(
            records[begin : begin + size],
            BatchIndex(index.pos[part] - begin, index.size_bytes[part], index.headers[part], None, size),
            aborted_between(window.stored.aborted, int(base[first]), int(last[behind - 1])),
            window.segment,
            start,
            end,
        )


def aborted_between(aborted: Sequence[AbortedTxn], first: int, last: int) -> tuple[tuple[int, int], ...]:
    """Return the aborted transactions with offsets of [first, last], as a Fetch response lists them."""
    return tuple(
        (txn.producer_id, txn.first_offset)
        for txn in aborted
        if txn.first_offset <= last and (txn.last_offset is None or txn.last_offset >= first)
    )


def _compare(window: _Window, records: memoryview) -> None:
    """Raise ArchiveFormatError if a run differs from the archived one."""
    if window.crcs is None:
        return
    run_start = 0
    for run, expected in zip(window.runs, window.crcs[window.first : window.end], strict=True):
        if crc32c(records[run_start : run_start + run.size_bytes]) != expected:
            raise _damaged(window, run_start, f"the checksum of the {run.size_bytes} bytes from there does not match")
        run_start += run.size_bytes


class _RowChecksum:
    """The checksum of a segment without those of its runs, as long as no run of it was left out."""

    def __init__(self) -> None:
        self._segment: StoredSegment | None = None
        self._end = 0
        self._crc32c = 0

    def add(self, window: _Window, records: memoryview) -> None:
        """Raise ArchiveFormatError at the last window of a segment whose bytes are not those that its row was made of."""
        if window.first == 0:
            self._segment, self._end, self._crc32c = window.segment, 0, 0
        if window.segment is not self._segment or window.first != self._end:
            self._segment = None
            return
        self._end, self._crc32c = window.end, crc32c(records, self._crc32c)
        if self._end == len(window.stored.index) and self._crc32c != window.stored.crc32c:
            raise _damaged(window, 0, "the checksum of all its batches of this partition does not match", is_row=True)


def _damaged(window: _Window, pos: int, detail: str, *, is_row: bool = False) -> ArchiveFormatError:
    """Return the error of an object. `pos`: in the bytes of the window. `is_row`: all offsets of the row are concerned."""
    position, segment = pos, window.segment.segment
    start, end = segment.source_start, segment.source_end
    for number, run in enumerate(window.runs, window.first):
        if position < run.size_bytes:
            position += run.position
            if not is_row and number > 0:
                start = run.start_offset
            if not is_row and number + 1 < len(window.stored.index):
                end = min(end, window.stored.index[number + 1].start_offset)
            break
        position -= run.size_bytes
    offsets = f"offsets {start} to {end - 1} of {segment.source.topic_partition} lie in it"
    return ArchiveFormatError(window.stored.object_name, f"byte {position}: {detail}; {offsets}", DAMAGE_REMEDY)
