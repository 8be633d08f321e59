"""Columns of the table `quarantine`, and its rows as values. No Delta import here: executors read this file too."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import numpy as np

from shallow_mirror.checkpoints.rows.codec import Inline, Int32, TimeMs, row_codec
from shallow_mirror.types import SourcePartition, TargetPartition
from shallow_mirror.wire import HEADER, crc32c

QUARANTINE_TABLE = "quarantine"

BATCH = "batch"
"""The column that is large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchHeader:
    """Fields of the header as the batch has them, which may be damaged."""

    base_offset: int
    source_leader_epoch: Int32
    magic: Int32
    crc: int
    attributes: Int32
    last_offset_delta: Int32
    base_timestamp_ms: int
    max_timestamp_ms: int
    source_producer_id: int
    source_producer_epoch: Int32
    base_sequence: Int32
    records_count: Int32

    @classmethod
    def parse(cls, batch: bytes) -> BatchHeader:
        header = np.frombuffer(batch, HEADER, count=1)[0]
        return cls(
            base_offset=int(header["base_offset"]),
            source_leader_epoch=int(header["partition_leader_epoch"]),
            magic=int(header["magic"]),
            crc=int(header["crc"]),
            attributes=int(header["attributes"]),
            last_offset_delta=int(header["last_offset_delta"]),
            base_timestamp_ms=int(header["base_timestamp"]),
            max_timestamp_ms=int(header["max_timestamp"]),
            source_producer_id=int(header["producer_id"]),
            source_producer_epoch=int(header["producer_epoch"]),
            base_sequence=int(header["base_sequence"]),
            records_count=int(header["records_count"]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineRow:
    """A row of the table: one a batch and attempt.

    It counts only if the offset map has a `quarantined` row of the same offsets, and then the row of the highest `decision` does.
    """

    source: SourcePartition
    source_start: int
    source_end: int
    target: TargetPartition
    header: Annotated[BatchHeader, Inline()]
    size_bytes: int
    batch_crc32c: int
    """Over the whole of `batch`: its own `crc` may be what is wrong with it."""
    error_name: str | None
    rule: str
    remedy: str
    decision: int
    quarantined_at_ms: TimeMs
    batch: bytes


QUARANTINE = row_codec(QuarantineRow)


DESCRIBING = [name for name in QUARANTINE.schema.names if name != BATCH]


class BatchKey(NamedTuple):
    """The segment of the map that is this batch."""

    source: SourcePartition
    source_start: int
    source_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedBatch:
    """A quarantined batch. Of its records those in [source_start, source_end) were to be copied.

    `batch`: as the source sent it (message sets older than magic 2: as the mirror converted them). `error_name`: the target's;
    None if the batch was not sent.
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


def row_of(batch: QuarantinedBatch, decision: int, now_ms: int) -> QuarantineRow:
    return QuarantineRow(
        source=batch.source,
        source_start=batch.source_start,
        source_end=batch.source_end,
        target=batch.target,
        header=BatchHeader.parse(batch.batch),
        size_bytes=len(batch.batch),
        batch_crc32c=crc32c(batch.batch),
        error_name=batch.error_name,
        rule=batch.rule,
        remedy=batch.remedy,
        decision=decision,
        quarantined_at_ms=now_ms,
        batch=batch.batch,
    )


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
