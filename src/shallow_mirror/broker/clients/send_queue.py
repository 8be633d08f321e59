"""Everywhere: batches that wait to be sent, with the loans of their bytes and what their senders are told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from shallow_mirror.broker.clients.fetched_batches import FetchedBatch
from shallow_mirror.broker.produce.transactions import ProducerIdentity
from shallow_mirror.errors import MirrorError, OutcomeUnknownError
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.batches.batch_index import BatchIndex
from shallow_mirror.wire.batches.header import BATCH_HEADER_BYTES, HEADER, NATIVE_HEADER
from shallow_mirror.wire.batches.restamp import restamp
from shallow_mirror.wire.protocol.produce import SplitBatch


class Delivery:
    """What becomes of one sent batch. Acknowledged means by all in-sync replicas, not that its transaction committed."""

    def __init__(self, topic_partition: TopicPartition) -> None:
        self.topic_partition = topic_partition
        self._base_offset: int | None = None
        self._error: MirrorError | None = None

    @property
    def is_done(self) -> bool:
        """Acknowledged or failed."""
        return self._base_offset is not None or self._error is not None

    @property
    def base_offset(self) -> int:
        """Offset of the batch's first record on the target.

        Raises what failed the batch (BatchRefusedError and CorruptBatchError: surely not written; OutcomeUnknownError: may be),
        and OutcomeUnknownError as long as nothing is known.
        """
        if self._error is not None:
            raise self._error
        if self._base_offset is None:
            raise OutcomeUnknownError(f"{self.topic_partition}: this batch is not yet acknowledged; flush() first")
        return self._base_offset

    def succeed(self, base_offset: int) -> None:
        """For the producer."""
        self._base_offset = base_offset

    def fail(self, error: MirrorError) -> None:
        """For the producer."""
        self._error = error


class QueuedBatch:
    """Holds the loan of its bytes until it is settled. Raises StaleBatchError where they are gone already."""

    def __init__(self, batch: FetchedBatch, delivery: Delivery) -> None:
        self.view = batch.view
        self.batch, self.delivery = batch, delivery
        batch.loan.hold()

    def succeed(self, base_offset: int) -> None:
        self.delivery.succeed(base_offset)
        self._let_go()

    def fail(self, error: MirrorError) -> None:
        """No effect on one that is settled."""
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

    def add(self, place: TopicPartition, queued: QueuedBatch) -> None:
        self._waiting.setdefault(place, []).append(queued)
        self.size_bytes += queued.batch.size_bytes

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def waiting(self) -> dict[TopicPartition, list[QueuedBatch]]:
        """Those not settled; partitions without any are left out."""
        return {place: list(several) for place, several in self._waiting.items()}

    def __iter__(self) -> Iterator[QueuedBatch]:
        return (queued for several in self._waiting.values() for queued in several)

    def settle(self, placed: Mapping[TopicPartition, Sequence[int]]) -> None:
        """Take the first batches of each partition off the queue: these are their base offsets on the target."""
        for place, offsets in placed.items():
            for queued, offset in zip(self._waiting[place], offsets, strict=False):
                queued.succeed(offset)
                self.size_bytes -= queued.batch.size_bytes
            del self._waiting[place][: len(offsets)]
            if not self._waiting[place]:
                del self._waiting[place]

    def fail(self, error: MirrorError) -> None:
        """Everything that waits has this outcome; the queue is empty then."""
        for queued in self:
            queued.fail(error)
        self._waiting, self.size_bytes = {}, 0


def stamped(
    queued: Sequence[QueuedBatch], identity: ProducerIdentity, first_sequence: int, *, transactional: bool
) -> tuple[list[SplitBatch], int]:
    """New headers in front of the payloads where they lie, and the sequence that follows. The CRC is patched."""
    made = bytearray(b"".join(one.view[:BATCH_HEADER_BYTES] for one in queued))
    headers = memoryview(made)
    index = BatchIndex(
        np.arange(len(queued), dtype=np.int64) * BATCH_HEADER_BYTES,
        np.array([one.batch.size_bytes for one in queued], np.int64),
        np.frombuffer(bytes(made), HEADER).astype(NATIVE_HEADER),
        None,
        len(made),
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
        SplitBatch(headers[start : start + BATCH_HEADER_BYTES], one.view[BATCH_HEADER_BYTES:])
        for start, one in zip(index.pos.tolist(), queued, strict=True)
    ]
    return batches, next_sequence
