"""Executor: the Kafka transaction of one slot while its task runs: restamp, produce, receipt."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from shallow_mirror.broker import Cluster, CoordinatorKind
from shallow_mirror.broker.cluster import is_incarnation_gone
from shallow_mirror.broker.net import INVALID_TXN_STATE, BegunCall, error_name
from shallow_mirror.broker.produce import ProduceRefusedError, Submission, begin_receipt, explain_refusal, finish_receipt
from shallow_mirror.broker.produce.txn import (
    BegunAddition,
    BegunRequest,
    add_partitions,
    add_partitions_and_offsets,
    begin_addition,
    finish_addition,
    init_producer_id,
)
from shallow_mirror.checkpoints.logs import QuarantinedBatch
from shallow_mirror.checkpoints.rows import SegmentBuilder
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ProducerEpochFencedError, RetriableError, TargetDataLossError, TopicGoneError
from shallow_mirror.sinks.kafka.targets.target_topic_policy import gone_problem
from shallow_mirror.sinks.kafka.writers.kafka_slot_job import KafkaSlotJob, PreparedTxn
from shallow_mirror.sinks.kafka.writers.slot_sending import SlotSending
from shallow_mirror.sinks.kafka.writers.written_topics import WrittenTopics
from shallow_mirror.sinks.slot_values import AdmittedPart, ReadPart, SlotWrite
from shallow_mirror.sinks.slots.quarantine_policy import Refusal, quarantinable_refusal
from shallow_mirror.types import IsolationLevel, SlotTxn, SourcePartition, TopicPartition
from shallow_mirror.wire.batches import Stamped, can_be_quarantined, restamp_all
from shallow_mirror.wire.records import OPENED_FETCHES

_log = logging.getLogger(__name__)

STABLE_FOR_MS = 1_000.0
"""How old last stable offsets may be at the end of their slot, and once more at that of all slots, to count as new."""


class QuarantinableBatchError(Exception):
    """The target refused a batch that may be quarantined: this transaction cannot be committed, the next one does without it.

    `end`: the source offset behind the batch.
    """

    def __init__(self, source: SourcePartition, end: int, refusal: Refusal) -> None:
        self.source = source
        self.end = end
        self.refusal = refusal
        super().__init__(f"{source.topic_partition}: batch at base offset {refusal.error.base_offset}: {refusal.rule}")


class CoalescedBatchRefusedError(Exception):
    """The target refused a batch that was made of several: another try, which sends each as it is, finds out which of them.

    `end`: the source offset behind the last of them.
    """

    def __init__(self, source: SourcePartition, end: int, refused: ProduceRefusedError) -> None:
        self.source, self.end = source, end
        super().__init__(f"{source.topic_partition}: combined batches, up to offset {end}: {refused}")


@dataclass(slots=True)
class _Response:
    """Batches sent of one response of the source. `queues`: by target partition; without a submission nothing was sent."""

    admitted: Sequence[AdmittedPart]
    queues: Mapping[TopicPartition, Sequence[memoryview]] = field(default_factory=dict)
    submission: Submission | None = None


class SlotTransaction:
    """The Kafka transaction of one try of a slot, which leaves it open: only the driver ends it.

    Opened by the first batch that is written; a slot that has nothing to write opens no transaction.
    """

    def __init__(
        self,
        job: KafkaSlotJob,
        number: int,
        target: Cluster,
        deadline: Deadline,
        take_prepared: Callable[[], PreparedTxn | None] = lambda: None,
    ) -> None:
        """`take_prepared`: return a transaction that nothing was written with, or None."""
        self.number = number
        self.txn: SlotTxn | None = None
        self.fetched_bytes = 0
        self._job = job
        self._target = target
        self._deadline = deadline
        self._sending = SlotSending(job, target, deadline, transactional_id=job.transactional_id_of(number))
        self._sequences: dict[TopicPartition, int] = {}
        self._admitted: dict[SourcePartition, int] = {}
        """The source offset behind the admitted batches of each partition; recorded ones may be behind that."""
        self._responses: deque[_Response] = deque()
        self._receipt: BegunRequest | None = None
        self._take_prepared = take_prepared
        self._prepared: PreparedTxn | None = None
        self._begun: BegunAddition | None = None
        self._added: set[TopicPartition] = set()
        self._checked_topics: set[str] = set()
        self._stable: Sequence[BegunCall[dict[TopicPartition, int]]] = ()
        self._stable_asked_at = 0.0
        self._written_topics = WrittenTopics(job, target, deadline)

    def begin_ahead(self, targets: Sequence[TopicPartition]) -> None:
        """Add partitions before their first batches have come, if a producer epoch is there and the driver does not add them.

        A partition of which nothing is written then gets a marker and nothing else.
        """
        self._prepared = self._take_prepared() if targets else None
        if self._prepared is not None and not self._prepared.adding:
            self._begun = begin_addition(self._target, self._prepared.txn, sorted(targets), self._deadline)

    @property
    def is_due(self) -> bool:
        return self._sending.is_due

    @property
    def until(self) -> Deadline | None:
        return self._sending.until

    def position(self, part: ReadPart, builder_of: Callable[[SourcePartition], SegmentBuilder]) -> int:
        """Return the source offset behind the written batches of a part's partition, acknowledged or not."""
        return self._admitted.get(part.source, builder_of(part.source).position)

    def write(
        self, admitted: Sequence[AdmittedPart], builder_of: Callable[[SourcePartition], SegmentBuilder]
    ) -> list[QuarantinedBatch]:
        """Restamp and send the admitted batches of one response, and hand the fate of the batches before it to the segments.

        So the acknowledgements of one response overlap with the reading and the sending of the next one.

        If the commit interval ends in the middle, that of the batches up to there: `is_due`, and nothing may follow. Of each
        partition the recorded batches are then the front of the response, and nothing behind them is on the target.
        Returns quarantined batches of the recorded responses.

        Raises QuarantinableBatchError, CoalescedBatchRefusedError.
        """
        # restamp_all counts a sequence for every batch of a response, sent or not. So where a response is not sent whole, nothing
        # more may be produced under this epoch: the broker would see a gap. The transaction ends with the round, and the next
        # round has an epoch of its own, which begins at sequence 0.
        assert not self._sending.has_stopped, "a slot that has stopped writes its receipt and nothing else"
        if any(part.admission.next_position > builder_of(part.part.source).position for part in admitted):
            self._sending.begin_interval()
        self._admitted.update((part.part.source, part.admission.next_position) for part in admitted)
        response = _Response(admitted)
        self._responses.append(response)
        sent = [part for part in admitted if len(part.outgoing)]
        if sent:
            self._send(response, sent)
        return self._record(builder_of, left=self._job.responses_in_flight)

    def finish(self, builder_of: Callable[[SourcePartition], SegmentBuilder]) -> list[QuarantinedBatch]:
        """Wait for the acknowledgements of everything that was sent, with the receipt sent meanwhile. As `write`."""
        if self.txn is not None:  # nothing to prove where nothing was written
            name = self.txn.transactional_id
            self._target.find_coordinators(CoordinatorKind.GROUP, [name], self._deadline)
            coordinator = self._target.known_coordinator(CoordinatorKind.GROUP, name)
            self._receipt = begin_receipt(
                self._target,
                self.txn,
                min(self._sequences),
                decision=self._job.decision,
                map_id=self._job.map_id,
                run_id=self._job.run_id,
                deadline=self._deadline,
                at_ms=int(time.time() * 1000),
                purpose=self._sending.pipeline().purpose_at(coordinator),
            )
            self._begin_stable_ends()
            self._written_topics.begin((target.topic for target in self._sequences), self._sending.pipeline())
        return self._record(builder_of, left=0)

    def _begin_stable_ends(self) -> None:
        """Send the requests that the decision of the driver depends on, while the last acknowledgements are on their way."""
        partitions = sorted(self._sequences)
        # Before the request: how new the answer is counts from here, however long it takes.
        self._stable_asked_at = self._deadline.clock()
        try:
            self._stable = self._target.begin_latest_offsets(partitions, IsolationLevel.READ_COMMITTED, self._deadline)
        except RetriableError as error:
            _log.debug("slot %d: the driver asks for last stable offsets itself: %s", self.number, error)

    def _stable_ends(self) -> dict[TopicPartition, int]:
        """Return last stable offsets; nothing if the driver has to ask itself, because they are not known or not new."""
        ends: dict[TopicPartition, int] = {}
        try:
            for begun in self._stable:
                ends |= begun.receive(self._deadline.sooner(STABLE_FOR_MS))
        except RetriableError as error:
            _log.debug("slot %d: the driver asks for last stable offsets itself: %s", self.number, error)
            return {}
        age_ms = (self._deadline.clock() - self._stable_asked_at) * 1000
        return ends if age_ms <= STABLE_FOR_MS else {}

    def _record(self, builder_of: Callable[[SourcePartition], SegmentBuilder], left: int) -> list[QuarantinedBatch]:
        """Hand the fate of the oldest responses to the segments, until so many are left.

        If the slot has stopped, none is left: the sent part of the last response is known then.
        """
        quarantined: list[QuarantinedBatch] = []
        while len(self._responses) > (0 if self._sending.has_stopped else left):
            placed = self._acknowledged(self._responses[0])
            for part in self._responses.popleft().admitted:
                source, index = part.part.source, part.part.index
                self.fetched_bytes += int(index.size_bytes.sum())
                base_offsets = placed.get(self._job.target_of(source), [])
                end = part.done_with(len(base_offsets))
                builder_of(source).add(index, part.admission, base_offsets, part.outgoing.rewritten, end=end)
                quarantined += part.quarantined
        return quarantined

    def _send(self, response: _Response, sent: Sequence[AdmittedPart]) -> None:
        txn, pipeline = self._open(), self._sending.pipeline()
        targets = [self._job.target_of(part.part.source) for part in sent]
        self._require_topics_of_map({part.part.source.topic for part in sent} - self._checked_topics)
        new = [target for target in targets if target not in self._added]
        if new:
            # The receipt's group is added with the first partitions, which spares a round trip.
            add = add_partitions if self._added else add_partitions_and_offsets
            add(self._target, txn, new, self._deadline)
            self._added.update(new)
        self._sequences.update((target, 0) for target in targets if target not in self._sequences)
        stamped = {
            self._job.target_of(part.part.source): Stamped(
                part.outgoing.records,
                part.outgoing.index,
                part.outgoing.chosen,
                self._sequences[self._job.target_of(part.part.source)],
            )
            for part in sent
        }
        following = restamp_all(list(stamped.values()), producer_id=txn.producer_id, producer_epoch=txn.producer_epoch)
        self._sequences.update(zip(stamped, following, strict=True))
        queues = {target: batches.batches() for target, batches in stamped.items()}
        continuing = {self._job.target_of(part.part.source): set(part.outgoing.continuing()) for part in sent}
        response.queues, response.submission = queues, Submission(continuing)
        with self._refusals_explained():
            pipeline.submit(queues, response.submission)
        self._sending.has_stopped = response.submission.is_cut_short

    def _require_topics_of_map(self, topics: Collection[str]) -> None:
        """Raise TopicGoneError if a target topic was deleted and created again, as far as this task knows.

        A base offset below those of the map shows it as well, but not if something else is in the new topic already, such as
        the marker of an aborted try. After an unsuccessful try the metadata is new.
        """
        if not topics:
            return
        routes = {topic: self._job.routes[topic] for topic in sorted(topics)}
        existing = self._target.known_topics({route.target_topic for route in routes.values()}, self._deadline)
        problems = {
            route.target_topic: gone_problem(topic, route.target_of(SourcePartition(topic, "", 0)), found.topic_id)
            for topic, route in routes.items()
            if (found := existing.get(route.target_topic)) is not None  # else Produce says so
            and is_incarnation_gone(found, route.target_topic_id)
        }
        if problems:
            raise TopicGoneError(list(problems.values()), list(problems))
        self._checked_topics.update(topics)

    def _acknowledged(self, response: _Response) -> Mapping[TopicPartition, list[int]]:
        """Wait until all that was sent of a response is acknowledged; return the places of its batches."""
        if response.submission is None:
            return {}
        with self._refusals_explained():
            self._sending.pipeline().finish(response.submission)
        placed = response.submission.base_offsets
        for target, base_offsets in placed.items():
            recorded_end = self._job.target_ends.get(target, 0)
            if base_offsets and base_offsets[0] < recorded_end:
                self._written_topics.require_present([target.topic])
                raise TargetDataLossError(target, recorded_end, base_offsets[0])
            self._sending.sent_bytes += sum(map(len, response.queues[target][: len(base_offsets)]))
        self._job.observer("task.produced")
        return placed

    @contextmanager
    def _refusals_explained(self) -> Iterator[None]:
        """Raise the target's refusal of a batch in the source's terms. It may be of an earlier response than the last one.

        Raises RetriableError if the driver has not added a partition: another try does so itself.
        """
        try:
            yield
        except ProducerEpochFencedError as fenced:
            if fenced.error_name != error_name(INVALID_TXN_STATE) or self._prepared is None or not self._prepared.adding:
                raise
            raise RetriableError("PARTITION_NOT_ADDED", f"before the driver has added it: {fenced.detail}") from fenced
        except ProduceRefusedError as refused:
            failed = self._sending.pipeline().failed
            response = next(response for response in self._responses if response.submission is failed)
            raise self._explained(refused, response) from refused

    def _open(self) -> SlotTxn:
        if self.txn is None:
            self._prepared = self._prepared or self._take_prepared()
            if self._begun is not None:
                finish_addition(self._target, self._begun, self._deadline)
                self._added.update(self._begun.topic_partitions)
            if self._prepared is not None:
                self.txn = self._prepared.txn
                self._added.update(self._prepared.adding)
            else:
                name, timeout_ms = self._job.transactional_id_of(self.number), self._job.transaction_timeout_ms
                self.txn = init_producer_id(self._target, name, timeout_ms, self._deadline)
            self._job.observer("task.initialised")
        return self.txn

    def close(self, *, is_partial: bool) -> SlotWrite:
        """Wait until the receipt is written, which commits with the transaction, and proves it. `finish` comes first.

        Raises TopicGoneError if something else has the name of a target topic now.
        """
        early_end = self._sending.early_end() if is_partial else None
        if self.txn is not None:
            assert self._receipt is not None
            finish_receipt(self._target, self.txn, min(self._sequences), self._receipt, self._deadline)
            self._job.observer("task.receipt")
            self._written_topics.require()
        stamped = () if self.txn is None else tuple(sorted({target.topic for target in self._sending.pipeline().stamped}))
        return SlotWrite(
            txn=self.txn,
            fetched_bytes=self.fetched_bytes,
            stamped_topics=stamped,
            early_end=early_end,
            stable_ends=self._stable_ends(),
            target_speeds=self._target.path_speeds(),
        )

    def _explained(self, refused: ProduceRefusedError, response: _Response) -> Exception:
        """Return the target's response in the source's terms: which batch, and whether it was damaged before it was sent."""
        for part in response.admitted:
            if self._job.target_of(part.part.source) != refused.topic_partition:
                continue
            index, number = part.part.index, refused.index_in_queue
            batch, last = int(part.outgoing.firsts[number]), int(part.outgoing.lasts[number])
            if batch != last:
                return CoalescedBatchRefusedError(part.part.source, int(index.last_offset[last]) + 1, refused)
            base_offset, pos = int(index.headers["base_offset"][batch]), int(index.pos[batch])
            bytes_sent = response.queues[refused.topic_partition][refused.index_in_queue]
            explained = explain_refusal(refused, bytes_sent, part.part.source.topic_partition, base_offset, pos)
            if not self._job.quarantines:
                return explained
            most = OPENED_FETCHES * self._job.fetch_bytes
            refusal = quarantinable_refusal(refused.error_name, explained, bytes_sent, max_opened_bytes=most)
            if refusal is None or not can_be_quarantined(index, batch, part.part.batch(batch)):
                return explained
            return QuarantinableBatchError(part.part.source, int(index.last_offset[batch]) + 1, refusal)
        return refused
