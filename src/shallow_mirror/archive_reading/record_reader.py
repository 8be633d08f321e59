"""Everywhere: the records of archived batches, opened one batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shallow_mirror.archive_reading.read_bounds import ReadBounds
from shallow_mirror.archive_reading.segment_reader import SegmentBatches
from shallow_mirror.errors import ArchiveFormatError, BatchRefusedError, CorruptBatchError, OffsetDeltasError
from shallow_mirror.types import BatchLimits, IsolationLevel, LogAppendTimePolicy, SegmentKind
from shallow_mirror.wire import LOG_APPEND_TIME_BIT
from shallow_mirror.wire.batches import Verdict, admit, kind_of
from shallow_mirror.wire.records import Record, unpack_batch

MOST_OPENED_BYTES = 256 << 20
"""Of one batch, decompressed."""
CREATE_TIME, LOG_APPEND_TIME = 0, 1
"""Numbers of Kafka's TimestampType."""

ANY_BATCH = BatchLimits(
    max_message_bytes=(1 << 31) - 1,
    isolation_level=IsolationLevel.READ_COMMITTED,
    log_append_time=LogAppendTimePolicy.KEEP,
)
_LEFT_OUT = (Verdict.DROP_EMPTY, Verdict.DROP_BELOW, Verdict.BEYOND)
_NOT_COMMITTED = (Verdict.DROP_CONTROL, Verdict.DROP_ABORTED)


@dataclass(frozen=True, slots=True)
class OpenedRecord:
    """`kind`: data; aborted; commit, abort or gap for control records. Fields of `record` are views of the opened batch."""

    record: Record
    timestamp_type: int
    kind: SegmentKind


def open_records(
    part: SegmentBatches, bounds: ReadBounds, *, includes_aborted: bool = False, most_opened_bytes: int = MOST_OPENED_BYTES
) -> Iterator[OpenedRecord]:
    """Yield the wanted records of these batches in the order of offsets.

    Without `includes_aborted` those of aborted transactions and control records are left out. Batches that hold nothing wanted by
    their headers are not opened. Raises ArchiveFormatError, CorruptBatchError (the producer's own damage, which a checksum does
    not show), BatchRefusedError above `most_opened_bytes`, ConfigError without the library of a codec.
    """
    index, partition = part.index, part.source.topic_partition
    admission = admit(
        index,
        part.records,
        topic_partition=partition,
        position=part.start,
        range_end=part.end,
        aborted=part.aborted,
        limits=ANY_BATCH,
    )
    for refusal in admission.refusals:
        assert part.segment.stored is not None
        detail = f"the batch of {partition} at offset {refusal.base_offset} cannot be read: {refusal.rule}"
        raise ArchiveFormatError(part.segment.stored.object_name, detail, refusal.remedy)
    left_out = _LEFT_OUT if includes_aborted else (*_LEFT_OUT, *_NOT_COMMITTED)
    wanted = ~np.isin(admission.verdicts, left_out)
    if bounds.run_min_timestamp_ms is not None:
        wanted &= index.headers["max_timestamp"] >= bounds.run_min_timestamp_ms
    for i in np.flatnonzero(wanted).tolist():
        timestamp_type = LOG_APPEND_TIME if index.headers["attributes"][i] & LOG_APPEND_TIME_BIT else CREATE_TIME
        kind = kind_of(admission, i)
        for record in _records(part, i, most_opened_bytes):
            if part.start <= record.offset < part.end and bounds.holds(record.offset, record.timestamp_ms):
                yield OpenedRecord(record, timestamp_type, kind)


def _records(part: SegmentBatches, i: int, most_opened_bytes: int) -> Iterator[Record]:
    assert part.segment.stored is not None
    object_name = part.segment.stored.object_name
    try:
        yield from unpack_batch(part.batch(i), part.source.topic_partition, max_bytes=most_opened_bytes).records()
    except OffsetDeltasError as error:
        remedy = "Read its bytes (records = false)"
        raise BatchRefusedError(error.topic_partition, error.base_offset, error.rule, remedy) from error
    except BatchRefusedError as error:
        remedy = "Raise the bound (maxOpenedBytes), or read its bytes (records = false)"
        raise BatchRefusedError(error.topic_partition, error.base_offset, error.rule, remedy) from error
    except CorruptBatchError as error:
        reason = (
            f"{error.reason}; its checksum holds, so it was archived like this (object {object_name}); records = false reads it"
        )
        raise CorruptBatchError(error.topic_partition, error.base_offset, error.pos, reason) from error
