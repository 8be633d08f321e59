"""Driver: the batches of one partition after the other, up to a bound; one answer in memory, one on the wire."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.fetch import IndexedPartition, RangeReader, ReadRange, receive_buffer
from shallow_mirror.deadline import Deadline, Silence
from shallow_mirror.types import IsolationLevel, OffsetRange, TopicPartition

PATIENCE_MS = 60_000
"""A source that sends nothing for so long ends the preflight."""

_MAX_WAIT_MS = 100
"""Reads are below the log's end, so a broker has nothing to wait for."""

_LEAST_FETCH_BYTES = 64 << 10


class SampleReader:
    """`read_bytes` in `seconds`: of all partitions so far."""

    def __init__(
        self,
        cluster: Cluster,
        isolation: IsolationLevel,
        *,
        fetch_bytes: int,
        sample_bytes: int | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._isolation, self._sample_bytes, self._clock = cluster, isolation, sample_bytes, clock
        self._fetch_bytes = fetch_bytes if sample_bytes is None else min(fetch_bytes, max(sample_bytes, _LEAST_FETCH_BYTES))
        self._buffer = receive_buffer(self._fetch_bytes)
        self.read_bytes, self.seconds = 0, 0.0

    def read(self, topic_partition: TopicPartition, wanted: OffsetRange) -> Iterator[tuple[IndexedPartition, int]]:
        """Answers, each with the offset up to which the partition is read then, until its end or the bound is reached.

        Raises DataLossError, CorruptBatchError, BatchRefusedError, ConfigError, RetriableError; earlier results hold.
        """
        silence, began, before = Silence(self._clock), self._clock(), self.read_bytes
        reader = RangeReader(
            self._cluster,
            [ReadRange(topic_partition, wanted.start, wanted.end, float(self._fetch_bytes))],
            isolation=self._isolation,
            fetch_bytes=self._fetch_bytes,
            deadline=Deadline.after_ms(PATIENCE_MS, silence),
            max_wait_ms=_MAX_WAIT_MS,
            buffers=[self._buffer],
        )
        try:
            for response in reader:
                for part in response:
                    silence.reset()
                    self.read_bytes += int(part.index.size_bytes.sum())
                    yield part, reader.positions()[topic_partition]
                    if self._sample_bytes is not None and self.read_bytes - before >= self._sample_bytes:
                        return
        finally:
            self.seconds += self._clock() - began
