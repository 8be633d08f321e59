"""Executor: archived batches as Arrow rows: one row per batch (the columns of `kafka-batches`) or one row per record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from shallow_mirror.archive_reading.read_bounds import ReadBounds
from shallow_mirror.archive_reading.record_reader import ANY_BATCH, MOST_OPENED_BYTES, OpenedRecord, open_records
from shallow_mirror.archive_reading.segment_reader import SegmentBatches
from shallow_mirror.broker.fetch import SPARK_SCHEMA, IndexedPartition, Keep, RangeRows

MOST_ARROW_BYTES = 8 << 20
"""Of keys, values and headers in one arrow batch of records; a larger record is alone."""
MOST_ARROW_RECORDS = 10_000
_RECORD_BYTES = 64
"""What a record takes besides its bytes, about."""

_HEADERS = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
RECORD_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("topic", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", tz="UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", _HEADERS),
        pa.field("topic_id", pa.string()),
        pa.field("kind", pa.string()),
        pa.field("lineage", pa.int32()),
    ]
)
"""The columns of Spark's Kafka source with `includeHeaders`, then three that it does not have."""
RECORD_SPARK_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int, "
    "headers array<struct<key: string, value: binary>>, topic_id string, kind string, "
    "lineage int"
)
_LINEAGE = RECORD_SCHEMA.field("lineage")
BATCH_SPARK_SCHEMA = f"{SPARK_SCHEMA}, lineage int"
"""The columns of `kafka-batches`, and the lineage."""
_MOST_TIMESTAMP_MS = ((1 << 63) - 1) // 1000
"""Later ones do not fit into a timestamp of Spark."""


def batch_rows(part: SegmentBatches, *, includes_aborted: bool = False) -> Iterator[pa.RecordBatch]:
    """Yield the rows of whole batches. Payloads are views of the part.

    Without `includes_aborted` only batches of kind data have rows, otherwise every batch.
    """
    base, last = part.index.headers["base_offset"], part.index.last_offset
    rows = RangeRows(
        part.source,
        int(base[0]),
        int(last[-1]) + 1,
        limits=ANY_BATCH,
        keep=Keep.ALL if includes_aborted else Keep.COMMITTED,
        has_holes=False,
    )
    batches = rows.of_answer(
        IndexedPartition(
            topic_partition=part.source.topic_partition,
            index=part.index,
            records=part.records,
            aborted=part.aborted,
            log_start_offset=0,
            last_stable_offset=part.end,
            high_watermark=part.end,
            fetch_offset=part.start,
        )
    )
    lineage = part.segment.segment.lineage
    for batch in batches:
        yield batch.append_column(_LINEAGE, pa.array([lineage] * batch.num_rows, _LINEAGE.type))


def record_rows(
    parts: Iterable[SegmentBatches],
    bounds: ReadBounds,
    *,
    includes_aborted: bool = False,
    most_opened_bytes: int = MOST_OPENED_BYTES,
) -> Iterator[pa.RecordBatch]:
    """Yield the wanted records, at most MOST_ARROW_RECORDS and about MOST_ARROW_BYTES at once. Raises as `open_records`."""
    gathered = _Gathered()
    for part in parts:
        for opened in open_records(part, bounds, includes_aborted=includes_aborted, most_opened_bytes=most_opened_bytes):
            if gathered.is_full:
                yield gathered.take()
            gathered.add(part, opened)
    if len(gathered):
        yield gathered.take()


class _Gathered:
    """Records in columns until an arrow batch is made of them. Copies: a view would keep its whole opened batch in memory."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._columns: tuple[list[Any], ...] = tuple([] for _ in RECORD_SCHEMA)
        self._append = tuple(column.append for column in self._columns)
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._columns[0])

    @property
    def is_full(self) -> bool:
        return self._size_bytes >= MOST_ARROW_BYTES or len(self) >= MOST_ARROW_RECORDS

    def add(self, part: SegmentBatches, opened: OpenedRecord) -> None:
        source = part.source
        offset, timestamp_ms, key, value, headers = opened.record
        has_timestamp = abs(timestamp_ms) <= _MOST_TIMESTAMP_MS
        row = (
            None if key is None else bytes(key),
            None if value is None else bytes(value),
            source.topic,
            source.partition,
            offset,
            timestamp_ms * 1000 if has_timestamp else None,
            opened.timestamp_type,
            [
                {"key": bytes(name).decode(errors="replace"), "value": None if content is None else bytes(content)}
                for name, content in headers
            ],
            source.topic_id,
            opened.kind.value,
            part.segment.segment.lineage,
        )
        for append, field in zip(self._append, row, strict=True):
            append(field)
        header_bytes = sum(len(name) + len(content or b"") for name, content in headers) if headers else 0
        self._size_bytes += _RECORD_BYTES + len(key or b"") + len(value or b"") + header_bytes

    def take(self) -> pa.RecordBatch:
        arrays = [pa.array(column, field.type) for column, field in zip(self._columns, RECORD_SCHEMA, strict=True)]
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)
