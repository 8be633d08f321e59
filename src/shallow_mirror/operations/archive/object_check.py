"""Driver, for the cli: one object of an archive against its rows. Memory: READ_BYTES and the largest run, per object."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from shallow_mirror.archive_format import TAIL_BYTES, ArchivedSegment, IndexEntry, ObjectFooter, footer_size, parse_footer
from shallow_mirror.checkpoints.rows import ArchiveRow
from shallow_mirror.errors import ArchiveFormatError, ObjectMissingError
from shallow_mirror.object_store import READ_BYTES, ObjectStore
from shallow_mirror.operations.archive.findings import Finding, FindingKind
from shallow_mirror.types import Segment
from shallow_mirror.wire import CONTROL_BIT, crc32c, joined_crc, verify_crcs
from shallow_mirror.wire.batches import index_batches


def read_footer(store: ObjectStore, name: str) -> ObjectFooter:
    """Raise ObjectMissingError, ArchiveFormatError, ConfigError (a newer release wrote it), StoreUnreachableError."""
    tail = store.tail(name, TAIL_BYTES)
    size_bytes = footer_size(name, tail)
    return parse_footer(name, tail if size_bytes <= len(tail) else store.tail(name, size_bytes))


def check_object(store: ObjectStore, name: str, rows: Sequence[ArchiveRow], *, is_deep: bool) -> list[Finding]:
    """Return the damage of an object, at most one finding for each of its rows and one for its footer.

    `rows`: all that name it. Raises ConfigError, StoreUnreachableError: the store, and not the object.
    """
    size = store.size(name)
    if size is None:
        ranges = ", ".join(_range_of(row.segment) for row in rows[:3])
        more = f" and of {len(rows) - 3:,} more partitions" if len(rows) > 3 else ""
        return [Finding(FindingKind.MISSING, name, f"the object does not exist; it has {ranges}{more}")]
    findings: list[Finding] = []
    try:
        findings += _check_rows(store, name, size, rows, is_deep=is_deep)
        if is_deep:
            findings += _check_footer(store, name, size, rows)
    except ObjectMissingError as error:  # it became shorter, or was deleted, since its size was asked for
        findings.append(Finding(FindingKind.DAMAGED, name, error.reason))
    except ArchiveFormatError as error:
        findings.append(Finding(FindingKind.DAMAGED, name, error.detail))
    return findings


def _check_rows(store: ObjectStore, name: str, size: int, rows: Sequence[ArchiveRow], *, is_deep: bool) -> list[Finding]:
    checks, findings = [_RowCheck(row, is_deep=is_deep) for row in rows], []
    for check in checks:
        check.check_index(size)
    for check, content in _runs(store, name, [check for check in checks if check.problem is None]):
        check.add(content)
    for check in checks:
        problem = check.end()
        if problem is not None:
            detail = f"{_range_of(check.segment)}: {problem}"
            findings.append(Finding(FindingKind.DAMAGED, name, detail, check.segment.size_bytes))
    return findings


def _runs(store: ObjectStore, name: str, checks: Sequence[_RowCheck]) -> Iterator[tuple[_RowCheck, memoryview]]:
    """Read the runs of all rows in the order of the object, READ_BYTES at once."""
    runs = sorted(((entry, check) for check in checks for entry in check.index), key=lambda run: run[0].position)
    gathered: list[tuple[IndexEntry, _RowCheck]] = []
    for run in runs:
        if gathered and sum(entry.size_bytes for entry, _ in gathered) + run[0].size_bytes > READ_BYTES:
            yield from _read(store, name, gathered)
            gathered = []
        gathered.append(run)
    if gathered:
        yield from _read(store, name, gathered)


def _read(store: ObjectStore, name: str, runs: Sequence[tuple[IndexEntry, _RowCheck]]) -> Iterator[tuple[_RowCheck, memoryview]]:
    contents = store.read_ranges(name, [(entry.position, entry.size_bytes) for entry, _ in runs], max_concurrency=2)
    for (_, check), content in zip(runs, contents, strict=True):
        yield check, memoryview(content)


class _RowCheck:
    """One row while its runs are read; `problem` is the first one that was found."""

    def __init__(self, row: ArchiveRow, *, is_deep: bool) -> None:
        assert row.stored is not None
        self.segment = row.segment
        self.index = row.stored.index
        self.problem: str | None = None
        self._expected_crc = row.stored.crc32c
        self._expected_crcs = row.stored.run_crc32c
        self._is_deep = is_deep
        self._crcs: list[int] = []
        self._next_offset = 0
        self._batches = self._records = 0

    def check_index(self, object_size: int) -> None:
        """Check the row itself. Its bytes are not read if its index cannot be right."""
        index = self.index
        if not index or sum(entry.size_bytes for entry in index) != self.segment.size_bytes:
            self.problem = f"its index has other bytes than the {self.segment.size_bytes:,} of the row"
        elif any(b.start_offset <= a.start_offset or b.position < a.position + a.size_bytes for a, b in pairwise(index)):
            self.problem = "the runs of its index do not rise"
        elif index[0].start_offset < self.segment.source_start or index[-1].start_offset >= self.segment.source_end:
            self.problem = "its index reaches beyond its offsets"
        elif self._expected_crcs is not None and len(self._expected_crcs) != len(index):
            self.problem = f"it has {len(self._expected_crcs):,} checksums for {len(index):,} runs"
        elif index[-1].position + index[-1].size_bytes > object_size:
            end = index[-1].position + index[-1].size_bytes
            self.problem = f"the object has {object_size:,} bytes, the row ends at {end:,}"

    def add(self, content: memoryview) -> None:
        """Take the next run. Runs of a row come in the order of its index, which rises by position."""
        number, entry = len(self._crcs), self.index[len(self._crcs)]
        self._crcs.append(crc32c(content))
        if self._is_deep and self.problem is None:
            self.problem = self._problem_of_batches(entry, content)
        if self.problem is None and self._expected_crcs is not None and self._crcs[-1] != self._expected_crcs[number]:
            self.problem = f"the checksum of its bytes from offset {entry.start_offset} does not match"

    def end(self) -> str | None:
        if self.problem is None and joined_crc(self._crcs, [entry.size_bytes for entry in self.index]) != self._expected_crc:
            self.problem = "the checksum of its bytes does not match"
        if self.problem is None and self._is_deep:
            counted = self._batches, self._records
            if counted != (self.segment.batch_count, self.segment.record_count):
                self.problem = f"it holds {self._batches:,} batches with {self._records:,} records, the row says otherwise"
        return self.problem

    def _problem_of_batches(self, entry: IndexEntry, content: memoryview) -> str | None:
        batches = index_batches(content)
        if batches.consumed_bytes != len(content):
            return f"no record batch at byte {entry.position + batches.consumed_bytes:,} of the object"
        base_offsets, last_offsets = batches.headers["base_offset"].astype(np.int64), batches.last_offset
        is_right = verify_crcs(content, batches.pos, batches.headers)
        if not is_right.all():
            first = int(np.flatnonzero(~is_right)[0])
            return f"the batch at offset {base_offsets[first]} does not match its own checksum"
        starts = base_offsets.copy()
        starts[0] = max(starts[0], self.segment.source_start) if self._batches == 0 else starts[0]
        if starts[0] != entry.start_offset:
            return f"the run at offset {entry.start_offset} begins with the batch at offset {base_offsets[0]}"
        floors = np.append(max(self._next_offset, self.segment.source_start), last_offsets[:-1] + 1)
        if (starts < floors).any() or (last_offsets < starts).any() or last_offsets[-1] >= self.segment.source_end:
            return f"the offsets of its batches do not rise, or reach beyond it, in the run at offset {entry.start_offset}"
        self._next_offset = int(last_offsets[-1]) + 1
        is_data = batches.headers["attributes"] & CONTROL_BIT == 0
        self._batches += len(batches)
        self._records += int(np.maximum(batches.headers["records_count"], 0)[is_data].sum())
        return None


def _check_footer(store: ObjectStore, name: str, size: int, rows: Sequence[ArchiveRow]) -> list[Finding]:
    """Compare the footer with the rows. It repeats gaps as well, which name no object."""
    footer = read_footer(store, name)
    expected_size = sum(row.segment.size_bytes for row in footer.rows if row.stored is not None) + footer.size_bytes
    if size != expected_size:
        return [Finding(FindingKind.DAMAGED, name, f"it has {size:,} bytes, {expected_size:,} by its footer")]
    expected = {row.segment.source: ArchivedSegment(row.segment, row.stored) for row in rows}
    in_footer = {row.segment.source: row for row in footer.rows if row.stored is not None}
    differing = [source for source in sorted(expected.keys() | in_footer.keys()) if expected.get(source) != in_footer.get(source)]
    if not differing:
        return []
    return [Finding(FindingKind.DAMAGED, name, f"its footer has another row of {differing[0].topic_partition} than the table")]


def _range_of(segment: Segment) -> str:
    return f"offsets {segment.source_start} to {segment.source_end - 1} of {segment.source.topic_partition}"
