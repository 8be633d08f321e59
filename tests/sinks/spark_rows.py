"""What Spark hands over of planned ranges, with `read.transfer: through-spark`."""

from __future__ import annotations

import pyarrow as pa
from tests.sinks.two_strict_clusters import LIMITS, Clusters, client_of

from shallow_mirror.broker.fetch import Keep
from shallow_mirror.streaming.sources.kafka_batches import RowReader
from shallow_mirror.types import IsolationLevel, PlannedRange


def rows_of(
    clusters: Clusters, *ranges: PlannedRange, is_data_loss_fatal: bool = True, isolates: bool = False
) -> list[pa.RecordBatch]:
    """Return what `kafka-batches` hands over, as it arrives in another process."""
    reader = RowReader(
        client=client_of(clusters.source),
        isolation=IsolationLevel.READ_COMMITTED,
        limits=LIMITS,
        keep=Keep.ALL,
        fetch_bytes=1 << 16,
        failures_as_rows=True,
        is_data_loss_fatal=is_data_loss_fatal,
        isolates=isolates,
    )
    made = []
    for arrow_batch in reader.read(ranges):
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, arrow_batch.schema) as writer:
            writer.write_batch(arrow_batch)
        made.append(pa.ipc.open_stream(sink.getvalue()).read_next_batch())
    return made
