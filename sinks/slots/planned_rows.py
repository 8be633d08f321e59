"""Driver, planner process and executors: planned ranges as rows that Spark carries to the task of their slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from shallow_mirror.types import PlannedRange, SourcePartition

ARROW_SCHEMA = pa.schema(
    [
        pa.field("slot", pa.int32(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("topic_id", pa.string(), nullable=False),
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("range_start", pa.int64(), nullable=False),
        pa.field("range_end", pa.int64(), nullable=False),
        pa.field("bytes_per_offset", pa.float64(), nullable=False),
    ]
)


def arrow_batch_of(ranges: Sequence[PlannedRange]) -> pa.RecordBatch:
    """Return one row of `ARROW_SCHEMA` per range."""
    columns: list[list[Any]] = [
        [planned.slot for planned in ranges],
        [planned.source.topic for planned in ranges],
        [planned.source.topic_id for planned in ranges],
        [planned.source.partition for planned in ranges],
        [planned.start for planned in ranges],
        [planned.end for planned in ranges],
        [planned.bytes_per_offset for planned in ranges],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, ARROW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def holds_planned_ranges(schema: pa.Schema) -> bool:
    """Return whether rows of this schema are planned ranges, not record batches of `kafka-batches`."""
    return "range_end" in schema.names


def ranges_of(batch: pa.RecordBatch) -> list[PlannedRange]:
    """Return the rows of `ARROW_SCHEMA` as values."""
    return [
        PlannedRange(
            slot=row["slot"],
            source=SourcePartition(row["topic"], row["topic_id"], row["partition"]),
            start=row["range_start"],
            end=row["range_end"],
            bytes_per_offset=row["bytes_per_offset"],
        )
        for row in batch.to_pylist()
    ]


def ranges_by_slot(ranges: Sequence[PlannedRange]) -> list[tuple[PlannedRange, ...]]:
    """Return the ranges of each slot that has any, in the order of slots."""
    by_slot: dict[int, list[PlannedRange]] = {}
    for planned in ranges:
        by_slot.setdefault(planned.slot, []).append(planned)
    return [tuple(slot) for _, slot in sorted(by_slot.items())]
