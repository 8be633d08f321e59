"""Everywhere: batches that wait to be sent, with their borrowed bytes and the results for their senders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from shallow_mirror.broker.clients.fetched_batches import FetchedBatch
from shallow_mirror.broker.produce.txn.transactions import ProducerIdentity
from shallow_mirror.errors import MirrorError, OutcomeUnknownError
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire import BATCH_HEADER_BYTES, HEADER, NATIVE_HEADER
from shallow_mirror.wire.batches import BatchIndex, restamp
from shallow_mirror.wire.protocol import SplitBatch


class Delivery:
    """The outcome of one sent batch. Acknowledged means by all in-sync replicas, not that its transaction committed."""

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self._base_offset: int | None = None
        self._error: MirrorError | None = None

    @property
    def is_done(self) -> bool:
        """Return whether the batch was acknowledged or failed."""
        return self._base_offset is not None or self._error is not None

    @property
    def base_offset(self) -> int:
        """Return the offset of the batch's first record on the target.

        Raises the error of the batch (BatchRefusedError and CorruptBatchError: not written; OutcomeUnknownError: perhaps
        written), and OutcomeUnknownError until it is acknowledged.
        """
        if self._error is not None:
            raise self._error
        if self._base_offset is None:
            raise OutcomeUnknownError(f"{self.topic_partition}: this batch is not yet acknowledged; flush() first")
        return self._base_offset

    def succeed(self, base_offset: int) -> None:
        """Set the outcome; for the producer."""
        self._base_offset = base_offset

    def fail(self, error: MirrorError) -> None:
        """Set the outcome; for the producer."""
        self._error = error


class QueuedBatch:
    """A batch that holds the loan of its bytes until it is settled. Raises StaleBatchError if the loan has ended."""

    def __init__(self, batch: FetchedBatch, delivery: Delivery) -> None:
        self.view = batch.view
        self.batch, self.delivery = batch, delivery
        batch.loan.hold()

    def succeed(self, base_offset: int) -> None:
        self.delivery.succeed(base_offset)
        self._let_go()

    def fail(self, error: MirrorError) -> None:
        """Settle the batch with an error; no effect if it is settled already."""
        if not self.delivery.is_done:
            self.delivery.fail(error)
            self._let_go()

    def _let_go(self) -> None:
        self.view.release()
        self.batch.loan.release()


class SendQueue:
    """Batches by target topic-partition, in the order they were given."""

    def __init__(self) -> None:
        self._waiting: dict[TopicPartition, list[QueuedBatch]] = {}
        self.size_bytes = 0

    def add(self, topic_partition: TopicPartition, queued: QueuedBatch) -> None:
        self._waiting.setdefault(topic_partition, []).append(queued)
        self.size_bytes += queued.batch.size_bytes

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def waiting(self) -> dict[TopicPartition, list[QueuedBatch]]:
        """Return the batches that are not settled; partitions without any are left out."""
        return {topic_partition: list(batches) for topic_partition, batches in self._waiting.items()}

    def __iter__(self) -> Iterator[QueuedBatch]:
        return (queued for batches in self._waiting.values() for queued in batches)

    def settle(self, base_offsets: Mapping[TopicPartition, Sequence[int]]) -> None:
        """Take the first batches of each partition off the queue: these are their base offsets on the target."""
        for topic_partition, offsets in base_offsets.items():
            for queued, offset in zip(self._waiting[topic_partition], offsets, strict=False):
                queued.succeed(offset)
                self.size_bytes -= queued.batch.size_bytes
            del self._waiting[topic_partition][: len(offsets)]
            if not self._waiting[topic_partition]:
                del self._waiting[topic_partition]

    def fail(self, error: MirrorError) -> None:
        """Settle everything that waits with an error, and empty the queue."""
        for queued in self:
            queued.fail(error)
        self._waiting = {}
        self.size_bytes = 0


def stamped(
    queued: Sequence[QueuedBatch], identity: ProducerIdentity, first_sequence: int, *, transactional: bool
) -> tuple[list[SplitBatch], int]:
    """Return new headers in front of the payloads in their buffers, and the sequence that follows. The CRC is patched."""
    header_bytes = bytearray(b"".join(queued_batch.view[:BATCH_HEADER_BYTES] for queued_batch in queued))
    headers = memoryview(header_bytes)
    index = BatchIndex(
        np.arange(len(queued), dtype=np.int64) * BATCH_HEADER_BYTES,
        np.array([queued_batch.batch.size_bytes for queued_batch in queued], np.int64),
        np.frombuffer(bytes(header_bytes), HEADER).astype(NATIVE_HEADER),
        None,
        len(header_bytes),
    )
    next_sequence = restamp(
        headers,
        index,
        np.arange(len(queued)),
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        first_sequence=first_sequence,
        transactional=transactional,
    )
    batches = [
        SplitBatch(headers[start : start + BATCH_HEADER_BYTES], queued_batch.view[BATCH_HEADER_BYTES:])
        for start, queued_batch in zip(index.pos.tolist(), queued, strict=True)
    ]
    return batches, next_sequence
