"""Commands: logs of one cluster, read within a bound in bytes: their records by content, or as keys and values."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.clients import BatchConsumer, FetchedBatch
from shallow_mirror.broker.cluster import reach
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.mirror_maker.running.record_search import Row
from shallow_mirror.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel, OffsetRange, TopicPartition
from shallow_mirror.verify import record_content
from shallow_mirror.wire.group_log import LoggedRecord, logged_records
from shallow_mirror.wire.records import open_batch

FETCH_BYTES = 1 << 20
MOST_OPENED_BYTES = 64 << 20
"""Of one batch, decompressed."""
_TIMESTAMP_TYPE = "message.timestamp.type"
_FURTHER_BACK = 8
_POLL_MS = 100.0
_PATIENCE_MS = 30_000.0
"""A cluster that sends nothing for so long ends the command."""


@dataclass(slots=True)
class ByteBudget:
    """`left`: bytes of batches that may still be read. `is_exceeded`: reading has ended before all was read, because of that."""

    left: int
    is_exceeded: bool = False


class LogReader:
    """Connects at the first request. Not thread-safe. Raises RetriableError, ConfigError; DataLossError, CorruptBatchError."""

    def __init__(
        self, client: ClientConfig, where: str, isolation: IsolationLevel, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`where` names the cluster in errors."""
        self.where = where
        self._cluster, self._isolation, self._clock = Cluster(client), isolation, clock
        self._consumer = BatchConsumer(client, isolation=isolation)

    def __enter__(self) -> Self:
        reach(self._cluster, self.where, self._deadline())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._consumer.close()
        self._cluster.close()

    def partitions(self) -> dict[str, tuple[int, ...]]:
        """Return all topics with their partitions."""
        topics = self._cluster.metadata(None, self._deadline()).topics
        return {name: tuple(sorted(topic.partitions)) for name, topic in topics.items() if not topic.error_code}

    def ranges(self, topic_partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetRange]:
        """Return the offsets that the logs hold, up to their last stable offsets under READ_COMMITTED."""
        starts, ends = (
            self._cluster.list_offsets(dict.fromkeys(topic_partitions, timestamp), self._isolation, self._deadline())
            if topic_partitions
            else {}
            for timestamp in (EARLIEST_TIMESTAMP, LATEST_TIMESTAMP)
        )
        return {
            topic_partition: OffsetRange(starts[topic_partition].offset, max(starts[topic_partition].offset, log_end.offset))
            for topic_partition, log_end in ends.items()
        }

    def first_since(self, topic_partition: TopicPartition, timestamp_ms: int) -> int | None:
        """Return the offset of the first record with this timestamp or a later one; None: there is none."""
        if timestamp_ms < 0:  # negative ones are commands of ListOffsets
            return None
        listed = self._cluster.list_offsets({topic_partition: timestamp_ms}, self._isolation, self._deadline())[topic_partition]
        return None if listed.offset < 0 else listed.offset

    def rows(self, topic_partition: TopicPartition, offsets: OffsetRange, budget: ByteBudget) -> Iterator[list[Row]]:
        """Yield records by their content, batch by batch, until the end or until the budget is spent."""
        for batch in self._batches(topic_partition, offsets, budget):
            records = open_batch(batch.view, topic_partition, max_bytes=MOST_OPENED_BYTES)
            yield [
                Row(record.offset, record_content(record)) for record in records if offsets.start <= record.offset < offsets.end
            ]

    def rows_around(
        self, topic_partition: TopicPartition, held: OffsetRange, position: int, before: int, behind: int, budget: ByteBudget
    ) -> list[Row] | None:
        """Return at least so many records before and behind a position; fewer only where the log has no more.

        `held`: the offsets of the log. A log may have large holes, so the distance grows until there are enough. None: the budget
        is exceeded before the position is reached.
        """
        back = before
        while True:
            start = max(held.start, position - back)
            rows: list[Row] = []
            for piece in self.rows(topic_partition, OffsetRange(start, held.end), budget):
                rows += piece
                if behind and sum(row.offset >= position for row in rows[-behind:]) >= behind:
                    break
            if budget.is_exceeded and (not rows or rows[-1].offset < position):
                return None
            if sum(row.offset < position for row in rows) >= before or start == held.start or budget.is_exceeded:
                return rows
            back *= _FURTHER_BACK

    def records(self, topic_partition: TopicPartition, offsets: OffsetRange, budget: ByteBudget) -> Iterator[list[LoggedRecord]]:
        """Yield records, batch by batch, as `rows`."""
        for batch in self._batches(topic_partition, offsets, budget):
            yield logged_records(batch.view, topic_partition, max_bytes=MOST_OPENED_BYTES)

    def is_append_time(self, topic: str) -> bool:
        """Return whether the brokers set the timestamps of a topic's records."""
        settings = self._cluster.topic_configs([topic], self._deadline(), keys=[_TIMESTAMP_TYPE])[topic]
        return settings.get(_TIMESTAMP_TYPE) == "LogAppendTime"

    def _batches(self, topic_partition: TopicPartition, offsets: OffsetRange, budget: ByteBudget) -> Iterator[FetchedBatch]:
        if offsets.start >= offsets.end:
            return
        self._consumer.assign({topic_partition: offsets.start})
        patience = self._patience()
        while (position := self._consumer.position(topic_partition)) < offsets.end:
            if budget.left <= 0:
                budget.is_exceeded = True
                return
            batches = self._consumer.poll_batches(FETCH_BYTES, _POLL_MS)
            for batch in batches:
                budget.left -= batch.size_bytes
                if batch.base_offset < offsets.end and not batch.is_control:
                    yield batch
            if self._consumer.position(topic_partition) > position:
                patience = self._patience()
            elif patience.is_over():
                text = f"{self.where} sent nothing of {topic_partition} from offset {position:,} on"
                raise RetriableError("REQUEST_TIMED_OUT", text)

    def _patience(self) -> Deadline:
        return Deadline.after_ms(_PATIENCE_MS, self._clock)

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(_PATIENCE_MS, self._clock)
