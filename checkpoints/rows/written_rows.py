"""Pure: the table of a DataFrame sink: which records each micro-batch wrote, and where. Executors read this file too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc

from shallow_mirror.checkpoints.rows.codec import Inline, Int32, TimeMs, row_codec
from shallow_mirror.checkpoints.rows.positions import Position
from shallow_mirror.checkpoints.rows.schema import DecidedSegment, WrittenBy
from shallow_mirror.errors import OffsetMapConflictError
from shallow_mirror.types import Segment, SegmentKind, SlotTxn, SourcePartition, TargetPartition

WRITTEN_RECORDS_TABLE = "written_records"


@dataclass(frozen=True, slots=True)
class WrittenRow:
    """Records that one slot wrote to one target partition, in one Kafka transaction.

    They lie in [target_start, target_end), in the order of the slot; records of other slots and producers may lie between them.
    """

    written_by: Annotated[WrittenBy, Inline()]
    target: TargetPartition
    target_start: int
    target_end: int
    record_count: int
    batch_count: Int32
    size_bytes: int
    max_timestamp_ms: int
    transactional_id: str
    target_producer_id: int
    target_producer_epoch: Int32
    run_epoch: Int32
    micro_batch: int
    """Number of the decision."""
    decided_at_ms: TimeMs


_ROWS = row_codec(WrittenRow)
WRITTEN_RECORDS = _ROWS.schema

POSITION_COLUMNS = ["target_topic", "target_topic_id", "target_partition", "target_end"]
_KEYS = POSITION_COLUMNS[:3]
_AGGREGATES = {"target_end": "max", "record_count": "sum", "size_bytes": "sum", "micro_batch": "max"}


def segment_of(target: TargetPartition, start: int, end: int, **columns: Any) -> Segment:
    """Return the segment of target offsets [start, end). Its source is the target itself: records come from no log."""
    return Segment(
        source=SourcePartition(*target),
        source_start=start,
        source_end=end,
        kind=SegmentKind.DATA,
        target=target,
        target_start=start,
        target_end=end,
        **columns,
    )


def written_rows_to_arrow(rows: Sequence[DecidedSegment], run_epoch: int, micro_batch: int, decided_at_ms: int) -> pa.Table:
    return _ROWS.to_arrow([_row(row, run_epoch, micro_batch, decided_at_ms) for row in rows])


def _row(row: DecidedSegment, run_epoch: int, micro_batch: int, decided_at_ms: int) -> WrittenRow:
    segment, txn = row.segment, row.txn
    assert txn is not None
    assert row.written_by is not None
    return WrittenRow(
        row.written_by,
        segment.target,
        segment.source_start,
        segment.source_end,
        segment.record_count,
        segment.batch_count,
        segment.size_bytes,
        segment.max_timestamp_ms or 0,
        txn.transactional_id,
        txn.producer_id,
        txn.producer_epoch,
        run_epoch,
        micro_batch,
        decided_at_ms,
    )


def written_rows_from_arrow(table: pa.Table) -> tuple[DecidedSegment, ...]:
    """Return the rows ordered by target partition and offset."""
    return tuple(sorted(map(_decided, table.to_pylist()), key=lambda row: (row.segment.target, row.segment.source_start)))


def _decided(values: Mapping[str, Any]) -> DecidedSegment:
    row = _ROWS.row(values)
    segment = segment_of(
        row.target,
        row.target_start,
        row.target_end,
        record_count=row.record_count,
        batch_count=row.batch_count,
        size_bytes=row.size_bytes,
        max_timestamp_ms=row.max_timestamp_ms,
    )
    txn = SlotTxn(row.transactional_id, row.target_producer_id, row.target_producer_epoch)
    return DecidedSegment(segment, txn, written_by=row.written_by)


def written_ends_of(pieces: Iterable[pa.Table | pa.RecordBatch]) -> dict[SourcePartition, Position]:
    """Return the end of all records that were written to each target partition, as its position."""
    ends: dict[SourcePartition, Position] = {}
    for piece in pieces:
        table = pa.Table.from_batches([piece]) if isinstance(piece, pa.RecordBatch) else piece
        for row in table.group_by(_KEYS, use_threads=False).aggregate([("target_end", "max")]).to_pylist():
            _raise_end(ends, TargetPartition(*(row[key] for key in _KEYS)), row["target_end_max"])
    return ends


def written_ends_after(
    ends: Mapping[SourcePartition, Position], rows: Sequence[DecidedSegment]
) -> dict[SourcePartition, Position]:
    """Return the ends after these rows. Raises OffsetMapConflictError if one of them begins below the end of a decision."""
    moved = dict(ends)
    for row in rows:
        segment = row.segment
        before = ends.get(segment.source)
        if before is not None and segment.source_start < before.offset:
            raise OffsetMapConflictError(
                f"{segment.source.topic_partition}: records at {segment.source_start}, but earlier micro-batches wrote up to "
                f"{before.offset}: the target has lost acknowledged records"
            )
        _raise_end(moved, segment.target, segment.source_end)
    return moved


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenPartition:
    """The records that were written to a target partition, in any offsets below `end`. `size_bytes`: of compressed batches."""

    target: TargetPartition
    end: int
    record_count: int
    size_bytes: int
    last_micro_batch: int


WRITTEN_PARTITION_COLUMNS = [*POSITION_COLUMNS, "record_count", "size_bytes", "micro_batch"]


def written_partitions_of(pieces: Iterable[pa.RecordBatch]) -> list[WrittenPartition]:
    """Return every target partition with its sums, in order. A topic that was created again has those of each id."""
    sums = list(_AGGREGATES.items())
    grouped = [pa.Table.from_batches([piece]).group_by(_KEYS, use_threads=False).aggregate(sums) for piece in pieces]
    if not grouped:
        return []
    renamed = [table.rename_columns([*_KEYS, *_AGGREGATES]) for table in grouped]
    rows = pa.concat_tables(renamed).group_by(_KEYS, use_threads=False).aggregate(sums).to_pylist()
    partitions = [
        WrittenPartition(
            target=TargetPartition(*(row[key] for key in _KEYS)),
            end=row["target_end_max"],
            record_count=row["record_count_sum"],
            size_bytes=row["size_bytes_sum"],
            last_micro_batch=row["micro_batch_max"],
        )
        for row in rows
    ]
    return sorted(partitions, key=lambda partition: partition.target)


def newest_batch_of(read: Callable[[list[str]], Iterable[pa.RecordBatch]]) -> tuple[str, int] | None:
    """Return query id and batch id of the newest streaming micro-batch. `read`: return columns of all rows, piece by piece."""
    newest: tuple[int, str, int] | None = None
    for piece in read(["query_id", "batch_id", "micro_batch"]):
        rows = piece.filter(pc.is_valid(piece["batch_id"]))
        if rows.num_rows:
            last = rows.slice(pc.index(rows["micro_batch"], pc.max(rows["micro_batch"])).as_py(), 1).to_pylist()[0]
            newest = max(newest or (-1, "", 0), (last["micro_batch"], last["query_id"], last["batch_id"]))
    return None if newest is None else newest[1:]


def _raise_end(ends: dict[SourcePartition, Position], target: TargetPartition, end: int) -> None:
    source = SourcePartition(*target)
    last = ends.get(source)
    if last is None:
        ends[source] = Position(end, target, target_end=end)
    elif end > last.offset:
        ends[source] = replace(last, offset=end, target_end=end)
