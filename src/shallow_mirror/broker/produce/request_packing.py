"""Pure: batches of many partitions packed into Produce requests, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.protocol import RawBatch


class PackedRequest(NamedTuple):
    """The batches at `position` of the queues of `topic_partitions`."""

    topic_partitions: tuple[TopicPartition, ...]
    position: int
    batches: Sequence[RawBatch]
    size_bytes: int


Queues = Mapping[TopicPartition, Sequence[RawBatch]]
"""What is to be sent to each partition, in order."""


def pack(queues: Queues, most_bytes: Callable[[], int]) -> Iterator[PackedRequest]:
    """Yield requests round-robin over the partitions: the n-th batches of all of them before any (n+1)-th.

    `most_bytes` is called before each request; a larger batch is a request of its own.
    """
    first = 0
    for end in sorted({len(queue) for queue in queues.values()}):
        topic_partitions = tuple(topic_partition for topic_partition, queue in queues.items() if len(queue) >= end)
        long_enough = [queues[topic_partition] for topic_partition in topic_partitions]
        for position in range(first, end):
            batches = [queue[position] for queue in long_enough]
            sizes = list(map(len, batches))
            whole = PackedRequest(topic_partitions, position, batches, sum(sizes))
            if whole.size_bytes <= most_bytes():
                yield whole
            else:
                yield from _split(whole, sizes, most_bytes)
        first = end


def _split(whole: PackedRequest, sizes: Sequence[int], most_bytes: Callable[[], int]) -> Iterator[PackedRequest]:
    """Yield parts of a request: each holds one batch, or as many as fit."""
    first = size = 0
    for i, batch_bytes in enumerate(sizes):
        if i > first and size + batch_bytes > most_bytes():
            yield PackedRequest(whole.topic_partitions[first:i], whole.position, whole.batches[first:i], size)
            first, size = i, 0
        size += batch_bytes
    yield PackedRequest(whole.topic_partitions[first:], whole.position, whole.batches[first:], size)
