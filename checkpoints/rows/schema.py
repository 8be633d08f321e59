"""Columns and properties of the Delta tables. No Delta import here: executors read this file too."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from shallow_mirror.archive_format.archived_batches import StoredBatches
from shallow_mirror.checkpoints.rows.codec import TIMESTAMP
from shallow_mirror.types import Segment, SegmentKind, SlotTxn, SourcePartition, TargetPartition

SCHEMA_VERSION = 1
OFFSET_MAP_TABLE = "offset_map"

CATALOG = "catalog:"
"""Begins a place of tables that is a schema: `catalog:<catalog>.<schema>`."""

PROPERTY_SCHEMA_VERSION = "shallow_mirror.schema_version"
PROPERTY_MIRROR = "shallow_mirror.mirror"
PROPERTY_SOURCE_CLUSTER_ID = "shallow_mirror.source_cluster_id"
PROPERTY_TARGET_CLUSTER_ID = "shallow_mirror.target_cluster_id"
PROPERTY_WRITER = "shallow_mirror.writer"
PROPERTY_TABLE_ID = "shallow_mirror.table_id"
"""Of a rebuilt table of an archive, which has the id of the archive in common with the table that it was rebuilt from."""
PROPERTY_REBUILT_FROM = "shallow_mirror.rebuilt_from"
"""Of such a table: which objects there were."""
PROPERTY_MAP_ID = "shallow_mirror.map_id"
"""Of one offset map, made with it: receipts on the target name it, so that two maps under one mirror id can be distinguished."""

# A new column of the offset map needs a change in each of these places:
#   here                                 OFFSET_MAP, `_row`, `row_to_segment`; SCHEMA_VERSION, because `column_problems` rejects
#                                        maps without the column: decide how existing maps get it. `archive_segments` has the
#                                        same SCHEMA_VERSION
#   src/shallow_mirror/types.py          a field of `Segment`, with a default; of `SlotTxn` where it describes the transaction
#   checkpoints/rows/segments.py         `_Row`, how neighbouring rows merge (`SegmentBuilder._merge`), `SegmentBuilder._segment`
#   `first_rows_at` (here),              segments that are made elsewhere, where the default is wrong for them
#     sinks/kafka/quarantine_release.py,
#     sinks/micro_batches/expired_offsets.py
#   archive_schema.py, archive_format/   segments of an archive, which are read back from rows and footers: whether they have the
#     object_footer.py, operations/      field as well
#     archive_rebuild.py
#   the reader that needs it             its list of columns: POSITION_COLUMNS (positions.py), TRANSLATION_COLUMNS
#                                        (translation.py), COMMIT_COLUMNS (groups/offset_translation.py), COLUMNS
#                                        (verify/map_index.py, report/offset_map_chart.py)
#   docs/site/columns.yaml               its meaning, for the reference of the tables; CHANGELOG.md, since columns are public
#   tests/checkpoints/rows/test_schema.py     the strategy `segments`; tests/model/slot.py, demo/map_rows.py,
#                                        benchmarks/scale_map.py and object_store.py where values matter
# Types: only those that every Delta reader knows (test_schema.py checks them). Columns that conditions select by belong into
# STATS_COLUMNS (table_protocol.py).
OFFSET_MAP = pa.schema(
    [
        ("source_topic", pa.string()),
        ("source_topic_id", pa.string()),
        ("source_partition", pa.int32()),
        ("source_start", pa.int64()),
        ("source_end", pa.int64()),
        ("kind", pa.string()),
        ("target_topic", pa.string()),
        ("target_topic_id", pa.string()),
        ("target_partition", pa.int32()),
        ("target_start", pa.int64()),
        ("target_end", pa.int64()),
        ("record_count", pa.int64()),
        ("batch_count", pa.int32()),
        ("rebuilt_batch_count", pa.int32()),
        ("size_bytes", pa.int64()),
        ("max_timestamp_ms", pa.int64()),
        ("source_leader_epoch", pa.int32()),
        ("source_producer_id", pa.int64()),
        ("source_producer_epoch", pa.int32()),
        ("coordinator_epoch", pa.int32()),
        ("transactional_id", pa.string()),
        ("target_producer_id", pa.int64()),
        ("target_producer_epoch", pa.int32()),
        ("run_epoch", pa.int32()),
        ("micro_batch", pa.int64()),
        ("decided_at", TIMESTAMP),
    ]
)
"""One row per segment; the public interface of the mirror."""


@dataclass(frozen=True, slots=True)
class DecidedSegment:
    """`txn` is the Kafka transaction of the slot that made the row; None where the slot produced nothing, and in an archive.

    `stored`: where an archive keeps the batches; None in an offset map, and where none were stored. `shared_producer_id`: of a
    target partition with preserved offsets, which every writer of it uses; such a row has no transaction. `is_continued`: the
    target had these offsets before the mirror, so that nothing was written; the row has no producer epoch.
    """

    segment: Segment
    txn: SlotTxn | None
    stored: StoredBatches | None = None
    shared_producer_id: int | None = None
    is_continued: bool = False


def first_rows_at(
    starts: Mapping[SourcePartition, int], target_of: Callable[[SourcePartition], TargetPartition]
) -> tuple[DecidedSegment, ...]:
    """Return the zero-length first row of each partition, at its start."""
    return tuple(
        DecidedSegment(
            Segment(source=source, source_start=start, source_end=start, kind=SegmentKind.GAP, target=target_of(source)), None
        )
        for source, start in sorted(starts.items())
    )


@dataclass(frozen=True, slots=True)
class Removal:
    """Name the rows to remove: all that carry `txn`, or with `target` only those of one target partition."""

    txn: SlotTxn
    target: TargetPartition | None = None


def rows_to_arrow(rows: Sequence[DecidedSegment], run_epoch: int, micro_batch: int, decided_at_ms: int) -> pa.Table:
    decided_at = datetime.fromtimestamp(decided_at_ms / 1000, UTC)
    return pa.Table.from_pylist([_row(row, run_epoch, micro_batch, decided_at) for row in rows], schema=OFFSET_MAP)


def _row(row: DecidedSegment, run_epoch: int, micro_batch: int, decided_at: datetime) -> dict[str, Any]:
    segment, txn = row.segment, row.txn
    return {
        "source_topic": segment.source.topic,
        "source_topic_id": segment.source.topic_id,
        "source_partition": segment.source.partition,
        "source_start": segment.source_start,
        "source_end": segment.source_end,
        "kind": segment.kind.value,
        "target_topic": segment.target.topic,
        "target_topic_id": segment.target.topic_id,
        "target_partition": segment.target.partition,
        "target_start": segment.target_start,
        "target_end": segment.target_end,
        "record_count": segment.record_count,
        "batch_count": segment.batch_count,
        "rebuilt_batch_count": segment.rebuilt_batch_count,
        "size_bytes": segment.size_bytes,
        "max_timestamp_ms": segment.max_timestamp_ms,
        "source_leader_epoch": segment.source_leader_epoch,
        "source_producer_id": segment.source_producer_id,
        "source_producer_epoch": segment.source_producer_epoch,
        "coordinator_epoch": segment.coordinator_epoch,
        "transactional_id": None if txn is None else txn.transactional_id,
        "target_producer_id": row.shared_producer_id if txn is None else txn.producer_id,
        "target_producer_epoch": _shared_epoch(row) if txn is None else txn.producer_epoch,
        "run_epoch": run_epoch,
        "micro_batch": micro_batch,
        "decided_at": decided_at,
    }


def _shared_epoch(row: DecidedSegment) -> int | None:
    return None if row.shared_producer_id is None or row.is_continued else 0


def row_to_segment(row: Mapping[str, Any]) -> DecidedSegment:
    txn, shared_producer_id = None, row["target_producer_id"]
    if row["transactional_id"] is not None:
        txn = SlotTxn(row["transactional_id"], row["target_producer_id"], row["target_producer_epoch"])
        shared_producer_id = None
    segment = Segment(
        source=SourcePartition(row["source_topic"], row["source_topic_id"], row["source_partition"]),
        source_start=row["source_start"],
        source_end=row["source_end"],
        kind=SegmentKind(row["kind"]),
        target=TargetPartition(row["target_topic"], row["target_topic_id"], row["target_partition"]),
        target_start=row["target_start"],
        target_end=row["target_end"],
        record_count=row["record_count"],
        batch_count=row["batch_count"],
        rebuilt_batch_count=row["rebuilt_batch_count"],
        size_bytes=row["size_bytes"],
        max_timestamp_ms=row["max_timestamp_ms"],
        source_leader_epoch=row["source_leader_epoch"],
        source_producer_id=row["source_producer_id"],
        source_producer_epoch=row["source_producer_epoch"],
        coordinator_epoch=row["coordinator_epoch"],
    )
    is_continued = shared_producer_id is not None and row["target_producer_epoch"] is None
    return DecidedSegment(segment, txn, shared_producer_id=shared_producer_id, is_continued=is_continued)


def rows_from_arrow(table: pa.Table) -> tuple[DecidedSegment, ...]:
    """Return the rows ordered by source partition and offset, whatever the order of files."""
    return tuple(sorted((row_to_segment(row) for row in table.to_pylist()), key=in_source_order))


def in_source_order(row: DecidedSegment) -> tuple[SourcePartition, int, int, int]:
    segment = row.segment
    return segment.source, segment.lineage, segment.source_start, segment.source_end


def table_properties(mirror: str, source_cluster_id: str, target_cluster_id: str, writer: str) -> dict[str, str]:
    return {
        PROPERTY_SCHEMA_VERSION: str(SCHEMA_VERSION),
        PROPERTY_MIRROR: mirror,
        PROPERTY_SOURCE_CLUSTER_ID: source_cluster_id,
        PROPERTY_TARGET_CLUSTER_ID: target_cluster_id,
        PROPERTY_WRITER: writer,
    }


def properties_of_new_map(properties: Mapping[str, str]) -> dict[str, str]:
    """Return `table_properties` with an id that no other map has."""
    return {**properties, PROPERTY_MAP_ID: str(uuid.uuid4())}


def table_uri(tables: str, table: str = OFFSET_MAP_TABLE) -> str:
    return f"{str(tables).rstrip('/')}/{table}"


def schema_of(tables: str) -> str | None:
    """Return the schema in a catalog; None for a folder or URI."""
    return tables.removeprefix(CATALOG) if tables.startswith(CATALOG) else None
