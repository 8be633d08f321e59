"""Planner: a query on an archive, cut into parts of about the same bytes. The rows travel as compressed Arrow, not as objects."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from shallow_mirror.archive_format import StoredBatches
from shallow_mirror.archive_reading.archive_history import read_topic_ids
from shallow_mirror.archive_reading.read_bounds import ReadBounds
from shallow_mirror.archive_reading.segment_reader import READ_AHEAD_BYTES, SegmentBatches, SegmentReader
from shallow_mirror.checkpoints import DecidedSegment, LineageView
from shallow_mirror.checkpoints.rows import ARCHIVE_SEGMENTS, archive_rows_from_arrow, columns_of, decided_segment_of
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.types import SourcePartition

if TYPE_CHECKING:  # executors read this file, and need no deltalake
    from shallow_mirror.archive_reading.state_at_cut import TopicAtCut
    from shallow_mirror.checkpoints.ledger import ArchiveTable

PART_BYTES = 64 << 20
"""A part reads about so many bytes of batches. One run of an index is never cut."""
MOST_ROWS = 10_000
"""Rows of one part: small segments cost a request each."""
_SORTED_BY = ["source_topic", "source_topic_id", "source_partition", "source_start"]
_BETWEEN = "\0"
"""Not in names of topics."""
_IPC = pa.ipc.IpcWriteOptions(compression="zstd")


@dataclass(frozen=True, slots=True)
class ScanPart:
    """Rows of the table as an Arrow stream, and bounds, within which the part reads their batches."""

    rows: bytes
    bounds: ReadBounds

    def segments(self) -> tuple[DecidedSegment, ...]:
        """Return the rows, ordered by partition and offset."""
        with pa.ipc.open_stream(self.rows) as stream:
            return archive_rows_from_arrow(stream.read_all())


def plan_scan(
    table: ArchiveTable,
    bounds: ReadBounds,
    part_bytes: int = PART_BYTES,
    *,
    lineage: int | None = None,
    topics: Mapping[str, Sequence[TopicAtCut]] | None = None,
) -> list[ScanPart]:
    """Return parts that read each wanted batch exactly once. Raises as `ArchiveTable`.

    `topics`: the incarnations that are read, with their partitions and lineages; None: the newest one of each topic, and of
    partitions that have several lineages the log of `lineage`, as `Lineages.view`; None: of the newest. Holds the rows that match
    in memory, as Arrow: about 200 bytes for one of a single run.
    """
    pieces = [
        bounds.filter_rows(piece).select(ARCHIVE_SEGMENTS.names)
        for condition in bounds.conditions()
        for piece in table.pieces(condition)
    ]
    if not pieces:
        return []
    rows = pa.concat_tables(pieces)
    if topics is None:
        # All rows of the topics decide, not those within the bounds: the newest one may have none there.
        topic_ids = read_topic_ids(table, bounds.of_topics_only())
        if any(len(ids) > 1 for ids in topic_ids.values()):
            rows = _of_topic_ids(rows, {(topic, ids[-1]) for topic, ids in topic_ids.items()})
    else:
        rows = _of_topic_ids(rows, {(topic, each.incarnation.topic_id) for topic in topics for each in topics[topic]})
        rows = _without_later_partitions(rows, topics)
    lineages = table.lineages(bounds.of_partitions_only())
    views = {source: lineages.view(source, lineage if topics is None else _lineage_of(source, topics)) for source in lineages}
    rows = _in_views(rows, views).sort_by([(name, "ascending") for name in _SORTED_BY])
    sizes = rows["size_bytes"].to_numpy()
    return [
        part for first, end in _cuts(sizes, part_bytes) for part in _parts(rows.slice(first, end - first), bounds, part_bytes)
    ]


def _of_topic_ids(rows: pa.Table, wanted: Set[tuple[str, str]]) -> pa.Table:
    """Return the rows of these incarnations: name and id of each topic."""
    # Brokers before 2.8 have no topic ids: an id alone may be that of several topics.
    names = pc.binary_join_element_wise(rows["source_topic"], rows["source_topic_id"], _BETWEEN)
    return rows.filter(pc.is_in(names, value_set=pa.array([_BETWEEN.join(name) for name in sorted(wanted)], pa.string())))


def _without_later_partitions(rows: pa.Table, topics: Mapping[str, Sequence[TopicAtCut]]) -> pa.Table:
    for each in (each for of_topic in topics.values() for each in of_topic if each.later_partitions):
        is_of_topic = pc.equal(rows["source_topic_id"], each.incarnation.topic_id)
        is_later = pc.is_in(rows["source_partition"], value_set=pa.array(each.later_partitions, pa.int32()))
        is_of_topic = pc.and_(is_of_topic, pc.equal(rows["source_topic"], each.incarnation.topic))
        rows = rows.filter(pc.invert(pc.and_(is_of_topic, is_later)))
    return rows


def _lineage_of(source: SourcePartition, topics: Mapping[str, Sequence[TopicAtCut]]) -> int | None:
    return next((each.lineages[source.partition] for each in topics.get(source.topic, ()) if each.has(source)), None)


def _in_views(rows: pa.Table, views: Mapping[SourcePartition, LineageView]) -> pa.Table:
    """Return the parts of the rows that belong to the logs that are read. `views`: of partitions that have several lineages."""
    if not views:
        return rows
    fate: list[_Fate] = []
    names = ("source_topic", "source_topic_id", "source_partition", "lineage", "source_start", "source_end")
    for *source, number, start, end in zip(*(rows[name].to_pylist() for name in names), strict=True):
        view = views.get(SourcePartition(*source))
        if view is None or number == view.lineage:
            fate.append(_Fate.KEPT)
        else:
            fate.append(_Fate.DROPPED if view.part_of(number, start, end) is None else _Fate.CLIPPED)
    kept, to_clip = (rows.filter(pa.array([row_fate is wanted for row_fate in fate])) for wanted in (_Fate.KEPT, _Fate.CLIPPED))
    clipped = []
    for row in to_clip.to_pylist():
        segment = decided_segment_of(row)
        part = views[segment.segment.source].clipped(segment)
        assert part is not None
        clipped.append(row | columns_of(part))
    return pa.concat_tables([kept.cast(ARCHIVE_SEGMENTS), pa.Table.from_pylist(clipped, schema=ARCHIVE_SEGMENTS)])


class _Fate(enum.Enum):
    KEPT = 0
    CLIPPED = 1
    DROPPED = 2


def read_part(store: ObjectStore, part: ScanPart, read_ahead_bytes: int = READ_AHEAD_BYTES) -> Iterator[SegmentBatches]:
    """Yield the batches of a part, one partition after the other. Raises as SegmentReader."""
    bounds = part.bounds
    for _, segments in groupby(part.segments(), key=lambda row: row.segment.source):
        yield from SegmentReader(
            store,
            list(segments),
            bounds.start_offset,
            bounds.end_offset,
            read_ahead_bytes,
            min_timestamp_ms=bounds.run_min_timestamp_ms,
            trusts_old_offsets=True,
        )


def _cuts(sizes: npt.NDArray[np.int64], part_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows with up to `part_bytes`; a larger row is alone."""
    ends = np.cumsum(sizes)
    first = 0
    while first < len(sizes):
        before = int(ends[first - 1]) if first else 0
        end = int(np.searchsorted(ends, before + part_bytes, side="right"))
        end = min(max(end, first + 1), first + MOST_ROWS)
        yield first, end
        first = end


def _parts(rows: pa.Table, bounds: ReadBounds, part_bytes: int) -> Iterator[ScanPart]:
    """Yield rows as a part, or one large row as several, each of consecutive runs of its index."""
    packed = _packed(rows)
    if len(rows) > 1 or rows["size_bytes"][0].as_py() <= part_bytes:
        yield ScanPart(packed, bounds)
        return
    (row,) = archive_rows_from_arrow(rows)
    assert row.stored is not None
    starts = [row.segment.source_start, *_starts_of_parts(row.stored, part_bytes), row.segment.source_end]
    for start, end in pairwise(starts):
        within = bounds.from_offset(start).up_to_offset(end)
        if not within.is_empty:
            yield ScanPart(packed, within)


def _starts_of_parts(stored: StoredBatches, part_bytes: int) -> Iterator[int]:
    size = 0
    for run in stored.index:
        if size and size + run.size_bytes > part_bytes:
            yield run.start_offset
            size = 0
        size += run.size_bytes


def _packed(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_IPC) as writer:
        writer.write_table(rows.combine_chunks())
    return bytes(sink.getvalue())
