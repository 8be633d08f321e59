"""The private data source `shallow-mirror-ranges`: one row per planned range, one input partition per slot.

The driver registers it; planning runs in Spark's planner process; `read` runs on executors and only yields what its
input partition carries.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, InputPartition
from pyspark.sql.types import DoubleType, IntegerType, LongType, StringType, StructField, StructType

from shallow_mirror.sinks.slots import arrow_batch_of, environment_of_plan_readers
from shallow_mirror.streaming.sources.registration import register
from shallow_mirror.streaming.sources.stream_reader import PlannedStreamReader, SlotPartition

NAME = "shallow-mirror-ranges"

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


def register_planned_ranges(spark: SparkSession) -> None:
    """Register the data source, with workers of its own."""
    with environment_of_plan_readers(spark):
        register(spark, PlannedRanges)


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
