"""Everywhere: a planned range, and how far reading it has come."""

from __future__ import annotations

from dataclasses import dataclass

from shallow_mirror.errors import RetriableError
from shallow_mirror.types import TopicPartition


@dataclass(frozen=True, slots=True)
class ReadRange:
    """[position, end) of a topic-partition; batches whose base offset lies in it belong to it.

    With `topic_id`, and from Kafka 3.1 on, a recreated topic is never read instead. `is_open`: the range has no end, and
    records that are written to the log meanwhile are read as well.
    """

    topic_partition: TopicPartition
    position: int
    end: int
    bytes_per_offset: float
    topic_id: str = ""
    is_open: bool = False


@dataclass(slots=True)
class RangeProgress:
    """The progress of one range."""

    range: ReadRange
    position: int
    empty_answers: int = 0
    empty_follower_answers: int = 0
    remote: RetriableError | None = None
    """The broker waits for its remote storage."""
    trouble: RetriableError | None = None
    """Why nothing was received lately."""
    trouble_since: float = 0.0
    """Seconds of the deadline's clock."""
    tries: int = 0
    retry_at: float = 0.0
    unfinished: RetriableError | None = None
    """Why the range was left at `position`."""
    largest_batch_bytes: int = 0

    @property
    def is_done(self) -> bool:
        return self.position >= self.range.end or self.unfinished is not None

    def fail(self, error: RetriableError, now: float) -> None:
        if self.trouble is None:
            self.trouble_since = now
        self.trouble = error

    def note_batches(self, largest_bytes: int) -> None:
        self.largest_batch_bytes = max(self.largest_batch_bytes, largest_bytes)
        self.trouble = None
        self.remote = None
        self.tries = 0
        self.retry_at = 0.0
        self.empty_answers = 0
        self.empty_follower_answers = 0
