"""Driver and reading commands: the table `quarantine` beside the offset map, through deltalake or through Spark.

Unlike an observation it has to be there before the decision that speaks of it: what cannot be written or read is an error. Only
the driver writes it, from what tasks report, so that it reaches every catalog and a folder of this machine alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from shallow_mirror.checkpoints.backends.durable_table import KeptRows, open_rows, open_rows_to_read
from shallow_mirror.checkpoints.quarantined_batches import DESCRIBING, QUARANTINE_TABLE, QuarantinedBatch, rows_of
from shallow_mirror.checkpoints.storage import WriterName
from shallow_mirror.checkpoints.table_protocol import Condition
from shallow_mirror.checkpoints.table_storage import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class QuarantineTable:
    def __init__(self, rows: KeptRows, now_ms: Callable[[], int] = lambda: int(time.time() * 1000)) -> None:
        self._rows, self._now_ms = rows, now_ms

    def add(self, batches: Sequence[QuarantinedBatch], decision: int) -> None:
        """On the disk when it returns. Raises OutcomeUnknownError; rows of a decision that never comes count for nothing."""
        self._rows.append(rows_of(batches, decision, self._now_ms()))

    def described(self, condition: Condition) -> list[Mapping[str, Any]]:
        """Rows without the batches themselves, in no order."""
        return list(self._rows.read(condition, DESCRIBING))

    def whole(self, condition: Condition) -> list[Mapping[str, Any]]:
        """Rows with the batches: as many as `condition` lets pass are in memory at once."""
        return list(self._rows.read(condition, None))


def open_quarantine(tables: Tables, writer: WriterName, spark: SparkSession | None) -> QuarantineTable:
    return QuarantineTable(open_rows(tables, QUARANTINE_TABLE, writer, spark))


def open_quarantine_to_read(tables: Tables, spark: SparkSession | None) -> QuarantineTable:
    return QuarantineTable(open_rows_to_read(tables, QUARANTINE_TABLE, spark))
