"""Columns and properties of the Delta tables. No Delta import here: executors read this file too."""

from __future__ import annotations

import operator
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa

from shallow_mirror.archive_format import StoredBatches
from shallow_mirror.checkpoints.rows.codec import Int32, TimeMs, row_codec
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


# A new column is a field of `OffsetMapRow`, a field of the same name of `Segment` (types.py) with a default, and a line in
# docs/site/columns.yaml. SCHEMA_VERSION rises, because `column_problems` rejects maps without the column: decide how existing
# maps get it. Besides, where it has another value than the default, or has to be read:
#   where segments are made or merged    SegmentBuilder (segments.py), `first_rows_at`, sinks/kafka/quarantine_release.py,
#                                        sinks/micro_batches/expired_offsets.py
#   in an archive                        archive_schema.py, archive_format/object_footer.py, operations/archive/rebuild.py
#   by readers of few columns            POSITION_COLUMNS (positions.py), TRANSLATION_COLUMNS (translation.py),
#                                        COMMIT_COLUMNS (groups/offset_translation.py),
#                                        COLUMNS (verify/map_index.py, report/offset_map_chart.py)
# Types: only those that every Delta reader knows (test_schema.py checks them). Columns that conditions select by belong into
# STATS_COLUMNS (table_protocol.py).
@dataclass(frozen=True, slots=True)
class OffsetMapRow:
    """A row of the offset map, the public interface of the mirror: a segment, its transaction and its decision."""

    source: SourcePartition
    source_start: int
    source_end: int
    kind: SegmentKind
    target: TargetPartition
    target_start: int | None
    target_end: int | None
    record_count: int
    batch_count: Int32
    rebuilt_batch_count: Int32
    size_bytes: int
    max_timestamp_ms: int | None
    source_leader_epoch: Int32 | None
    source_producer_id: int | None
    source_producer_epoch: Int32 | None
    coordinator_epoch: Int32 | None
    transactional_id: str | None
    target_producer_id: int | None
    """Of the transaction, or of the producer that all writers of a partition with preserved offsets share."""
    target_producer_epoch: Int32 | None
    run_epoch: Int32
    micro_batch: int
    decided_at_ms: TimeMs


_ROWS = row_codec(OffsetMapRow)
OFFSET_MAP = _ROWS.schema

_SEGMENT_FIELDS = tuple(field.name for field in fields(OffsetMapRow) if field.name in {of.name for of in fields(Segment)})
_values_of = operator.attrgetter(*_SEGMENT_FIELDS)


@dataclass(frozen=True, slots=True)
class WrittenBy:
    """The micro-batch and the slot of a DataFrame sink that wrote a row, as it is recorded with each of its rows.

    A streaming micro-batch has `query_id` and `batch_id`, a batch job has `job_id`. `slot_crc32c`: of the records of the slot as
    they came from Spark (`ContentDigest`).
    """

    query_id: str | None
    batch_id: int | None
    job_id: str | None
    source_offsets: str | None
    """The ends of all sources, as Spark's log of offsets has them; None of a job, and if Spark does not tell."""
    micro_batch_record_count: int
    """Of all slots."""
    slot: Int32
    slot_record_count: int
    slot_crc32c: int


@dataclass(frozen=True, slots=True)
class DecidedSegment:
    """A row of a decision, without the number and the time of it."""

    segment: Segment
    txn: SlotTxn | None
    """The Kafka transaction of the slot that made the row. None if the slot produced nothing, and in an archive."""
    stored: StoredBatches | None = None
    """The archive's place of the batches. None in an offset map, and if none were stored."""
    shared_producer_id: int | None = None
    """Of a target partition with preserved offsets, which every writer of it uses; such a row has no transaction."""
    is_continued: bool = False
    """The target had these offsets before the mirror, so that nothing was written; the row has no producer epoch."""
    written_by: WrittenBy | None = None
    """None in an offset map, and in an archive."""


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
    return _ROWS.to_arrow([_row(row, run_epoch, micro_batch, decided_at_ms) for row in rows])


def _row(row: DecidedSegment, run_epoch: int, micro_batch: int, decided_at_ms: int) -> OffsetMapRow:
    txn, segment = row.txn, row.segment
    columns: list[Any] = [*_values_of(segment)]
    if txn is None:
        shared_epoch = None if row.shared_producer_id is None or row.is_continued else 0
        columns += (None, row.shared_producer_id, shared_epoch)
    else:
        columns += (txn.transactional_id, txn.producer_id, txn.producer_epoch)
    columns += (run_epoch, micro_batch, decided_at_ms)
    return OffsetMapRow(*columns)


def row_to_segment(values: Mapping[str, Any]) -> DecidedSegment:
    """Return the segment of a row, by the names of all columns."""
    fields = _ROWS.fields(values)
    segment = Segment(**{name: fields[name] for name in _SEGMENT_FIELDS})
    txn_id, producer_id, epoch = (fields[name] for name in ("transactional_id", "target_producer_id", "target_producer_epoch"))
    if txn_id is not None:
        return DecidedSegment(segment, SlotTxn(txn_id, producer_id, epoch))
    is_continued = producer_id is not None and epoch is None
    return DecidedSegment(segment, None, shared_producer_id=producer_id, is_continued=is_continued)


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
