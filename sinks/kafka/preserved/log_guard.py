"""Pure: whether a log with preserved offsets may be written to now, and how its first batch has to be sent.

A broker appends a batch of the shared producer only behind that producer's last sequence. That holds as long as it remembers the
producer: it forgets a producer whose newest batch is older than `producer.id.expiration.ms`, and one of an emptied log when it is
started again. A log whose producer is forgotten takes a batch of any sequence. So nothing is sent there while requests of an
earlier writer may still be on their way, and the first batch is acknowledged before a second one is sent: a second one that
arrived alone would be appended in the place of the first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shallow_mirror.broker import ProducerState
from shallow_mirror.broker.net import PRODUCER_FORGOTTEN
from shallow_mirror.errors import PreservedLogDamagedError, RetriableError, TargetDataLossError
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.batches import SEQUENCE_MODULUS

FENCE_EPOCH = 1
"""Producer epoch of the last batch with a shared producer id, which ends preservation; all others have epoch 0, and are refused
behind it."""
FENCED = (
    "a start with translated offsets came in between, and the batch with which it kept tasks with preserved offsets out has the "
    "offset of a record"
)


def own_in_place(headers: npt.NDArray[np.void], producer_id: int) -> npt.NDArray[np.bool_]:
    """Return which batches of a target log the shared producer has written at their own offsets, bool[n].

    Its sequence numbers are offsets. The batch that ends preservation is no such batch.
    """
    is_own = (headers["producer_id"] == producer_id) & (headers["producer_epoch"] != FENCE_EPOCH)
    in_place: npt.NDArray[np.bool_] = is_own & (headers["base_sequence"] == headers["base_offset"] % SEQUENCE_MODULUS)
    return in_place


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardTimes:
    """Times of the target's brokers.

    `expiration_ms`: how long they remember a producer (producer.id.expiration.ms). `quiet_ms`: how long after an earlier writer
    was last entitled to write none of its requests can arrive any more: the longest a task may run, and then
    connections.max.idle.ms.
    """

    expiration_ms: int
    quiet_ms: int

    @property
    def old_after_ms(self) -> int:
        """Return the age from which on a batch does not count as a sign of life of its producer."""
        return self.expiration_ms // 2


@dataclass(frozen=True, slots=True)
class TargetLog:
    """A log as its leader describes it: [start, end), the end before the producers.

    `producer`: the shared one; None if it is forgotten, or has not written yet.
    """

    start: int
    end: int
    producer: ProducerState | None


def check_log(
    topic_partition: TopicPartition,
    log: TargetLog,
    *,
    recorded_end: int,
    quiet_for_ms: float,
    times: GuardTimes,
    now_ms: int,
    origin: int = 0,
) -> bool:
    """Return whether the first batch has to be acknowledged before a second one is sent.

    `recorded_end`: of the map, on the target. `quiet_for_ms`: since another writer, or a request of ours without an answer,
    may have been on its way. `origin`: offset of the first batch of the shared producer: the start of a new log, or the end of
    a log from before the mirror.

    Raises TargetDataLossError, PreservedLogDamagedError, and RetriableError if it has to wait.
    """
    if log.end < recorded_end:
        raise TargetDataLossError(topic_partition, recorded_end, log.end)
    if log.producer is not None and log.producer.producer_epoch == FENCE_EPOCH:
        raise PreservedLogDamagedError(topic_partition, min(recorded_end, log.end), FENCED, is_ended=True)
    if log.producer is not None:
        behind = (log.producer.last_sequence + 1 - log.end) % SEQUENCE_MODULUS
        # The end is asked for first: by then the producer may have written more, never less.
        if behind >= SEQUENCE_MODULUS // 2:
            detail = (
                f"the log ends at {log.end}, and the last batch of the mirror's producer id {log.producer.producer_id} at "
                f"{log.end - (SEQUENCE_MODULUS - behind)}: another producer writes to it"
            )
            raise PreservedLogDamagedError(topic_partition, log.end - (SEQUENCE_MODULUS - behind), detail)
    if log.end == origin:
        return True  # whoever writes to it with the shared producer id begins at the same offset
    is_remembered = (
        log.producer is not None and log.start < log.end and now_ms - log.producer.last_timestamp_ms < times.old_after_ms
    )
    if is_remembered:
        return False
    if quiet_for_ms < times.quiet_ms:
        seconds = (times.quiet_ms - quiet_for_ms) / 1000
        raise RetriableError(
            PRODUCER_FORGOTTEN,
            f"target {topic_partition} was idle for so long that its broker may have forgotten the mirror's producer id: it is "
            f"written to in {seconds:.0f} s, when no request of an earlier run can arrive any more",
        )
    return True
