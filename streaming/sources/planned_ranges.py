"""The private data source `shallow-mirror-ranges`: one row per planned range, one input partition per slot.

The driver registers it; planning runs in Spark's planner process; `read` runs on executors and only yields what its
input partition carries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import DoubleType, IntegerType, LongType, StringType, StructField, StructType

from shallow_mirror.sinks.slots.worker_environment import environment_of_plan_readers
from shallow_mirror.streaming.sources import stream_reader
from shallow_mirror.streaming.sources.stream_reader import PlannedStreamReader, SlotPartition
from shallow_mirror.types import PlannedRange

NAME = "shallow-mirror-ranges"

_RANGES = "ranges"

SCHEMA = StructType(
    [
        StructField("slot", IntegerType(), False),
        StructField("topic", StringType(), False),
        StructField("topic_id", StringType(), False),
        StructField("partition", IntegerType(), False),
        StructField("range_start", LongType(), False),
        StructField("range_end", LongType(), False),
        StructField("bytes_per_offset", DoubleType(), False),
    ]
)
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


def register_planned_ranges(spark: SparkSession) -> None:
    """Register the data source, with workers of its own."""
    with environment_of_plan_readers(spark):
        stream_reader.register(spark, PlannedRanges)


class PlannedRanges(DataSource):  # type: ignore[misc]
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> RangeStreamReader:  # noqa: N802 - Spark's name
        return RangeStreamReader(dict(self.options))


class RangeStreamReader(PlannedStreamReader):
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SlotPartition)
        yield arrow_batch_of(partition.ranges)


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
