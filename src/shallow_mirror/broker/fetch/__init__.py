"""Reading of raw record batches with Fetch requests."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.broker.fetch import arrow_rows as arrow_rows
    from shallow_mirror.broker.fetch.arrow_rows import (
        SPARK_SCHEMA as SPARK_SCHEMA,
        Keep as Keep,
        RangeRows as RangeRows,
        failed_row as failed_row,
    )
    from shallow_mirror.broker.fetch.empty_ranges import topic_storage as topic_storage
    from shallow_mirror.broker.fetch.fetch_client import MAX_BATCH_BYTES as MAX_BATCH_BYTES
    from shallow_mirror.broker.fetch.indexed_partition import IndexedPartition as IndexedPartition
    from shallow_mirror.broker.fetch.range_progress import ReadRange as ReadRange
    from shallow_mirror.broker.fetch.range_reader import (
        BUFFER_SLACK_BYTES as BUFFER_SLACK_BYTES,
        PARTITION_PATIENCE_MS as PARTITION_PATIENCE_MS,
        RangeReader as RangeReader,
        receive_buffer as receive_buffer,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
