"""The data source `kafka-archive`: the record batches or the records of an archive, as batch query.

`register_kafka_archive(spark)` once, then `spark.read.format("kafka-archive")`. Options: `archive_options.py`; columns:
`archive_reading/archive_rows.py`. Options bound what is read by topic, partition, offset and time.

Filters of a query do so only on request (`pushFilters`): Spark 4.2 plans a Python data source once per loaded DataFrame, with the
filters that were pushed down last. Where one DataFrame is filtered in two ways, the other query would lose rows without an error.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, Filter, InputPartition

from shallow_mirror.archive_reading.archive_rows import BATCH_SPARK_SCHEMA, RECORD_SPARK_SCHEMA, batch_rows, record_rows
from shallow_mirror.archive_reading.scan_plan import ScanPart, plan_scan, read_part
from shallow_mirror.broker.cluster import freeze_imports_once
from shallow_mirror.streaming.sources.archive_filters import bounds_of
from shallow_mirror.streaming.sources.archive_options import ArchiveOptions, is_record_option, parse_archive_options
from shallow_mirror.streaming.sources.registration import register

_log = logging.getLogger(__name__)

NAME = "kafka-archive"


def register_kafka_archive(spark: SparkSession) -> None:
    """Register the data source `kafka-archive` in `spark`."""
    register(spark, KafkaArchive)


class KafkaArchive(DataSource):  # type: ignore[misc]
    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return RECORD_SPARK_SCHEMA if is_record_option(dict(self.options)) else BATCH_SPARK_SCHEMA

    def reader(self, schema: object) -> ArchiveSourceReader:
        options = parse_archive_options(dict(self.options))
        return FilteringReader(options) if options.pushes_filters else ArchiveSourceReader(options)


@dataclass(frozen=True)
class ArchivePartition(InputPartition):  # type: ignore[misc]
    part: ScanPart


class ArchiveSourceReader(DataSourceReader):  # type: ignore[misc]
    """Pickled for the executors: holds options with references."""

    def __init__(self, options: ArchiveOptions) -> None:
        self._options, self.bounds = options, options.bounds

    def partitions(self) -> Sequence[InputPartition]:
        # Imported here: this process plans, and executors need no deltalake.
        from shallow_mirror.archive_reading.state_at_cut import StateAtCut, topics_to_scan
        from shallow_mirror.checkpoints.ledger import ArchiveTable, seen_topics

        options = self._options
        table = ArchiveTable.open(options.tables)
        topics = None
        if options.as_of_ms is not None or options.topic_ids or options.reads_all_topic_ids:
            store = None if options.as_of_ms is None else options.open_store()
            state = StateAtCut(table, store, time_ms=options.as_of_ms, seen=seen_topics(options.tables))
            ids = None if options.reads_all_topic_ids else options.topic_ids
            topics = topics_to_scan(state, self.bounds.of_topics_only(), ids, options.lineage)
            for note in (note for of_topic in topics.values() for each in of_topic for note in each.notes):
                _log.info("%s", note)
        planned = plan_scan(table, self.bounds, options.part_bytes, lineage=options.lineage, topics=topics)
        return [ArchivePartition(part) for part in planned]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part. Spark passes None if there are no input partitions."""
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


class FilteringReader(ArchiveSourceReader):
    """Spark rejects any reader with `pushFilters` if `spark.sql.python.filterPushdown.enabled` is not set."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        """Return all filters: bounds leave out rows if they can, and Spark evaluates each filter exactly."""
        self.bounds = bounds_of(filters, self.bounds)
        return filters
