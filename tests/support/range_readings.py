"""Test support: partitions of a fake cluster, and readings of ranges of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.fakes.clients import SleepingClock
from tests.fakes.strict_broker import StrictCluster
from tests.support.record_batches import batch

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.fetch import IndexedPartition, RangeReader, ReadRange, receive_buffer
from shallow_mirror.broker.fetch.indexed_partition import FetchedResponse
from shallow_mirror.types import IsolationLevel, TopicPartition

A, B, C = (TopicPartition("t", partition) for partition in range(3))

COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


class Reading:
    """One reader and what it gave: (base offset, bytes) of the batches that belong to each range, in the order they came.

    With `responses` each is looked at as late as it is valid, and overwritten then.
    """

    def __init__(self, client: Cluster, clock: SleepingClock, *ranges: ReadRange, ms: float = 20_000, **settings: Any) -> None:
        self.ranges = {planned_range.topic_partition: planned_range for planned_range in ranges}
        fetch_bytes = settings.pop("fetch_bytes", 1 << 16)
        self._responses = settings.pop("responses", 1)
        self.reader = RangeReader(
            client,
            ranges,
            isolation=settings.pop("isolation", COMMITTED),
            fetch_bytes=fetch_bytes,
            deadline=clock.deadline(ms),
            max_wait_ms=10,
            buffers=[receive_buffer(fetch_bytes) for _ in range(2 * self._responses if self._responses > 1 else 1)],
            responses=self._responses,
        )
        self.batches: dict[TopicPartition, list[tuple[int, bytes]]] = {topic_partition: [] for topic_partition in self.ranges}
        self.parts: list[tuple[TopicPartition, int]] = []
        self.aborted: set[tuple[int, int]] = set()
        self.joined = 0
        """The most partitions of a response."""

    def run(self) -> dict[TopicPartition, list[tuple[int, bytes]]]:
        valid: deque[FetchedResponse] = deque()
        for response in self.reader:
            self.joined = max(self.joined, len(response))
            valid.append(response)
            if len(valid) == self._responses:
                self._take(valid.popleft())
        while valid:
            self._take(valid.popleft())
        for topic_partition, position in self.reader.positions().items():
            assert position >= self.ranges[topic_partition].end
        return self.batches

    def _take(self, response: FetchedResponse) -> None:
        for part in response:
            self._take_part(part)

    def _take_part(self, part: IndexedPartition) -> None:
        topic_partition = part.topic_partition
        bases = part.index.headers["base_offset"].tolist()
        self.parts.append((topic_partition, len(bases)))
        self.aborted |= set(part.aborted)
        for base, pos, size in zip(bases, part.index.pos.tolist(), part.index.size_bytes.tolist(), strict=True):
            if base < self.ranges[topic_partition].end:
                self.batches[topic_partition].append((base, bytes(part.records[pos : pos + size])))
        part.records[:] = b"\xee" * len(part.records)  # ours until the reader goes on: nothing it still needs


def stored(fake: StrictCluster, topic_partition: TopicPartition, start: int, end: int) -> list[tuple[int, bytes]]:
    """Return what a reader of [start, end) must give: batches that reach `start` and begin before `end`."""
    log = fake.log(topic_partition.topic, topic_partition.partition)
    return [
        (batch.header.base_offset, batch.data)
        for batch in log.batches
        if batch.header.last_offset >= start and batch.header.base_offset < end
    ]


def fill(fake: StrictCluster, topic_partition: TopicPartition, counts: Sequence[int], payload_bytes: int = 20) -> int:
    """Batches of that many records each; returns the log's end."""
    log = fake.log(topic_partition.topic, topic_partition.partition)
    for count in counts:
        log.seed(batch(log.end_offset, count, payload=bytes(payload_bytes)))
    return log.end_offset


def whole(topic_partition: TopicPartition, end: int, position: int = 0, bytes_per_offset: float = 100.0) -> ReadRange:
    return ReadRange(topic_partition, position, end, bytes_per_offset)


def with_id(fake: StrictCluster, client: Cluster, clock: SleepingClock, topic_partition: TopicPartition, end: int) -> ReadRange:
    return replace(
        whole(topic_partition, end),
        topic_id=client.metadata([topic_partition.topic], clock.deadline()).topics[topic_partition.topic].topic_id,
    )
