"""The log of one replica, and what it remembers of producers: the rules by which a Kafka broker appends a batch.

Rules of Kafka 4.3 (`ProducerAppendInfo`, `ProducerStateEntry`): a batch whose first and last sequence are those of one of the
last five is a duplicate, answered with its offset; one that follows the last sequence is appended; others are out of order. A
producer that is not remembered may begin with any sequence.
"""

from __future__ import annotations

from typing import NamedTuple

from shallow_mirror.wire.batches import SEQUENCE_MODULUS

FOREIGN = -1
"""The producer id of a writer that is not the mirror."""
NO_SEQUENCE = -1

_REMEMBERED_BATCHES = 5


class Batch(NamedTuple):
    """A batch in a log. `wanted`: the source offset of its first record, -1 where it is foreign. `time_ms`: its max timestamp."""

    base: int
    records: int
    wanted: int
    producer_id: int
    sequence: int
    time_ms: int


class Request(NamedTuple):
    """A Produce request with one batch. `sequence`: -1 where the producer is not idempotent."""

    wanted: int
    records: int
    producer_id: int
    sequence: int
    time_ms: int


class Remembered(NamedTuple):
    """A producer: the time of its newest batch; first sequence, last sequence and base offset of its last batches."""

    time_ms: int
    batches: tuple[tuple[int, int, int], ...]


class Replica:
    """`log`: all batches ever, also below `start`. `is_leading`: whether it believes that it leads; `leads_from`: its end then."""

    __slots__ = ("end", "high_watermark", "is_leading", "leads_from", "log", "number", "producers", "start")

    def __init__(self, number: int, origin: int) -> None:
        self.number = number
        self.log: list[Batch] = []
        self.start = self.end = self.high_watermark = self.leads_from = origin
        self.is_leading = False
        self.producers: dict[int, Remembered] = {}

    def duplicate_of(self, request: Request) -> int | None:
        """Return the base offset of the remembered batch that a request repeats."""
        known = self.producers.get(request.producer_id)
        if known is not None:
            last = (request.sequence + request.records - 1) % SEQUENCE_MODULUS
            for first_sequence, last_sequence, base in known.batches:
                if first_sequence == request.sequence and last_sequence == last:
                    return base
        return None

    def is_in_order(self, request: Request) -> bool:
        if request.sequence == NO_SEQUENCE:
            return True
        known = self.producers.get(request.producer_id)
        return known is None or (known.batches[-1][1] + 1) % SEQUENCE_MODULUS == request.sequence

    def append(self, request: Request) -> Batch:
        wanted, records, producer_id, sequence, time_ms = request
        batch = Batch(self.end, records, wanted, producer_id, sequence, time_ms)
        self._take(batch)
        return batch

    def _take(self, batch: Batch) -> None:
        self.log.append(batch)
        self.end = batch.base + batch.records
        if batch.sequence != NO_SEQUENCE:
            known = self.producers.get(batch.producer_id)
            last = (batch.sequence + batch.records - 1) % SEQUENCE_MODULUS
            newest = (batch.sequence, last, batch.base)
            before = () if known is None else known.batches[1 - _REMEMBERED_BATCHES :]
            self.producers[batch.producer_id] = Remembered(batch.time_ms, (*before, newest))

    def copy(self, leader: Replica) -> None:
        """Follow the leader: drop what it does not have, then append what is missing.

        A follower whose log ends below the start of the leader's begins anew there, and forgets all producers.
        """
        mine, theirs = self.log, leader.log
        same = min(len(mine), len(theirs))
        while same and mine[same - 1] is not theirs[same - 1]:
            same -= 1
        if same < len(mine):
            self.end = mine[same].base
            del mine[same:]
            self.reload()
        if self.end < leader.start:
            self.producers = {}
            while same < len(theirs) and theirs[same].base < leader.start:
                mine.append(theirs[same])
                same += 1
        self.start, self.end = leader.start, max(self.end, leader.start)
        for batch in theirs[same:]:
            self._take(batch)

    def reload(self) -> None:
        """Rebuild the producers from the log, as at a start: the last batch of each is known, and none of an emptied log."""
        self.producers = {}
        for batch in reversed(self.log):
            if batch.base < self.start:
                break
            if batch.sequence != NO_SEQUENCE and batch.producer_id not in self.producers:
                last = (batch.sequence + batch.records - 1) % SEQUENCE_MODULUS
                self.producers[batch.producer_id] = Remembered(batch.time_ms, ((batch.sequence, last, batch.base),))

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget producers by the time of their newest batch, not by when it arrived."""
        for producer_id in [key for key, known in self.producers.items() if now_ms - known.time_ms >= expiration_ms]:
            del self.producers[producer_id]
