"""The private data source `shallow-mirror-ranges`: one row per planned range, one input partition per slot.

The driver registers it; planning runs in Spark's planner process; `read` runs on executors and only yields what its
input partition carries. The planner's connections are made at the first question, never in `__init__`: Spark pickles
another instance of the reader for the executors.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import DoubleType, IntegerType, LongType, StringType, StructField, StructType

from shallow_mirror.config import MirrorConfig
from shallow_mirror.streaming import planning
from shallow_mirror.streaming.planner import MicroBatchPlanner, Planner
from shallow_mirror.streaming.planning import Offsets
from shallow_mirror.types import PlannedRange

NAME = "shallow-mirror-ranges"

_CONFIG = "mirrorsecret"
"""Spark hides options whose name holds "secret" in plans and logs; a client property may be one."""
_PARALLELISM = "parallelism"
_INITIAL = "initial"

SCHEMA = StructType(
    [
        StructField("slot", IntegerType(), False),
        StructField("topic", StringType(), False),
        StructField("topic_id", StringType(), False),
        StructField("partition", IntegerType(), False),
        StructField("leader_epoch", IntegerType(), False),
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
        pa.field("leader_epoch", pa.int32(), nullable=False),
        pa.field("range_start", pa.int64(), nullable=False),
        pa.field("range_end", pa.int64(), nullable=False),
        pa.field("bytes_per_offset", pa.float64(), nullable=False),
    ]
)


@dataclass(frozen=True)
class SlotPartition(InputPartition):  # type: ignore[misc]
    """Spark's input partition: everything one slot does in a micro-batch."""

    ranges: tuple[PlannedRange, ...]


def register(spark: SparkSession) -> None:
    spark.dataSource.register(MirrorRanges)


def options_of(config: MirrorConfig, *, initial: Offsets | None = None, parallelism: int | None = None) -> dict[str, str]:
    """Options of the stream. `initial` is where a new Spark checkpoint begins: the map's positions, or `read.start` if None."""
    options = {_CONFIG: config.to_json(), _PARALLELISM: str(parallelism or _session_parallelism())}
    if initial is not None:
        options[_INITIAL] = json.dumps(planning.build_stream_offset(initial))
    return options


def _session_parallelism() -> int:
    spark = SparkSession.getActiveSession()
    return int(spark.sparkContext.defaultParallelism) if spark is not None else os.cpu_count() or 1


def make_micro_batch_planner(config: MirrorConfig, parallelism: int) -> MicroBatchPlanner:
    from shallow_mirror.broker.cluster import Cluster  # planner process only

    return MicroBatchPlanner(config, Planner(config, Cluster(config.source.client)), parallelism=parallelism)


class MirrorRanges(DataSource):  # type: ignore[misc]
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return SCHEMA

    def streamReader(self, schema: StructType) -> RangeStreamReader:  # noqa: N802 - Spark's name
        return RangeStreamReader(dict(self.options))


class RangeStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        self._planner: MicroBatchPlanner | None = None

    def make_planner(self, config: MirrorConfig, parallelism: int) -> MicroBatchPlanner:
        return make_micro_batch_planner(config, parallelism)

    def _planning(self) -> MicroBatchPlanner:
        if self._planner is None:
            config = MirrorConfig.from_json(self._options[_CONFIG])
            self._planner = self.make_planner(config, int(self._options[_PARALLELISM]))
        return self._planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        if _INITIAL in self._options:
            return planning.build_stream_offset(planning.parse_stream_offset(json.loads(self._options[_INITIAL])))
        return planning.build_stream_offset(self._planning().initial())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """The limit is ours (`read.micro_batch_bytes`), whatever Spark passes. Raises DataLoss."""
        return planning.build_stream_offset(self._planning().latest(planning.parse_stream_offset(start)))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._planning().prepare_available_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        ranges = self._planning().ranges(planning.parse_stream_offset(start), planning.parse_stream_offset(end))
        by_slot: dict[int, list[PlannedRange]] = {}
        for one in ranges:
            by_slot.setdefault(one.slot, []).append(one)
        return [SlotPartition(tuple(slot)) for _, slot in sorted(by_slot.items())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, SlotPartition)
        yield arrow_batch_of(partition.ranges)

    def commit(self, end: dict[str, Any]) -> None:
        """The map decides; Spark's commits mean nothing to the source."""


def arrow_batch_of(ranges: Sequence[PlannedRange]) -> pa.RecordBatch:
    columns: list[list[Any]] = [
        [one.slot for one in ranges],
        [one.source.topic for one in ranges],
        [one.source.topic_id for one in ranges],
        [one.source.partition for one in ranges],
        [one.leader_epoch for one in ranges],
        [one.start for one in ranges],
        [one.end for one in ranges],
        [one.bytes_per_offset for one in ranges],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, ARROW_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)
