"""Pure: for how long logs have to be at rest before their writers count as stopped: longer than the writers pause."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from shallow_mirror.types import TopicPartition

PAUSES = 2.0
"""Logs at rest for so many of the longest pauses that were seen are those of stopped writers."""
TURNS = 10
"""A pause between two producers that did not come again for so many times its length is that of a restart."""


@dataclass(frozen=True, slots=True)
class QuietTime:
    """`longest_pause_s`: of the writers, as far as it was seen. `is_bounded`: `writers.longest_quiet` makes it shorter."""

    seconds: float
    longest_pause_s: float
    is_bounded: bool

    @classmethod
    def of(cls, shortest_s: float, bound_s: float | None, longest_pause_s: float) -> QuietTime:
        """Return the time. `bound_s` None: pauses do not make it longer than `shortest_s`."""
        if bound_s is None:
            return cls(shortest_s, longest_pause_s, False)
        wanted_s, bound_s = max(shortest_s, PAUSES * longest_pause_s), max(shortest_s, bound_s)
        return cls(min(wanted_s, bound_s), longest_pause_s, wanted_s > bound_s)

    def sentence(self) -> str:
        rest = f"stopped once nothing came for {self.seconds:.0f} s"
        if self.is_bounded:
            return f"{rest} (writers.longest_quiet), although they pause for {self.longest_pause_s:.0f} s at times"
        return rest


@dataclass(frozen=True, slots=True)
class Stamp:
    """When a batch was written. `producer_id`: -1 if its producer is not idempotent."""

    topic_partition: TopicPartition
    producer_id: int
    timestamp_ms: int


@dataclass(slots=True)
class _Producer:
    """What one producer wrote to one topic; all without an id are one."""

    partitions: set[TopicPartition] = field(default_factory=set)
    times_ms: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Change:
    """A pause between the last batch of a producer and the first one of the next.

    `since_ms`: when the producer before ended. `around_ms`: how long it had written, or how old the pause is; the longer of both.
    """

    since_ms: int
    pause_ms: int
    around_ms: int


def longest_gap_s(stamps: Iterable[Stamp], cut: Collection[TopicPartition] = ()) -> float:
    """Return the longest pause between two batches of one producer in a topic, or between two producers that take turns.

    The partitions of a topic together: a producer goes round them. Producers apart: a busy one does not hide the pauses of
    another one; all without an id count as one. `cut`: partitions that hold batches from before the stamps.
    """
    topics: defaultdict[str, defaultdict[int, _Producer]] = defaultdict(lambda: defaultdict(_Producer))
    begins_ms: dict[TopicPartition, int] = {}
    for stamp in stamps:
        name = stamp.topic_partition
        producer = topics[name.topic][stamp.producer_id]
        producer.partitions.add(name)
        producer.times_ms.append(stamp.timestamp_ms)
        if name in cut:
            begins_ms[name] = min(begins_ms.get(name, stamp.timestamp_ms), stamp.timestamp_ms)
    longest_ms = 0
    for producers in topics.values():
        for each in producers.values():
            each.times_ms.sort()
        own_ms = (later - earlier for each in producers.values() for earlier, later in pairwise(each.times_ms))
        turns_ms = _pauses_between_turns(_changes(list(producers.values()), begins_ms))
        longest_ms = max([longest_ms, *own_ms, *turns_ms])
    return longest_ms / 1000


def _changes(producers: Sequence[_Producer], begins_ms: Mapping[TopicPartition, int]) -> Iterator[_Change]:
    """Find each pause between a producer that has ended and the next one: a producer that still writes ends none."""
    by_end = sorted(producers, key=lambda producer: producer.times_ms[-1])
    ends_ms = [producer.times_ms[-1] for producer in by_end]
    for producer in producers:
        first_ms = producer.times_ms[0]
        ended = bisect_left(ends_ms, first_ms)
        if ended:
            before = by_end[ended - 1]
            since_ms = before.times_ms[-1]
            # Where older batches were not read, this producer may have written before: the pause is no longer than what was read.
            seen_ms = [begins_ms[name] for name in producer.partitions if name in begins_ms]
            pause_ms = first_ms - max([since_ms, *seen_ms])
            yield _Change(since_ms, pause_ms, max(since_ms - before.times_ms[0], ends_ms[-1] - first_ms))


def _pauses_between_turns(changes: Iterable[_Change]) -> list[int]:
    """Return the pauses of writers that open a producer for each turn, as scheduled jobs do, without those of restarts.

    A restart is short compared with how long a producer writes before or after it. Turns come again, so that ten times
    their pause shows more of them; a single pause is one between turns if it lasted longer than what is around it.
    """
    likely = [change for change in changes if change.around_ms <= TURNS * change.pause_ms]
    # Counted by their begins: the instances of a service that are started together end the same pause.
    came_again = len({change.since_ms for change in likely}) > 1
    return [change.pause_ms for change in likely if came_again or change.around_ms <= change.pause_ms]
