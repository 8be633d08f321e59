"""Everywhere: which ranges of a reader are not done, and when those that could not be read are requested again."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.topic_presence import missing_topics
from shallow_mirror.broker.fetch.range_progress import RangeProgress, ReadRange
from shallow_mirror.broker.net.error_codes import UNKNOWN_TOPIC_OR_PARTITION, error_name
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.types import TopicPartition

TRIES_BEFORE_GONE = 8
"""Between one and two seconds without a batch: then it is checked whether the topics still exist."""


class RangeRetries:
    """The progress of each range. `patience_ms`: as of a RangeReader."""

    def __init__(self, cluster: Cluster, ranges: Sequence[ReadRange], deadline: Deadline, patience_ms: float | None) -> None:
        self.progress = {read_range.topic_partition: RangeProgress(read_range, read_range.position) for read_range in ranges}
        self._cluster = cluster
        self._deadline = deadline
        self._patience_ms = patience_ms
        self._order = deque(self.progress)
        self._tries = 0

    def on_response(self, *, has_batches: bool) -> None:
        """Name another partition first in the next request; with batches, a broker answers again."""
        self._order.rotate(-1)
        if has_batches:
            self._tries = 0

    def partitions_left(self) -> list[TopicPartition]:
        """Return the partitions whose ranges are not done, in the order of the next request."""
        return [topic_partition for topic_partition in self._order if not self.progress[topic_partition].is_done]

    def give_up(self, topic_partition: TopicPartition) -> None:
        """Raise RetriableError at the deadline: why this partition was not read."""
        progress = self.progress[topic_partition]
        reason = progress.trouble or progress.remote
        if reason is not None:
            raise reason
        self._deadline.require(f"batches of {topic_partition} from offset {progress.position}")

    def fail(self, topic_partitions: Sequence[TopicPartition], error: RetriableError, took_s: float = 0.0) -> None:
        """Retry these topic-partitions after a pause of their own; others are read meanwhile. `took_s`: duration of the try."""
        self._cluster.forget_metadata()
        now = self._deadline.clock()
        for topic_partition in topic_partitions:
            progress = self.progress[topic_partition]
            progress.fail(error, now)
            # At once at first: the leader may only have moved. Later at least twice what the try took: a broker that accepts no
            # connection for seconds would delay the others.
            pause_s = self._cluster.back_off_ms(progress.tries) / 1000 if progress.tries else 0.0
            progress.retry_at = now + max(pause_s, 2 * took_s)
            progress.tries += 1
        lasting = [
            topic_partition
            for topic_partition in topic_partitions
            if self.progress[topic_partition].tries % TRIES_BEFORE_GONE == 0
        ]
        if lasting:
            self._require_topics(lasting, error)

    def leave_unreadable(self) -> None:
        """Leave unreadable ranges unfinished: all at once, when nothing else is left to read and each had its patience."""
        if self._patience_ms is None:
            return
        now = self._deadline.clock()
        unfinished = [self.progress[topic_partition] for topic_partition in self.partitions_left()]
        if all(
            progress.trouble is not None and now - progress.trouble_since >= self._patience_ms / 1000 for progress in unfinished
        ):
            for progress in unfinished:
                progress.unfinished = progress.trouble

    def wait_for_next(self) -> None:
        """Wait until a partition may be requested again. Raises as `give_up` at the deadline."""
        now = self._deadline.clock()
        partitions = self.partitions_left()
        if self._deadline.is_over():
            self.give_up(partitions[0])
        at = min(self.progress[topic_partition].retry_at for topic_partition in partitions)
        if at > now:
            self._cluster.wait((at - now) * 1000, self._deadline)

    def pause(self, error: RetriableError) -> None:
        """Pause before the next try, if no broker answers. Raises RetriableError at the deadline."""
        self._cluster.forget_metadata()
        self._cluster.pause(self._tries, self._deadline)
        self._tries += 1
        if self._deadline.is_over():
            raise error
        if self._tries >= TRIES_BEFORE_GONE:
            self._require_topics(self.partitions_left(), error)

    def _require_topics(self, topic_partitions: Sequence[TopicPartition], error: RetriableError) -> None:
        """Leave the ranges of topics that do not exist: waiting does not help. Without `patience_ms` raise RetriableError."""
        names = sorted({topic_partition.topic for topic_partition in topic_partitions})
        missing = missing_topics(self._cluster, names, self._deadline).gone
        if not missing:
            return
        gone = RetriableError(
            error_name(UNKNOWN_TOPIC_OR_PARTITION), f"{self._cluster.where} has no topic {', '.join(missing)} any more"
        )
        if self._patience_ms is None:
            raise gone from error
        for topic_partition in self.partitions_left():
            if topic_partition.topic in missing:
                self.progress[topic_partition].unfinished = gone
