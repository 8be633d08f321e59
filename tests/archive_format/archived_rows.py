"""Rows of an archive for tests, and Hypothesis strategies of them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

from shallow_mirror.archive_format import (
    AbortedTxn,
    ArchivedSegment,
    IndexEntry,
    LeaderEpochStart,
    ObjectHeader,
    ObjectName,
    StoredBatches,
)
from shallow_mirror.types import Segment, SegmentKind, SourcePartition, TargetPartition

SOURCE = SourcePartition("orders", "srcsrcsrcsrcsrcsrcsrcA", 0)
NAME = ObjectName(archive_id="backup", run_epoch=3, decision=7, slot=2, retention_class=1, try_id="0123abcd")
HEADER = ObjectHeader.of_object(NAME, "cluster")

_OFFSETS = st.integers(0, (1 << 63) - 1)
_INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
_CRCS = st.integers(0, (1 << 32) - 1)
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_SOURCES = st.builds(SourcePartition, _TEXTS, _TEXTS, st.integers(0, (1 << 31) - 1))


def data(
    start: int,
    end: int,
    source: SourcePartition = SOURCE,
    *,
    position: int = 0,
    size_bytes: int = 100,
    object_name: str = str(NAME),
) -> ArchivedSegment:
    return ArchivedSegment(
        segment=Segment(
            source=source, source_start=start, source_end=end, kind=SegmentKind.DATA, target=TargetPartition(*source),
            target_start=start, target_end=end, record_count=end - start, batch_count=1, size_bytes=size_bytes,
            max_timestamp_ms=1_000, source_leader_epoch=3,
        ),
        stored=StoredBatches(
            object_name=object_name, index=(IndexEntry(start, position, size_bytes, 1_000),),
            leader_epochs=(LeaderEpochStart(3, start),), aborted=(AbortedTxn(7, start, None), AbortedTxn(8, start, end - 1)),
            crc32c=12, min_timestamp_ms=900, retention_class="orders.*", run_crc32c=(12,),
        ),
    )  # fmt: skip


def gap(start: int, end: int, source: SourcePartition = SOURCE, kind: SegmentKind = SegmentKind.GAP) -> ArchivedSegment:
    return ArchivedSegment(
        Segment(source=source, source_start=start, source_end=end, kind=kind, target=TargetPartition(*source)), None
    )


@st.composite
def archived_segments(draw: st.DrawFn, object_name: str = str(NAME)) -> ArchivedSegment:
    """Return a row of any partition: data, or nothing stored."""
    source = draw(_SOURCES)
    bounds = sorted(draw(st.sets(_OFFSETS, min_size=2, max_size=6)))
    kind = draw(st.sampled_from([SegmentKind.DATA, SegmentKind.DATA, SegmentKind.GAP, SegmentKind.EXPIRED]))
    if kind is not SegmentKind.DATA:
        return gap(bounds[0], bounds[-1], source, kind)
    index = tuple(
        IndexEntry(start, draw(st.integers(0, 1 << 40)), draw(st.integers(1, 1 << 40)), draw(_INT64))
        for start, _ in pairwise(bounds)
    )
    epochs = sorted(draw(st.sets(_OFFSETS, max_size=3)))
    return ArchivedSegment(
        Segment(
            source=source, source_start=bounds[0], source_end=bounds[-1], kind=kind, target=TargetPartition(*source),
            target_start=bounds[0], target_end=bounds[-1], record_count=draw(_OFFSETS),
            batch_count=draw(st.integers(0, (1 << 31) - 1)), size_bytes=sum(run.size_bytes for run in index),
            max_timestamp_ms=draw(st.none() | _INT64), source_leader_epoch=draw(st.none() | st.integers(0, (1 << 31) - 1)),
        ),
        StoredBatches(
            object_name=object_name, index=index, crc32c=draw(_CRCS),
            leader_epochs=tuple(LeaderEpochStart(draw(st.integers(-1, (1 << 31) - 1)), start) for start in epochs),
            aborted=tuple(draw(st.lists(_aborted(), max_size=3))), min_timestamp_ms=draw(st.none() | _INT64),
            retention_class=draw(_TEXTS), run_crc32c=tuple(draw(_CRCS) for _ in index),
        ),
    )  # fmt: skip


@st.composite
def _aborted(draw: st.DrawFn) -> AbortedTxn:
    first, last = sorted((draw(_OFFSETS), draw(_OFFSETS)))
    return AbortedTxn(draw(_INT64), first, draw(st.sampled_from([None, last])))
