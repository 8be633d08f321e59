"""Everywhere: `BatchProducer`: record batches into topics as they are, in transactions or idempotent, without Spark.

A batch is queued with its bytes where they lie; when the queue is sent, only a new 61-byte header is made. Every
transaction has a producer epoch of its own, so sequences begin at 0 and nothing of an earlier transaction can arrive late.

Inside a transaction nothing is sent twice: after an error it can only be aborted. Without one, what was not acknowledged
is sent again with the same sequences, which brokers recognise, as long as they can be trusted to remember them.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.clients.client_validation import client_config, number_problems, raise_problems
from shallow_mirror.broker.clients.fetched_batches import FetchedBatch
from shallow_mirror.broker.clients.send_queue import Delivery, QueuedBatch, SendQueue, stamped
from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.produce.produce_errors import ProduceRefusedError, explain_refusal
from shallow_mirror.broker.produce.produce_pipeline import ProducePipeline
from shallow_mirror.broker.produce.txn.transactions import (
    EndTxnAnswer,
    ProducerIdentity,
    end_txn,
    init_producer_id,
    new_producer_id,
)
from shallow_mirror.broker.produce.txn.txn_additions import add_partitions
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import BatchRefusedError, MirrorError, OutcomeUnknownError, ProducerEpochFencedError, RetriableError
from shallow_mirror.types import LogAppendTimePolicy, SlotTxn, TopicPartition
from shallow_mirror.wire.protocol import SplitBatch

QUEUE_BYTES = 16 << 20
"""`send_batch` sends everything and waits when this much is queued."""

MOST_IN_FLIGHT_REQUESTS = 5
"""Brokers remember the last five batches of a producer per partition; a request holds one per partition."""

REMEMBERED_MS = 3_600_000
"""How old the newest record of a batch may be for its repetition to be recognised for sure: brokers forget a producer by
the timestamps of what it wrote (producer.id.expiration.ms, a day), unless a transaction is open."""


class TxnState(enum.Enum):
    """IDEMPOTENT and BROKEN are those without a transactional id."""

    IDEMPOTENT = "a producer without a transactional id"
    READY = "no transaction is begun"
    OPEN = "a transaction is open"
    MUST_ABORT = "the transaction failed and can only be aborted"
    COMMIT_UNKNOWN = "the transaction may be committed; call end_txn(commit=True) again"
    FENCED = "another producer took over the transactional id, or the transaction timed out; create a new producer"
    BROKEN = "a batch was not acknowledged; check the target and create a new producer"
    CLOSED = "this producer is closed"


_ALLOWED: Mapping[str, frozenset[TxnState]] = {
    "begin_txn": frozenset({TxnState.READY}),
    "send_batch": frozenset({TxnState.OPEN, TxnState.IDEMPOTENT}),
    "flush": frozenset({TxnState.OPEN, TxnState.IDEMPOTENT, TxnState.READY}),
    "end_txn(commit=True)": frozenset({TxnState.OPEN, TxnState.COMMIT_UNKNOWN}),
    "end_txn(commit=False)": frozenset({TxnState.OPEN, TxnState.MUST_ABORT, TxnState.FENCED}),
}


class TxnStateError(MirrorError):
    """A call that the state does not allow; nothing was sent. `because`: the error that led to the state."""

    def __init__(self, call: str, state: TxnState, because: MirrorError | None = None) -> None:
        self.call = call
        self.state = state
        self.because = because
        super().__init__(f"{call}: {state.value}" + (f" ({because})" if because is not None else ""))

    def __reduce__(self) -> tuple[type[TxnStateError], tuple[str, TxnState, MirrorError | None]]:
        return type(self), (self.call, self.state, self.because)


class BatchProducer:
    """Writes `FetchedBatch`es unopened: new header, same payload, same checksum over it (KIP-712, sendBatch).

    With a `transactional_id` between `begin_txn` and `end_txn`; without one at once, idempotent. Acknowledged by all
    in-sync replicas, at most `in_flight_requests` requests (1 to 5) and `in_flight_bytes` bytes at a time to a broker; one
    larger batch is sent alone. `queue_bytes` may wait for a `flush`. `delivery_timeout_ms` bounds each call that talks to
    the cluster. `log_append_time`: batches with append times of the source are refused (KEEP: the times would change) or
    are sent with their producers' times (PRODUCER). Not thread-safe. Raises ConfigError with every wrong setting.
    """

    def __init__(
        self,
        client: ClientConfig | Mapping[str, object],
        transactional_id: str | None = None,
        *,
        transaction_timeout_ms: int = 60_000,
        delivery_timeout_ms: float = 120_000,
        in_flight_requests: int = MOST_IN_FLIGHT_REQUESTS,
        in_flight_bytes: int = 4 << 20,
        queue_bytes: int = QUEUE_BYTES,
        log_append_time: LogAppendTimePolicy = LogAppendTimePolicy.KEEP,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        raise_problems(
            ["transactional_id: must not be empty; leave it out for a producer without transactions"]
            if transactional_id == ""
            else [],
            number_problems("transaction_timeout_ms", transaction_timeout_ms, 1),
            number_problems("delivery_timeout_ms", delivery_timeout_ms, 1),
            number_problems("in_flight_requests", in_flight_requests, 1, MOST_IN_FLIGHT_REQUESTS),
            number_problems("in_flight_bytes", in_flight_bytes, 1),
            number_problems("queue_bytes", queue_bytes, 1),
        )
        self._cluster = Cluster(client_config(client), clock=clock)
        self._transactional_id = transactional_id
        self._transaction_timeout_ms = transaction_timeout_ms
        self._delivery_timeout_ms = delivery_timeout_ms
        self._in_flight_requests = in_flight_requests
        self._in_flight_bytes = in_flight_bytes
        self._queue_bytes = queue_bytes
        self._log_append_time = log_append_time
        self._clock = clock
        self._wall_clock = wall_clock
        self._state = TxnState.IDEMPOTENT if transactional_id is None else TxnState.READY
        self._because: MirrorError | None = None
        self._txn: SlotTxn | None = None
        self._next_txn: SlotTxn | None = None
        self._identity: ProducerIdentity | None = None
        self._known: set[TopicPartition] = set()
        self._sequences: dict[TopicPartition, int] = {}
        self._queue = SendQueue()

    @property
    def state(self) -> TxnState:
        return self._state

    def begin_txn(self) -> None:
        """Begin a transaction with a new producer epoch.

        Another producer of this transactional id is fenced, and its open transaction aborted. Raises RetriableError and
        ConfigError; then no transaction has begun.
        """
        self._allow("begin_txn")
        self._txn = self._next_txn if self._next_txn is not None else self._fresh_epoch(self._deadline())
        self._next_txn = None
        self._identity = ProducerIdentity(self._txn.producer_id, self._txn.producer_epoch)
        self._sequences = {}
        self._state = TxnState.OPEN

    def send_batch(self, topic_partition: TopicPartition, batch: FetchedBatch) -> Delivery:
        """Queue a batch for a topic-partition; sends the queue and waits when `queue_bytes` are in it.

        Its bytes must not change until the Delivery is done: the consumer it comes from refuses to poll until then.
        Raises BatchRefusedError for what no broker stores unchanged (control batches, emptied ones, ones with holes),
        StaleBatchError, ConfigError for a topic-partition that does not exist: nothing was queued then, and the producer can be
        used further. Else as `flush`.
        """
        self._allow("send_batch")
        self._refuse_unsendable(batch)
        if topic_partition not in self._known:
            self._cluster.require_partitions([topic_partition], self._deadline())
            self._known.add(topic_partition)
        delivery = Delivery(topic_partition)
        self._queue.add(topic_partition, QueuedBatch(batch, delivery))
        if self._queue.size_bytes >= self._queue_bytes:
            self.flush()
        return delivery

    def flush(self) -> None:
        """Send the queue and wait until all of it is acknowledged.

        Raises BatchRefusedError (a batch is rejected permanently), CorruptBatchError (its bytes do not match its checksum),
        ProducerEpochFencedError (timed out, or another producer took over), RetriableError, OutcomeUnknownError. All Deliveries
        are then done, those not acknowledged with an error, and a transaction can only be aborted.
        """
        self._allow("flush")
        if not self._queue:
            return
        deadline = self._deadline()
        if self._identity is None:
            self._identity = new_producer_id(self._cluster, deadline)
        queue, self._queue = self._queue, SendQueue()
        try:
            self._write(queue, self._identity, deadline)
        except MirrorError as error:
            self._fail(queue, error)
            raise
        except BaseException:
            self._fail(queue, OutcomeUnknownError("the producer was interrupted while it wrote"))
            raise

    def end_txn(self, *, commit: bool) -> None:
        """Flush and commit, or abort. Without a sent batch there is nothing to end and no request is sent.

        Raises as `flush`, and then nothing is committed. Raises OutcomeUnknownError if no definite answer to the
        commit came: it may have happened; call `end_txn(commit=True)` again. Raises ProducerEpochFencedError if the
        transaction timed out or another producer took over: it was aborted, unless an earlier, unanswered try committed it.
        """
        self._allow(f"end_txn(commit={commit})")
        if commit:
            self._commit()
        else:
            self._abort()

    def close(self) -> None:
        """Flush without a transaction, abort an open one; close the connections in any case. Raises as they do."""
        try:
            if self._state is TxnState.IDEMPOTENT:
                self.flush()
            elif self._state in (TxnState.OPEN, TxnState.MUST_ABORT):
                self._abort()
        finally:
            self._queue.fail(OutcomeUnknownError("the producer was closed before it had sent this batch"))
            self._cluster.close()
            self._state = TxnState.CLOSED

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close; after an error drop the queue, and add failures while closing to that error as notes."""
        if error is None:
            self.close()
            return
        self._queue.fail(OutcomeUnknownError(f"dropped without being sent, because of {type(error).__name__}"))
        try:
            self.close()
        except MirrorError as second:
            error.add_note(f"closing the BatchProducer failed as well: {second}")

    def _allow(self, call: str) -> None:
        if self._state not in _ALLOWED[call]:
            raise TxnStateError(call, self._state, self._because)

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(self._delivery_timeout_ms, self._clock)

    def _fresh_epoch(self, deadline: Deadline) -> SlotTxn:
        assert self._transactional_id is not None
        return init_producer_id(self._cluster, self._transactional_id, self._transaction_timeout_ms, deadline)

    def _refuse_unsendable(self, batch: FetchedBatch) -> None:
        for is_so, rule, remedy in (
            (batch.is_control, "it is a control batch", "Leave it out: transaction markers are written by brokers"),
            (batch.record_count == 0, "no record is left in it", "Leave it out"),
            (
                batch.record_count != batch.last_offset - batch.base_offset + 1,
                "records are missing inside the batch (compaction)",
                "No broker accepts such a batch; copy its records with a record-level client",
            ),
            (
                batch.is_log_append_time and self._log_append_time is LogAppendTimePolicy.KEEP,
                "its times are the source broker's (message.timestamp.type=LogAppendTime) and would be lost",
                "Give log_append_time=LogAppendTimePolicy.PRODUCER to BatchProducer to write the producers' times",
            ),
        ):
            if is_so:
                raise BatchRefusedError(batch.topic_partition, batch.base_offset, rule, remedy)

    def _write(self, queue: SendQueue, identity: ProducerIdentity, deadline: Deadline) -> None:
        added = [topic_partition for topic_partition in queue.waiting() if topic_partition not in self._sequences]
        if self._txn is not None and added:
            add_partitions(self._cluster, self._txn, added, deadline)
        self._sequences.update(dict.fromkeys(added, 0))
        ready: dict[TopicPartition, list[SplitBatch]] = {}
        for topic_partition, queued in queue.waiting().items():
            ready[topic_partition], self._sequences[topic_partition] = stamped(
                queued, identity, self._sequences[topic_partition], transactional=self._txn is not None
            )
        pipeline = ProducePipeline(
            self._cluster,
            self._transactional_id,
            in_flight_requests=self._in_flight_requests,
            in_flight_bytes=self._in_flight_bytes,
            deadline=deadline,
        )
        tries = 0
        while waiting := queue.waiting():
            base_offsets: dict[TopicPartition, list[int]] = {}
            try:
                pipeline.produce_all(
                    {topic_partition: ready[topic_partition][-len(queued) :] for topic_partition, queued in waiting.items()},
                    base_offsets,
                )
            except ProduceRefusedError as refused:
                queue.settle(base_offsets)
                culprit = waiting[refused.topic_partition][refused.index_in_queue]
                explained = explain_refusal(
                    refused, culprit.view, culprit.batch.topic_partition, culprit.batch.base_offset, pos=0
                )
                culprit.fail(explained)
                raise explained from refused
            except RetriableError as error:
                queue.settle(base_offsets)
                if type(error) is not RetriableError or not self._may_repeat(queue) or deadline.is_over():
                    raise
                self._cluster.pause(tries, deadline)
                tries += 1
            else:
                queue.settle(base_offsets)

    def _may_repeat(self, queue: SendQueue) -> bool:
        """Return whether the target recognises a repetition of all that is queued. Never inside a transaction."""
        oldest_ms = self._wall_clock() * 1000 - REMEMBERED_MS
        return self._txn is None and all(queued.batch.max_timestamp_ms >= oldest_ms for queued in queue)

    def _fail(self, queue: SendQueue, error: MirrorError) -> None:
        """Set the state after an error, and the outcome of the queued batches. The connections of a failed produce are closed."""
        if self._txn is None:
            self._state = TxnState.BROKEN
        else:
            self._state = TxnState.FENCED if isinstance(error, ProducerEpochFencedError) else TxnState.MUST_ABORT
        self._because = error
        queue.fail(OutcomeUnknownError(f"this batch may be written: {error}"))

    def _commit(self) -> None:
        if self._state is TxnState.OPEN:
            self.flush()
        assert self._txn is not None
        if self._sequences:
            self._state = TxnState.COMMIT_UNKNOWN
            self._expect_ended(end_txn(self._cluster, self._txn, True, self._deadline()))
        self._over()

    def _abort(self) -> None:
        """Abort the transaction: after an error by a new producer epoch, else by EndTxn."""
        self._queue.fail(OutcomeUnknownError("the transaction was aborted before this batch was sent"))
        assert self._txn is not None
        # Another producer may own the transactional id: it must not be fenced in turn.
        if self._state is TxnState.FENCED:
            return
        # Requests may still be on their way: with a new epoch they arrive too late.
        if self._state is TxnState.MUST_ABORT:
            self._next_txn = self._fresh_epoch(self._deadline())
        elif self._sequences:
            self._state = TxnState.MUST_ABORT
            self._expect_ended(end_txn(self._cluster, self._txn, False, self._deadline()))
        self._over()

    def _expect_ended(self, answer: EndTxnAnswer) -> None:
        if answer in (EndTxnAnswer.ENDED, EndTxnAnswer.COMMITTING):
            return
        self._state = TxnState.FENCED
        self._because = ProducerEpochFencedError("PRODUCER_FENCED", f"EndTxn of {self._txn}: {answer.value}")
        raise self._because

    def _over(self) -> None:
        self._txn = None
        self._identity = None
        self._because = None
        self._state = TxnState.READY
