"""Columns of the table `quarantine`, and its rows as values. No Delta import here: executors read this file too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from shallow_mirror.checkpoints.schema import TIMESTAMP
from shallow_mirror.types import SourcePartition, TargetPartition
from shallow_mirror.wire.batches.crc import crc32c
from shallow_mirror.wire.batches.header import HEADER

QUARANTINE_TABLE = "quarantine"

_HEADER_COLUMNS: Mapping[str, tuple[str, pa.DataType]] = {
    "base_offset": ("base_offset", pa.int64()),
    "partition_leader_epoch": ("source_leader_epoch", pa.int32()),
    "magic": ("magic", pa.int32()),
    "crc": ("crc", pa.int64()),
    "attributes": ("attributes", pa.int32()),
    "last_offset_delta": ("last_offset_delta", pa.int32()),
    "base_timestamp": ("base_timestamp_ms", pa.int64()),
    "max_timestamp": ("max_timestamp_ms", pa.int64()),
    "producer_id": ("source_producer_id", pa.int64()),
    "producer_epoch": ("source_producer_epoch", pa.int32()),
    "base_sequence": ("base_sequence", pa.int32()),
    "records_count": ("records_count", pa.int32()),
}
"""Fields of the header as the batch has them, which may be damaged."""

BATCH = "batch"
"""The column that is large."""

QUARANTINE = pa.schema(
    [
        ("source_topic", pa.string()),
        ("source_topic_id", pa.string()),
        ("source_partition", pa.int32()),
        ("source_start", pa.int64()),
        ("source_end", pa.int64()),
        ("target_topic", pa.string()),
        ("target_topic_id", pa.string()),
        ("target_partition", pa.int32()),
        *_HEADER_COLUMNS.values(),
        ("size_bytes", pa.int64()),
        ("batch_crc32c", pa.int64()),
        ("error_name", pa.string()),
        ("rule", pa.string()),
        ("remedy", pa.string()),
        ("decision", pa.int64()),
        ("quarantined_at", TIMESTAMP),
        (BATCH, pa.binary()),
    ]
)
"""One row a batch and attempt: it counts only if the offset map has a `quarantined` row of the same offsets, and then the row of
the highest `decision` does. `batch_crc32c` is over the whole of `batch`, its own `crc` may be what is wrong with it."""

DESCRIBING = [name for name in QUARANTINE.names if name != BATCH]


class BatchKey(NamedTuple):
    """The segment of the map that is this batch."""

    source: SourcePartition
    source_start: int
    source_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedBatch:
    """A quarantined batch. Of its records those in [source_start, source_end) were to be copied.

    `batch`: as the source sent it (message sets older than magic 2: as the mirror converted them). `error_name`: the target's;
    None where the batch was not sent.
    """

    source: SourcePartition
    source_start: int
    source_end: int
    target: TargetPartition
    error_name: str | None
    rule: str
    remedy: str
    batch: bytes

    @property
    def key(self) -> BatchKey:
        return BatchKey(self.source, self.source_start, self.source_end)

    def __str__(self) -> str:
        last = self.source_end - 1
        return f"{self.source.topic_partition}: batch at offsets {self.source_start} to {last}: {self.rule}. {self.remedy}"


def rows_of(batches: Sequence[QuarantinedBatch], decision: int, now_ms: int) -> pa.Table:
    at = datetime.fromtimestamp(now_ms / 1000, UTC)
    return pa.Table.from_pylist(
        [_row(batch) | {"decision": decision, "quarantined_at": at} for batch in batches], schema=QUARANTINE
    )


def _row(batch: QuarantinedBatch) -> dict[str, Any]:
    values = np.frombuffer(batch.batch, HEADER, count=1)[0].item()
    header = dict(zip(HEADER.names or (), values, strict=True))
    return {
        "source_topic": batch.source.topic,
        "source_topic_id": batch.source.topic_id,
        "source_partition": batch.source.partition,
        "source_start": batch.source_start,
        "source_end": batch.source_end,
        "target_topic": batch.target.topic,
        "target_topic_id": batch.target.topic_id,
        "target_partition": batch.target.partition,
        **{column: header[field] for field, (column, _) in _HEADER_COLUMNS.items()},
        "size_bytes": len(batch.batch),
        "batch_crc32c": crc32c(batch.batch),
        "error_name": batch.error_name,
        "rule": batch.rule,
        "remedy": batch.remedy,
        BATCH: batch.batch,
    }


def key_of(row: Mapping[str, Any]) -> BatchKey:
    """Return the key of a row of this table, or of the offset map."""
    source = SourcePartition(row["source_topic"], row["source_topic_id"], row["source_partition"])
    return BatchKey(source, row["source_start"], row["source_end"])


def batch_of(row: Mapping[str, Any]) -> QuarantinedBatch:
    """Return the batch of a whole row."""
    key = key_of(row)
    return QuarantinedBatch(
        source=key.source,
        source_start=key.source_start,
        source_end=key.source_end,
        target=TargetPartition(row["target_topic"], row["target_topic_id"], row["target_partition"]),
        error_name=row["error_name"],
        rule=row["rule"],
        remedy=row["remedy"],
        batch=row[BATCH],
    )


def is_whole(row: Mapping[str, Any]) -> bool:
    """Return whether the bytes of a whole row are those that were quarantined."""
    return bool(len(row[BATCH]) == row["size_bytes"] and crc32c(row[BATCH]) == row["batch_crc32c"])
