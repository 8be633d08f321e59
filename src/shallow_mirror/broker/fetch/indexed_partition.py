"""Everywhere: the batches of one partition in a Fetch response, with their headers indexed."""

from __future__ import annotations

from dataclasses import dataclass

from shallow_mirror.broker.fetch.fetch_client import stop_error
from shallow_mirror.errors import MirrorError
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.batches import BatchIndex, StopReason, index_batches
from shallow_mirror.wire.protocol import FetchedPartition
from shallow_mirror.wire.records import convert_legacy


@dataclass(frozen=True, slots=True)
class IndexedPartition:
    """Whole batches of one partition. `records` is writable and valid as long as its buffer (`RangeReader`)."""

    topic_partition: TopicPartition
    index: BatchIndex
    records: memoryview
    aborted: tuple[tuple[int, int], ...]
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    fetch_offset: int


FetchedResponse = tuple[IndexedPartition, ...]


def whole_batches(
    fetched: FetchedPartition, max_opened_bytes: int, range_end: int
) -> tuple[memoryview, BatchIndex, MirrorError | None]:
    """Return records, their index, and the error of the bytes behind them, if those are no partial batch.

    Message sets of magic 0 and 1 are converted, unless they open to more than `max_opened_bytes`. A batch belongs to the range
    that holds its base offset, so messages from `range_end` on begin another one.
    """
    records, topic_partition = fetched.records, fetched.topic_partition
    index = index_batches(records)
    if index.stop is not None and index.stop.reason is StopReason.LEGACY_MAGIC:
        converted = convert_legacy(records, topic_partition, max_opened_bytes=max_opened_bytes, range_end=range_end)
        records, index = converted.records, index_batches(converted.records)
        if converted.failure is not None:
            return records, index, converted.failure
    return records, index, None if index.stop is None else stop_error(topic_partition, index.stop)


def position_after(index: BatchIndex, range_end: int) -> int:
    """Return the position behind the last batch of the range; its end, if batches of the next range were fetched with it."""
    base_offsets = index.headers["base_offset"]
    last_offsets = index.last_offset[base_offsets < range_end]
    reached = int(last_offsets[-1]) + 1 if len(last_offsets) else 0
    return max(reached, range_end) if len(last_offsets) < len(base_offsets) else reached
