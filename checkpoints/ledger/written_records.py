"""Driver and other programs: the table of a DataFrame sink as a reader sees it. Needs no JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from shallow_mirror.checkpoints.ledger.commit_metadata import Recorded, check_table, read_recorded
from shallow_mirror.checkpoints.rows.schema import PROPERTY_MIRROR
from shallow_mirror.checkpoints.rows.table_layout import WRITTEN_RECORDS_LAYOUT
from shallow_mirror.checkpoints.rows.written_rows import (
    WRITTEN_PARTITION_COLUMNS,
    WrittenPartition,
    newest_batch_of,
    written_partitions_of,
)
from shallow_mirror.checkpoints.tables.storage import TableStorage
from shallow_mirror.checkpoints.tables.table_location import Tables
from shallow_mirror.checkpoints.tables.table_protocol import Comparison, Condition
from shallow_mirror.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class WrittenRecords:
    """The table at one version: where the records of each micro-batch are. Rows that may still be removed are left out."""

    def __init__(self, storage: TableStorage, *, name: str | None = None) -> None:
        """`name`: of the sink whose table it must be; None: anybody's. Raises as `open`."""
        snapshot = storage.decisions(WRITTEN_RECORDS_LAYOUT).snapshot()
        if snapshot is None:
            raise ConfigError("there is no table written_records where `tables` says: run the sink once, or check `tables`")
        check_table(snapshot, {} if name is None else {PROPERTY_MIRROR: name}, WRITTEN_RECORDS_LAYOUT)
        self._snapshot, self._recorded = snapshot, read_recorded(snapshot, WRITTEN_RECORDS_LAYOUT.title)

    @classmethod
    def open(cls, tables: TableStorage | Tables, spark: SparkSession | None = None, *, name: str | None = None) -> WrittenRecords:
        """`tables` is a folder, a URI, or `catalog:<catalog>.<schema>`, which needs a session that has the catalog.

        Raises ConfigError when there is no table yet or it is not that of `name`, OffsetMapConflictError when it is damaged.
        """
        return cls(TableStorage.of(tables, spark).to_read(), name=name)

    def recorded(self) -> Recorded | None:
        """Return the records of the newest commit: the run, its host and process id, and which decision is not settled."""
        return self._recorded

    @property
    def name(self) -> str:
        """Return the name of the sink whose table it is."""
        return self._snapshot.properties[PROPERTY_MIRROR]

    def decided_after(self, micro_batch: int) -> pa.Table:
        """Return the rows of decisions with a higher number, also of one whose rows may still be removed."""
        return self._snapshot.read((Comparison("micro_batch", ">", micro_batch),))

    def partitions(self) -> list[WrittenPartition]:
        """Return every target partition, with its end and the sums of its records and bytes. Reads all rows."""
        return written_partitions_of(self._snapshot.batches(self._settled(), WRITTEN_PARTITION_COLUMNS))

    def of_batch(self, query_id: str, batch_id: int) -> pa.Table:
        """Return the rows of a streaming micro-batch; none if it wrote nothing."""
        return self._read((Comparison("query_id", "=", query_id), Comparison("batch_id", "=", batch_id)))

    def of_job(self, job_id: str) -> pa.Table:
        """Return the rows of a batch job; none if it wrote nothing."""
        return self._read((Comparison("job_id", "=", job_id),))

    def newest(self) -> pa.Table:
        """Return the rows of the newest streaming micro-batch, with the source offsets behind which another query begins."""
        newest = newest_batch_of(lambda columns: self._snapshot.batches(self._settled(), columns))
        return WRITTEN_RECORDS_LAYOUT.schema.empty_table() if newest is None else self.of_batch(*newest)

    def _read(self, condition: Condition) -> pa.Table:
        return self._snapshot.read((*condition, *self._settled()))

    def _settled(self) -> Condition:
        unsettled = None if self._recorded is None else self._recorded.unsettled_micro_batch
        return () if unsettled is None else (Comparison("micro_batch", "!=", unsettled),)
