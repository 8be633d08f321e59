"""Pure: segments: what became of every source offset of one partition in one micro-batch, merged into as few rows as possible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from shallow_mirror.types import Segment, SegmentKind, SourcePartition, TargetPartition
from shallow_mirror.wire import CONTROL_BIT
from shallow_mirror.wire.batches import Admission, BatchIndex, Verdict, kind_of
from shallow_mirror.wire.records import Rewritten

_SKIPPED = (Verdict.DROP_BELOW, Verdict.BEYOND)
_REBUILT = "rebuilt"
"""In the key of a row: raw and rebuilt batches do not merge, so that `verify` opens the rebuilt ones only."""

_NOTHING_REWRITTEN: Mapping[int, Rewritten] = MappingProxyType({})


@dataclass(slots=True)
class _Row:
    """A segment that may still grow. Segments of equal `key` and adjacent offsets merge."""

    key: tuple[object, ...]
    kind: SegmentKind
    start: int
    end: int
    target_start: int | None = None
    record_count: int = 0
    batch_count: int = 0
    rebuilt_batch_count: int = 0
    size_bytes: int = 0
    max_timestamp_ms: int | None = None
    source_leader_epoch: int | None = None
    """None as well where the row continues behind its last batch: it says how far that epoch reaches."""
    source_producer_id: int | None = None
    source_producer_epoch: int | None = None
    coordinator_epoch: int | None = None


class SegmentBuilder:
    """Cover [position, next position) of one source partition without hole or overlap (checked by `build`).

    Neighbouring batches of the same kind and the same target - source shift become one row. Transaction markers, and batches
    that are quarantined, get a row each. Offsets between batches, and batches that hold nothing, are gaps. A batch that was
    rewritten, alone or as one with others, has a row for every run of offsets that it holds, and gaps between them; the first one
    counts it.
    """

    def __init__(self, source: SourcePartition, target: TargetPartition, position: int, *, lineage: int = 0) -> None:
        self._source, self._target, self._start, self._position = source, target, position, position
        self._lineage = lineage
        self._rows: list[_Row] = []

    @property
    def segment_count(self) -> int:
        return len(self._rows)

    @property
    def position(self) -> int:
        """Return the source offset behind the segments recorded so far."""
        return self._position

    def add(
        self,
        index: BatchIndex,
        admission: Admission,
        target_base_offsets: Sequence[int],
        rewritten: Mapping[int, Rewritten] = _NOTHING_REWRITTEN,
        *,
        end: int | None = None,
    ) -> None:
        """Add the batches of an index. `target_base_offsets`: target offsets of those that were sent, in order.

        A batch that is not in `rewritten` was sent as one. Only the batches in front of the `end`-th are recorded, None: all.
        All that was sent has to be of these, else ValueError: a batch on the target without a row would be copied again.
        """
        end = len(index) if end is None else end
        is_raw = admission.verdicts == Verdict.RAW
        is_raw[list(rewritten)] = False
        is_raw[end:] = False
        sent, done = 0, 0
        for first, behind in index.adjacent_runs(is_raw):
            sent = self._add_individually(range(done, first), index, admission, target_base_offsets, rewritten, sent)
            self._add_raw(first, behind, index, target_base_offsets[sent : sent + behind - first])
            sent, done = sent + behind - first, behind
        sent = self._add_individually(range(done, end), index, admission, target_base_offsets, rewritten, sent)
        if sent != len(target_base_offsets):
            raise ValueError(f"{self._source}: {len(target_base_offsets)} target offsets of {sent} batches that were sent")

    def _add_raw(self, first: int, end: int, index: BatchIndex, target_base_offsets: Sequence[int]) -> None:
        """Add raw batches that are adjacent on the source; those that are adjacent on the target as well share a row."""
        headers = index.headers[first:end]
        shift = np.array(target_base_offsets, np.int64) - headers["base_offset"]
        starts = np.append(0, np.flatnonzero(np.diff(shift)) + 1)
        lasts = np.append(starts[1:], end - first) - 1
        for start, last, records, size in zip(
            starts.tolist(),
            lasts.tolist(),
            np.add.reduceat(headers["records_count"], starts, dtype=np.int64).tolist(),
            np.add.reduceat(index.size_bytes[first:end], starts).tolist(),
            strict=True,
        ):
            base, key = int(headers["base_offset"][start]), (SegmentKind.DATA, int(shift[start]))
            row = _Row(key, SegmentKind.DATA, base, int(index.last_offset[first + last]) + 1, target_base_offsets[start], records)
            row.batch_count, row.size_bytes = last - start + 1, size
            row.max_timestamp_ms = int(headers["max_timestamp"][last])
            row.source_leader_epoch = int(headers["partition_leader_epoch"][last])
            self._append(row)

    def _add_individually(
        self,
        which: range,
        index: BatchIndex,
        admission: Admission,
        target_base_offsets: Sequence[int],
        rewritten: Mapping[int, Rewritten],
        sent: int,
    ) -> int:
        """Add batches of all other kinds, each with its own rows. `sent`: how many batches were sent before these.

        Returns how many were sent with them.
        """
        if not which:
            return sent
        chosen = slice(which.start, which.stop)
        headers = index.headers[chosen]
        columns = zip(
            which,
            admission.verdicts[chosen].tolist(),
            headers["base_offset"].tolist(),
            index.last_offset[chosen].tolist(),
            index.size_bytes[chosen].tolist(),
            headers["records_count"].tolist(),
            headers["max_timestamp"].tolist(),
            headers["partition_leader_epoch"].tolist(),
            headers["producer_id"].tolist(),
            headers["producer_epoch"].tolist(),
            strict=True,
        )
        for i, verdict, base, last, size, records, timestamp, leader_epoch, producer_id, producer_epoch in columns:
            if verdict in _SKIPPED:
                continue
            if admission.cut is not None:
                last = min(last, admission.cut - 1)
            further: Sequence[_Row] = ()
            parts = rewritten[i].parts if i in rewritten else ()
            if parts:  # it was sent, in one or several rewritten batches, whatever its verdict was
                row, *further = _rows_of_rewritten(rewritten[i], target_base_offsets)
                sent = parts[-1].sent + 1
            elif verdict == Verdict.DROP_ABORTED:
                key = (SegmentKind.ABORTED, producer_id, producer_epoch)
                row = _Row(key, SegmentKind.ABORTED, base, last + 1, record_count=records)
                row.source_producer_id, row.source_producer_epoch = producer_id, producer_epoch
            elif verdict == Verdict.DROP_CONTROL:
                marker = admission.markers[i]
                kind = kind_of(admission, i)
                row = _Row((kind, base), kind, base, last + 1)
                row.source_producer_id, row.source_producer_epoch = producer_id, producer_epoch
                row.coordinator_epoch = marker.coordinator_epoch
            elif verdict == Verdict.QUARANTINE:
                row = _Row((SegmentKind.QUARANTINED, base), SegmentKind.QUARANTINED, base, last + 1, record_count=max(records, 0))
            elif verdict in (Verdict.DROP_EMPTY, Verdict.REBUILD):  # of a rebuilt batch without parts no record was left
                row = _Row((SegmentKind.GAP,), SegmentKind.GAP, base, last + 1)
            else:
                raise ValueError(f"{self._source}: batch at {base} has verdict {Verdict(verdict).name}: it can be no segment")
            row.batch_count, row.size_bytes = 1, size
            for new_row in (row, *further):
                new_row.max_timestamp_ms, new_row.source_leader_epoch = timestamp, leader_epoch
                self._append(new_row)
            self._gap_up_to(last + 1)  # offsets behind its last record belong to the batch, and hold nothing
        return sent

    def add_stored(self, index: BatchIndex, first: int, end: int) -> None:
        """Add the batches `first` to `end` as they are, whatever they hold. Offsets between them belong to their row.

        A row has all adjacent batches; it keeps the source's offsets.
        """
        headers = index.headers[first:end]
        start, is_data = self._position, headers["attributes"] & CONTROL_BIT == 0
        row = _Row((SegmentKind.DATA, 0), SegmentKind.DATA, start, int(index.last_offset[end - 1]) + 1, start)
        row.record_count = int(np.maximum(headers["records_count"], 0)[is_data].sum())
        row.batch_count, row.size_bytes = end - first, int(index.size_bytes[first:end].sum())
        timestamps = headers["max_timestamp"][headers["max_timestamp"] >= 0]
        row.max_timestamp_ms = int(timestamps.max()) if len(timestamps) else None
        last = self._rows[-1] if self._rows else None
        if last is not None and last.max_timestamp_ms is not None:  # timestamps that producers set need not rise
            row.max_timestamp_ms = max(last.max_timestamp_ms, row.max_timestamp_ms or 0)
        row.source_leader_epoch = int(headers["partition_leader_epoch"][-1])
        self._merge(row)

    def close_at(self, position: int) -> None:
        """Record everything up to `position` as accounted for: the rest holds no record."""
        self._gap_up_to(position)

    def build(self) -> tuple[Segment, ...]:
        segments = tuple(self._segment(row) for row in self._rows)
        check_coverage({self._source: self._start}, segments)
        return segments

    def _append(self, row: _Row) -> None:
        row.start = max(row.start, self._position)
        self._gap_up_to(row.start)
        self._merge(row)

    def _gap_up_to(self, offset: int) -> None:
        if offset > self._position:
            self._merge(_Row((SegmentKind.GAP,), SegmentKind.GAP, self._position, offset))

    def _merge(self, row: _Row) -> None:
        self._position = row.end
        last = self._rows[-1] if self._rows else None
        if last is None or last.key != row.key or last.end != row.start:
            self._rows.append(row)
            return
        last.end = row.end
        last.record_count += row.record_count
        last.batch_count += row.batch_count
        last.rebuilt_batch_count += row.rebuilt_batch_count
        last.size_bytes += row.size_bytes
        last.source_leader_epoch = row.source_leader_epoch
        if row.max_timestamp_ms is not None:
            last.max_timestamp_ms = row.max_timestamp_ms

    def _segment(self, row: _Row) -> Segment:
        return Segment(
            source=self._source,
            source_start=row.start,
            source_end=row.end,
            kind=row.kind,
            target=self._target,
            target_start=row.target_start,
            target_end=None if row.target_start is None else row.target_start + row.end - row.start,
            record_count=row.record_count,
            batch_count=row.batch_count,
            rebuilt_batch_count=row.rebuilt_batch_count,
            size_bytes=row.size_bytes,
            max_timestamp_ms=row.max_timestamp_ms,
            source_leader_epoch=row.source_leader_epoch,
            source_producer_id=row.source_producer_id,
            source_producer_epoch=row.source_producer_epoch,
            coordinator_epoch=row.coordinator_epoch,
            lineage=self._lineage,
        )


def _rows_of_rewritten(batch: Rewritten, base_offsets: Sequence[int]) -> list[_Row]:
    """Return a row for each run of records that are adjacent on both sides; the first one counts the batch."""
    source, parts = batch.offsets, batch.parts
    start, behind_last = int(source[0]), int(source[-1]) + 1
    if len(parts) == 1 and behind_last - start == len(source):
        rows = [_data_row(start, base_offsets[parts[0].sent] + parts[0].first, len(source))]
    else:
        target = np.concatenate([base_offsets[part.sent] + part.first + np.arange(part.records) for part in parts])
        firsts = np.append(0, np.flatnonzero((np.diff(source) != 1) | (np.diff(target) != 1)) + 1)
        counts = np.diff(firsts, append=len(source)).tolist()
        rows = [_data_row(*run) for run in zip(source[firsts].tolist(), target[firsts].tolist(), counts, strict=True)]
    rows[0].rebuilt_batch_count = 1
    return rows


def _data_row(start: int, target_start: int, count: int) -> _Row:
    return _Row((SegmentKind.DATA, target_start - start, _REBUILT), SegmentKind.DATA, start, start + count, target_start, count)


def check_coverage(positions: Mapping[SourcePartition, int], segments: Iterable[Segment]) -> dict[SourcePartition, int]:
    """Return the positions after `segments`, which must continue each partition. Raises ValueError at a hole or overlap."""
    reached = dict(positions)
    for segment in segments:
        expected = reached.get(segment.source, segment.source_start)
        if segment.source_start != expected or segment.source_end < segment.source_start:
            raise ValueError(
                f"{segment.source}: segment [{segment.source_start}, {segment.source_end}) does not continue at {expected}"
            )
        reached[segment.source] = segment.source_end
    return reached
