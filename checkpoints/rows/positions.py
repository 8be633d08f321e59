"""Pure: positions of source partitions in a table of decisions, and how a decision moves them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from shallow_mirror.checkpoints.rows.schema import DecidedSegment, in_source_order
from shallow_mirror.errors import OffsetMapConflictError
from shallow_mirror.types import COPIED_KINDS, EpochEnd, Segment, SegmentKind, SourcePartition, TargetPartition

_KEYS = ["source_topic", "source_topic_id", "source_partition"]
_LAST = ["source_end", "source_leader_epoch", "target_topic", "target_topic_id", "target_partition", "max_timestamp_ms"]
_WRITER_COLUMNS = ["transactional_id", "target_producer_id", "target_producer_epoch"]
POSITION_COLUMNS = [*_KEYS, "source_start", *_LAST, "target_end", *_WRITER_COLUMNS]
"""Of an offset map; tables without transactions lack the last three."""
_EPOCH_END = "source_leader_epoch_end"
_SHARED, _ORIGIN = "shared_producer_id", "origin"
_START = "start"
_IN_TRANSACTION = -1
"""In place of a shared producer id: the row was written in a transaction."""
_MAY_BE_NULL = ("source_leader_epoch", "max_timestamp_ms", _SHARED)
_GATHERED_ROWS = 200_000


@dataclass(frozen=True, slots=True)
class Position:
    """The state of a partition: everything of the source below `offset` is accounted for."""

    offset: int
    target: TargetPartition
    epoch_end: EpochEnd | None = None
    """How far the source log was read of the last leader epoch that a batch had. None if there was none."""
    max_timestamp_ms: int | None = None
    """Of the last batch that has one. None if there was none."""
    target_end: int = 0
    """All records copied so far lie below it on the target."""
    lineage: int = 0
    """Of an archive, the one that is captured."""
    shared_producer_id: int | None = None
    """Of a partition with preserved offsets, the producer id of all that is written to its target. None if the last records
    were written in a transaction, or nothing was."""
    origin: int = 0
    """The target's offset at which its first batch belongs, behind the records from before the mirror."""
    start: int = 0
    """Begin of its first row, in an archive of that of its lineage."""


def positions_of(rows: Iterable[pa.Table | pa.RecordBatch]) -> dict[SourcePartition, Position]:
    """Return the end of the last segment of each source partition, and the last leader epoch of any of its segments.

    `rows` are pieces of a map in any order, with POSITION_COLUMNS at least. A few of them are in memory at once, and of those
    before them the few rows that may be the last of their partitions.
    """
    return {_source_of(row): _position_of(row, lineage=0) for row in _last_rows_of(rows, _KEYS)}


def positions_of_newest_lineages(rows: Iterable[pa.Table | pa.RecordBatch]) -> dict[SourcePartition, Position]:
    """Return the end of the last segment of the newest lineage of each source partition.

    `rows`: as for `positions_of`, with the column `lineage` as well. Rows before a lineage are of another log: their leader
    epoch and timestamp are not taken over.
    """
    newest: dict[SourcePartition, Position] = {}
    for row in sorted(_last_rows_of(rows, [*_KEYS, "lineage"]), key=lambda row: row["lineage"]):
        newest[_source_of(row)] = _position_of(row, lineage=row["lineage"])
    return newest


def _source_of(row: Mapping[str, Any]) -> SourcePartition:
    return SourcePartition(*(row[key] for key in _KEYS))


def _position_of(row: Mapping[str, Any], *, lineage: int) -> Position:
    return Position(
        row["source_end"],
        TargetPartition(row["target_topic"], row["target_topic_id"], row["target_partition"]),
        None if row[_EPOCH_END] is None else EpochEnd(row["source_leader_epoch"], row[_EPOCH_END]),
        row["max_timestamp_ms"],
        row["target_end"] or 0,
        lineage,
        None if row[_SHARED] == _IN_TRANSACTION else row[_SHARED],
        row[_ORIGIN] or 0,
        row[_START],
    )


def _last_rows_of(rows: Iterable[pa.Table | pa.RecordBatch], keys: Sequence[str]) -> list[dict[str, Any]]:
    """Return the last values of each column for each combination of `keys`."""
    kept = [name for name in POSITION_COLUMNS if name not in _WRITER_COLUMNS]
    columns = [*kept, *(key for key in keys if key not in kept)]
    gathered, count = list[pa.Table](), 0
    for piece in rows:
        table = pa.Table.from_batches([piece]) if isinstance(piece, pa.RecordBatch) else piece
        writers = table.select(columns).append_column(_SHARED, _shared_producer_ids(table))
        gathered.append(writers.append_column(_ORIGIN, _ends_of_continued(table)))
        count += table.num_rows
        if count > _GATHERED_ROWS:
            gathered, count = [_candidates(gathered, keys)], 0
    last: list[dict[str, Any]] = _last_rows(_candidates(gathered, keys), keys).to_pylist() if gathered else []
    return last


def _shared_producer_ids(rows: pa.Table) -> pa.ChunkedArray:
    """Return the shared producer id of each row, `_IN_TRANSACTION` of a row with a transaction, else null."""
    if not set(_WRITER_COLUMNS).issubset(rows.column_names):
        return pa.chunked_array([pa.nulls(rows.num_rows, pa.int64())])
    in_transaction = pa.scalar(_IN_TRANSACTION, pa.int64())
    return pc.if_else(pc.is_valid(rows["transactional_id"]), in_transaction, rows["target_producer_id"])


def _ends_of_continued(rows: pa.Table) -> pa.ChunkedArray:
    """Return `source_end` of rows of records that the target held before the mirror, else null."""
    if not set(_WRITER_COLUMNS).issubset(rows.column_names):
        return pa.chunked_array([pa.nulls(rows.num_rows, pa.int64())])
    is_shared = pc.and_(pc.is_null(rows["transactional_id"]), pc.is_valid(rows["target_producer_id"]))
    is_continued = pc.and_(is_shared, pc.is_null(rows["target_producer_epoch"]))
    return pc.if_else(is_continued, rows["source_end"], pa.scalar(None, pa.int64()))


def _candidates(pieces: Sequence[pa.Table], keys: Sequence[str]) -> pa.Table:
    """Keep the rows that hold the highest ends of each partition, of all rows and of those without nulls, and by chance others.

    Taking maxima is many times cheaper than sorting: most rows are dropped here.
    """
    rows = pa.concat_tables(pieces, promote_options="permissive").combine_chunks()
    nullable_ends = {f"{name}_end": _ends_where(rows, name) for name in _MAY_BE_NULL}
    ends = {
        "source_end": rows["source_end"],
        "target_end": rows["target_end"],
        _ORIGIN: rows[_ORIGIN],
        _START: pc.negate(rows["source_start"]),
        **nullable_ends,
    }
    table = pa.table([*(rows[name] for name in keys), *ends.values()], names=[*keys, *ends])
    highest = table.group_by(list(keys), use_threads=False).aggregate([(name, "max") for name in ends])
    is_kept = pa.chunked_array([pa.repeat(pa.scalar(False), rows.num_rows)])
    for name, column in ends.items():
        wanted = highest[f"{name}_max"].combine_chunks().drop_null()
        is_kept = pc.or_(is_kept, pc.is_in(column, value_set=wanted))
    return rows.filter(is_kept)


def _last_rows(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    rows = rows.append_column(_EPOCH_END, _ends_where(rows, "source_leader_epoch")).append_column(_START, rows["source_start"])
    ordered = rows.sort_by([("source_end", "ascending"), ("source_start", "ascending")])
    functions = {"target_end": "max", _ORIGIN: "max", _START: "min"}
    wanted = [(name, functions.get(name, "last")) for name in rows.column_names if name not in keys]
    grouped = ordered.group_by(list(keys), use_threads=False).aggregate(wanted)
    return grouped.rename_columns([*keys, *(name for name, _ in wanted)])


def _ends_where(rows: pa.Table, column: str) -> pa.ChunkedArray:
    """Return `source_end` of the rows that have a value in `column`, else null."""
    return pc.if_else(pc.is_valid(rows[column]), rows["source_end"], pa.scalar(None, pa.int64()))


def moved_by(positions: Mapping[SourcePartition, Position], rows: Sequence[DecidedSegment]) -> dict[SourcePartition, Position]:
    """Return the positions after these rows.

    Raises OffsetMapConflictError if they leave a hole or overlap, or shift inside a row.

    Released rows lie below the position, and move it nowhere. The first row of the next lineage of an archive has no length, and
    moves the position back to the begin of that lineage.
    """
    moved = dict(positions)
    for row in sorted(rows, key=in_source_order):
        segment = row.segment
        last = moved.get(segment.source)
        if not _is_whole(segment):
            raise OffsetMapConflictError(
                f"{segment.source.topic_partition}: source and target range of a segment differ: {segment}"
            )
        if segment.kind is SegmentKind.RELEASED:
            moved[segment.source] = _with_released(last, segment)
            continue
        if segment.lineage != (0 if last is None else last.lineage):
            moved[segment.source] = _in_next_lineage(last, segment)
            continue
        if last is not None and segment.source_start != last.offset:
            raise OffsetMapConflictError(
                f"{segment.source.topic_partition}: a segment starts at {segment.source_start}, the position is {last.offset}"
            )
        epoch_end = None if last is None else last.epoch_end
        if segment.source_leader_epoch is not None:
            epoch_end = EpochEnd(segment.source_leader_epoch, segment.source_end)
        timestamp_ms = segment.max_timestamp_ms
        if timestamp_ms is None and last is not None:
            timestamp_ms = last.max_timestamp_ms
        target_end = max(segment.target_end or 0, 0 if last is None else last.target_end)
        moved[segment.source] = Position(
            segment.source_end,
            segment.target,
            epoch_end,
            timestamp_ms,
            target_end,
            segment.lineage,
            _shared_producer_id_after(last, row),
            segment.source_end if row.is_continued else 0 if last is None else last.origin,
            segment.source_start if last is None else last.start,
        )
    return moved


def _shared_producer_id_after(last: Position | None, row: DecidedSegment) -> int | None:
    if row.txn is not None:
        return None
    return row.shared_producer_id if row.shared_producer_id is not None else None if last is None else last.shared_producer_id


def _in_next_lineage(last: Position | None, segment: Segment) -> Position:
    """Return the position at the start of the next lineage. Its first row names the leader epoch in front of it, if known."""
    is_next = last is not None and segment.lineage == last.lineage + 1
    if last is None or not is_next or segment.source_start != segment.source_end or segment.source_end > last.offset:
        at = "none" if last is None else f"{last.offset} of lineage {last.lineage}"
        raise OffsetMapConflictError(
            f"{segment.source.topic_partition}: a segment of lineage {segment.lineage} covers offsets {segment.source_start} to "
            f"{segment.source_end}, the position is {at}: a lineage begins with a row without length, at or below the position"
        )
    epoch_end = None if segment.source_leader_epoch is None else EpochEnd(segment.source_leader_epoch, segment.source_end)
    return Position(segment.source_end, segment.target, epoch_end, None, 0, segment.lineage, start=segment.source_start)


def _is_whole(segment: Segment) -> bool:
    if segment.source_end < segment.source_start:
        return False
    if segment.kind not in COPIED_KINDS:
        return segment.target_start is None and segment.target_end is None
    if segment.target_start is None or segment.target_end is None:
        return False
    return segment.target_end - segment.target_start == segment.source_end - segment.source_start


def _with_released(last: Position | None, segment: Segment) -> Position:
    if last is None or segment.source_end > last.offset:
        raise OffsetMapConflictError(
            f"{segment.source.topic_partition}: offsets {segment.source_start} to {segment.source_end} were never accounted for, "
            "they cannot be released"
        )
    return replace(last, target_end=max(segment.target_end or 0, last.target_end))
