"""Columns of the table of an archive. No Delta import here: executors read this file too."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from shallow_mirror.archive_format import AbortedTxn, IndexEntry, LeaderEpochStart, StoredBatches
from shallow_mirror.checkpoints.rows.codec import TIMESTAMP, ms_of
from shallow_mirror.checkpoints.rows.positions import Position, positions_of_newest_lineages
from shallow_mirror.checkpoints.rows.schema import DecidedSegment, in_source_order
from shallow_mirror.types import COPIED_KINDS, Segment, SegmentKind, SourcePartition, TargetPartition

ARCHIVE_SEGMENTS_TABLE = "archive_segments"

_INT64 = pa.int64()
_LEADER_EPOCHS = pa.list_(pa.struct([("leader_epoch", pa.int32()), ("start_offset", _INT64)]))
_ABORTED = pa.list_(pa.struct([("producer_id", _INT64), ("first_offset", _INT64), ("last_offset", _INT64)]))
_INDEX = pa.list_(
    pa.struct([("start_offset", _INT64), ("position", _INT64), ("size_bytes", _INT64), ("max_timestamp_ms", _INT64)])
)

# A new column needs a change in each of these places:
#   here                        ARCHIVE_SEGMENTS, `_row` or `_stored_columns`, `_decided_segment` or `_stored_batches`;
#                               ARCHIVE_POSITION_COLUMNS where positions need it; SCHEMA_VERSION (schema.py), shared with the map
#   table_layout.py             what becomes of tables without it: `added_columns` (null), or `remedies` (refused)
#   src/shallow_mirror/types.py a field of `Segment` or `StoredBatches`, with a default
#   sinks/archive/object_builder.py and archive_format/object_footer.py (its value in the footer, from which
#     operations/archive/rebuild.py writes the table again; docs/reference/archive-format.md)
#   archive_table.py and archive_reading/ where readers select by it
#   docs/site/columns.yaml, CHANGELOG.md, tests/checkpoints/rows/test_archive_schema.py
ARCHIVE_SEGMENTS = pa.schema(
    [
        ("source_topic", pa.string()),
        ("source_topic_id", pa.string()),
        ("source_partition", pa.int32()),
        ("lineage", pa.int32()),
        ("source_start", pa.int64()),
        ("source_end", pa.int64()),
        ("kind", pa.string()),
        ("object_name", pa.string()),
        ("size_bytes", pa.int64()),
        ("batch_count", pa.int32()),
        ("record_count", pa.int64()),
        ("min_timestamp_ms", pa.int64()),
        ("max_timestamp_ms", pa.int64()),
        ("source_leader_epoch", pa.int32()),
        ("leader_epochs", _LEADER_EPOCHS),
        ("aborted", _ABORTED),
        ("index", _INDEX),
        ("crc32c", pa.int64()),
        ("run_crc32c", pa.list_(pa.int64())),
        ("retention_class", pa.string()),
        ("state", pa.string()),
        ("run_epoch", pa.int32()),
        ("micro_batch", pa.int64()),
        ("decided_at", TIMESTAMP),
    ]
)
"""One row per archived segment. Columns that the offset map has too are named alike."""

ARCHIVE_POSITION_COLUMNS = [
    "source_topic",
    "source_topic_id",
    "source_partition",
    "lineage",
    "source_start",
    "source_end",
    "kind",
    "source_leader_epoch",
    "max_timestamp_ms",
]


class SegmentState(enum.StrEnum):
    """States of KIP-405's RemoteLogSegmentState. Only COPY_SEGMENT_FINISHED is visible to readers of batches."""

    COPY_SEGMENT_FINISHED = "COPY_SEGMENT_FINISHED"
    DELETE_SEGMENT_STARTED = "DELETE_SEGMENT_STARTED"
    DELETE_SEGMENT_FINISHED = "DELETE_SEGMENT_FINISHED"


@dataclass(frozen=True, slots=True)
class ArchiveRow:
    """A row of the table with the columns of its decision."""

    row: DecidedSegment
    state: SegmentState
    run_epoch: int
    micro_batch: int
    decided_at_ms: int

    @property
    def segment(self) -> Segment:
        return self.row.segment

    @property
    def stored(self) -> StoredBatches | None:
        return self.row.stored


def archive_rows_to_arrow(rows: Sequence[DecidedSegment], run_epoch: int, micro_batch: int, decided_at_ms: int) -> pa.Table:
    """Return the rows as a decision appends them, in the state COPY_SEGMENT_FINISHED."""
    decision = {
        "state": SegmentState.COPY_SEGMENT_FINISHED.value,
        "run_epoch": run_epoch,
        "micro_batch": micro_batch,
        "decided_at": datetime.fromtimestamp(decided_at_ms / 1000, UTC),
    }
    return pa.Table.from_pylist([columns_of(row) | decision for row in rows], schema=ARCHIVE_SEGMENTS)


def archive_rows_from_arrow(table: pa.Table) -> tuple[DecidedSegment, ...]:
    """Return the rows ordered by source partition, lineage and offset, whatever their state. Filter by `state` first."""
    return tuple(sorted((decided_segment_of(row) for row in table.to_pylist()), key=in_source_order))


def whole_archive_rows_from_arrow(table: pa.Table) -> list[ArchiveRow]:
    """Return the rows with their state and decision, ordered by source partition, lineage and offset."""
    rows = [
        ArchiveRow(
            decided_segment_of(row),
            SegmentState(row["state"]),
            row["run_epoch"],
            row["micro_batch"],
            ms_of(row["decided_at"]),
        )
        for row in table.to_pylist()
    ]
    return sorted(rows, key=lambda row: in_source_order(row.row))


def archive_positions_of(pieces: Iterable[pa.Table | pa.RecordBatch]) -> dict[SourcePartition, Position]:
    """Return the end of the last row of each source partition, in its newest lineage.

    `pieces` have ARCHIVE_POSITION_COLUMNS at least. An archive keeps offsets, so that the target of a position is the source
    partition itself.
    """
    return positions_of_newest_lineages(_with_target_columns(pieces))


def _with_target_columns(pieces: Iterable[pa.Table | pa.RecordBatch]) -> Iterator[pa.Table]:
    copied = pa.array([kind.value for kind in COPIED_KINDS])
    for piece in pieces:
        table = pa.Table.from_batches([piece]) if isinstance(piece, pa.RecordBatch) else piece
        rows = table.select(ARCHIVE_POSITION_COLUMNS)
        target_end = pc.if_else(pc.is_in(rows["kind"], value_set=copied), rows["source_end"], pa.scalar(None, _INT64))
        for name in ("topic", "topic_id", "partition"):
            rows = rows.append_column(f"target_{name}", rows[f"source_{name}"])
        yield rows.append_column("target_end", target_end)


def columns_of(row: DecidedSegment) -> dict[str, Any]:
    """Return the columns of a row without those of its decision."""
    segment = row.segment
    return {
        "source_topic": segment.source.topic,
        "source_topic_id": segment.source.topic_id,
        "source_partition": segment.source.partition,
        "lineage": segment.lineage,
        "source_start": segment.source_start,
        "source_end": segment.source_end,
        "kind": segment.kind.value,
        "size_bytes": segment.size_bytes,
        "batch_count": segment.batch_count,
        "record_count": segment.record_count,
        "max_timestamp_ms": segment.max_timestamp_ms,
        "source_leader_epoch": segment.source_leader_epoch,
        **({} if row.stored is None else _stored_columns(row.stored)),
    }


def _stored_columns(stored: StoredBatches) -> dict[str, Any]:
    return {
        "object_name": stored.object_name,
        "min_timestamp_ms": stored.min_timestamp_ms,
        "leader_epochs": [
            {"leader_epoch": epoch.leader_epoch, "start_offset": epoch.start_offset} for epoch in stored.leader_epochs
        ],
        "aborted": [
            {"producer_id": txn.producer_id, "first_offset": txn.first_offset, "last_offset": txn.last_offset}
            for txn in stored.aborted
        ],
        "index": [
            {
                "start_offset": entry.start_offset,
                "position": entry.position,
                "size_bytes": entry.size_bytes,
                "max_timestamp_ms": entry.max_timestamp_ms,
            }
            for entry in stored.index
        ],
        "crc32c": stored.crc32c,
        "run_crc32c": stored.run_crc32c,
        "retention_class": stored.retention_class,
    }


def decided_segment_of(row: Mapping[str, Any]) -> DecidedSegment:
    """Return the row of these columns."""
    kind = SegmentKind(row["kind"])
    source = SourcePartition(row["source_topic"], row["source_topic_id"], row["source_partition"])
    is_copied = kind in COPIED_KINDS
    segment = Segment(
        source=source,
        source_start=row["source_start"],
        source_end=row["source_end"],
        kind=kind,
        target=TargetPartition(*source),
        target_start=row["source_start"] if is_copied else None,
        target_end=row["source_end"] if is_copied else None,
        record_count=row["record_count"],
        batch_count=row["batch_count"],
        size_bytes=row["size_bytes"],
        max_timestamp_ms=row["max_timestamp_ms"],
        source_leader_epoch=row["source_leader_epoch"],
        lineage=row["lineage"],
    )
    return DecidedSegment(segment, None, None if row["object_name"] is None else _stored_batches(row))


def _stored_batches(row: Mapping[str, Any]) -> StoredBatches:
    return StoredBatches(
        object_name=row["object_name"],
        index=tuple(IndexEntry(**entry) for entry in row["index"]),
        leader_epochs=tuple(LeaderEpochStart(**epoch) for epoch in row["leader_epochs"]),
        aborted=tuple(AbortedTxn(**txn) for txn in row["aborted"]),
        crc32c=row["crc32c"],
        min_timestamp_ms=row["min_timestamp_ms"],
        retention_class=row["retention_class"],
        # The column is missing in a table of format 1.0 until the first decision of a later release.
        run_crc32c=None if row.get("run_crc32c") is None else tuple(row["run_crc32c"]),
    )
