"""The sink for DataFrames: their rows as records, in Kafka transactions that a commit to Delta decides."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.sinks.records.lost_micro_batches import micro_batches_of_receipts as micro_batches_of_receipts
    from shallow_mirror.sinks.records.micro_batch_identity import (
        MicroBatchId as MicroBatchId,
        RecordedMicroBatch as RecordedMicroBatch,
        plan_micro_batch as plan_micro_batch,
    )
    from shallow_mirror.sinks.records.record_job import RecordJob as RecordJob
    from shallow_mirror.sinks.records.record_sink import RecordSink as RecordSink, Written as Written
    from shallow_mirror.sinks.records.row_schema import record_columns as record_columns
else:
    __getattr__, __dir__ = lazy_names(__name__)
