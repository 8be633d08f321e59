"""Driver: how far a verification is: what has been read of both sides, in offsets of the source."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shallow_mirror.plurals import counted
from shallow_mirror.types import TopicPartition
from shallow_mirror.verify.range_verifier import OnPosition
from shallow_mirror.verify.report import Tally


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyProgress:
    """`done_offsets` of `total_offsets` of the source; `read_bytes` from both sides, of this run."""

    topic_partition: TopicPartition
    done_offsets: int
    total_offsets: int
    read_bytes: int
    difference_count: int

    def __str__(self) -> str:
        differences = "no difference" if self.difference_count == 0 else counted(self.difference_count, "difference")
        return f"{self.topic_partition}, {self.read_bytes / 1e6:,.0f} MB read, {differences}"


OnProgress = Callable[[VerifyProgress], None]


def ignore_progress(progress: VerifyProgress) -> None:
    return None


class ProgressMeter:
    """Count source offsets: those of partitions that are done, and how far the current one is."""

    def __init__(self, on_progress: OnProgress, tally: Tally) -> None:
        self._on_progress = on_progress
        self._tally = tally
        self._expected: dict[TopicPartition, int] = {}
        self._done = 0

    def expect(self, topic_partition: TopicPartition, offsets: int) -> None:
        self._expected[topic_partition] = max(offsets, self._expected.get(topic_partition, 0), 0)

    @contextmanager
    def pair(self, topic_partition: TopicPartition, start: int) -> Iterator[OnPosition]:
        total = sum(self._expected.values())
        of_pair = self._expected.get(topic_partition, 0)

        def on_position(position: int) -> None:
            self._report(topic_partition, min(self._done + max(position - start, 0), total), total)

        yield on_position
        self._done += of_pair
        self._report(topic_partition, self._done, total)

    def _report(self, topic_partition: TopicPartition, done: int, total: int) -> None:
        tally = self._tally
        self._on_progress(
            VerifyProgress(
                topic_partition=topic_partition,
                done_offsets=done,
                total_offsets=total,
                read_bytes=tally.source_bytes + tally.target_bytes,
                difference_count=sum(tally.difference_counts.values()),
            )
        )
