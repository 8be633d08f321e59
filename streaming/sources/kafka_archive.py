"""The data source `kafka-archive`: the record batches or the records of an archive, as batch query.

`register_kafka_archive(spark)` once, then `spark.read.format("kafka-archive")`. Options: `archive_options.py`; columns:
`archive_reading/archive_rows.py`. Filters on topic, partition, offset and time leave out rows of the table and runs of objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition

from shallow_mirror.archive_reading.archive_rows import RECORD_SPARK_SCHEMA, batch_rows, record_rows
from shallow_mirror.archive_reading.read_bounds import ReadBounds
from shallow_mirror.archive_reading.scan_plan import ScanPart, plan_scan, read_part
from shallow_mirror.broker.cluster.worker_clients import freeze_imports_once
from shallow_mirror.broker.fetch.arrow_rows import SPARK_SCHEMA
from shallow_mirror.streaming.sources import stream_reader
from shallow_mirror.streaming.sources.archive_filters import bounds_of
from shallow_mirror.streaming.sources.archive_options import is_record_option, parse_archive_options

NAME = "kafka-archive"

_PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def register_kafka_archive(spark: SparkSession) -> None:
    """Register the data source, and enable filter pushdown for Python data sources in this session, which it requires."""
    spark.conf.set(_PUSHDOWN, "true")
    stream_reader.register(spark, KafkaArchive)


class KafkaArchive(DataSource):  # type: ignore[misc]
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return RECORD_SPARK_SCHEMA if is_record_option(dict(self.options)) else SPARK_SCHEMA

    def reader(self, schema: object) -> ArchiveSourceReader:
        return ArchiveSourceReader(dict(self.options))


@dataclass(frozen=True)
class ArchivePartition(InputPartition):  # type: ignore[misc]
    part: ScanPart


class ArchiveSourceReader(DataSourceReader):  # type: ignore[misc]
    """Pickled for the executors: holds options with references, and the bounds that filters set."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = parse_archive_options(options)
        self._bounds = ReadBounds(disorder_ms=self._options.disorder_ms)

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        """Return all filters: bounds leave out what they can, and Spark evaluates each filter exactly."""
        self._bounds = bounds_of(filters, self._bounds)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        # Imported here: this process plans, and executors need no deltalake.
        from shallow_mirror.checkpoints.archive_table import ArchiveTable

        table = ArchiveTable.open(self._options.tables)
        return [ArchivePartition(part) for part in plan_scan(table, self._bounds, self._options.part_bytes)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part. Spark passes None where there are no input partitions."""
        if not isinstance(partition, ArchivePartition):
            return
        freeze_imports_once()
        options, part = self._options, partition.part
        batches = read_part(options.open_store(), part)
        if options.is_records:
            yield from record_rows(
                batches,
                part.bounds,
                includes_aborted=options.includes_aborted,
                most_opened_bytes=options.most_opened_bytes,
            )
            return
        for batch in batches:
            yield from batch_rows(batch, includes_aborted=options.includes_aborted)
