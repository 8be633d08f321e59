"""Executor: the Kafka transaction of one slot of a DataFrame sink, which only the driver ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shallow_mirror.broker import Cluster, CoordinatorKind
from shallow_mirror.broker.cluster import is_incarnation_gone
from shallow_mirror.broker.produce import ProducePipeline, ProduceRefusedError, Submission, begin_receipt, finish_receipt
from shallow_mirror.broker.produce.txn import add_partitions, add_partitions_and_offsets, init_producer_id
from shallow_mirror.checkpoints import segment_of
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError, TargetDataLossError
from shallow_mirror.sinks.records.record_job import RecordJob
from shallow_mirror.types import Segment, SlotTxn, TargetPartition
from shallow_mirror.wire import BATCH_HEADER_BYTES
from shallow_mirror.wire.batches import SEQUENCE_MODULUS
from shallow_mirror.wire.columns import ColumnBatch
from shallow_mirror.wire.protocol import SplitBatch

Refuse = Callable[[ColumnBatch, ProduceRefusedError], Exception]
"""Return the error of a batch that the target refuses."""

_AFTER_LOSS = (
    "The table `written_records` says what each micro-batch had written there: write what is lost again, and continue with a "
    "sink of another name and other tables"
)


@dataclass(slots=True)
class _Written:
    """Records of the transaction in one partition, as far as they are acknowledged."""

    start: int
    end: int
    record_count: int = 0
    batch_count: int = 0
    size_bytes: int = 0
    max_timestamp_ms: int = 0


class RecordTransaction:
    """Opened by the first batch. `refuse`: as `Refuse`; called while the batches of the refused submission are known."""

    def __init__(self, job: RecordJob, slot: int, target: Cluster, deadline: Deadline, now_ms: Callable[[], int]) -> None:
        self._job, self._target, self._deadline, self._now_ms = job, target, deadline, now_ms
        self._name = job.transactional_id_of(slot)
        self._pipeline = ProducePipeline(
            target,
            self._name,
            in_flight_requests=job.in_flight_requests,
            in_flight_bytes=job.in_flight_bytes,
            deadline=deadline,
        )
        self.txn: SlotTxn | None = None
        self._sequences: dict[TargetPartition, int] = {}
        self._sent: deque[tuple[Submission, dict[TargetPartition, list[ColumnBatch]]]] = deque()
        self._written: dict[TargetPartition, _Written] = {}

    def write(self, batches: Sequence[ColumnBatch], targets: Sequence[TargetPartition], refuse: Refuse) -> None:
        """Send batches, and wait for the acknowledgements of those before them.

        Raises what `refuse` returns, ProducerEpochFencedError, RetriableError, ConfigError, TargetDataLossError.
        """
        txn = self._open()
        by_target: dict[TargetPartition, list[ColumnBatch]] = {}
        for batch in batches:
            by_target.setdefault(targets[batch.target], []).append(batch)
        self._add(txn, [target for target in by_target if target not in self._sequences])
        queues = {target.topic_partition: [self._stamped(txn, target, one) for one in of] for target, of in by_target.items()}
        submission = Submission({})
        self._sent.append((submission, by_target))
        self._explained(lambda: self._pipeline.submit(queues, submission), refuse)
        self._acknowledge(refuse, left=1)

    def finish(self, refuse: Refuse) -> tuple[Segment, ...]:
        """Wait for all acknowledgements and for the receipt. Return a segment for each partition. Raises as `write`."""
        txn = self.txn
        if txn is None:
            return ()
        self._target.find_coordinators(CoordinatorKind.GROUP, [self._name], self._deadline)
        lowest = min(target.topic_partition for target in self._sequences)
        receipt = begin_receipt(
            self._target,
            txn,
            lowest,
            decision=self._job.decision,
            map_id=self._job.map_id,
            run_id=self._job.run_id,
            deadline=self._deadline,
            at_ms=self._now_ms(),
            micro_batch=self._job.micro_batch,
            purpose=self._pipeline.purpose_at(self._target.known_coordinator(CoordinatorKind.GROUP, self._name)),
        )
        self._acknowledge(refuse, left=0)
        finish_receipt(self._target, txn, lowest, receipt, self._deadline)
        self._job.observer("task.receipt")
        self._require_same_topics()
        return tuple(
            segment_of(
                target,
                written.start,
                written.end,
                record_count=written.record_count,
                batch_count=written.batch_count,
                size_bytes=written.size_bytes,
                max_timestamp_ms=written.max_timestamp_ms,
            )
            for target, written in sorted(self._written.items())
        )

    def stamped_topics(self) -> tuple[str, ...]:
        """Return the topics whose broker gave records its own time."""
        return tuple(sorted({target.topic for target in self._pipeline.stamped}))

    def _open(self) -> SlotTxn:
        if self.txn is None:
            self.txn = init_producer_id(self._target, self._name, self._job.transaction_timeout_ms, self._deadline)
            self._job.observer("task.initialised")
        return self.txn

    def _add(self, txn: SlotTxn, targets: Sequence[TargetPartition]) -> None:
        """Add partitions to the transaction, with the group of the receipt the first time.

        Not one that could take no marker: the transaction would stay half ended until it can.
        """
        if not targets:
            return
        partitions = [target.topic_partition for target in targets]
        for partition in partitions:
            if partition in self._job.held:
                raise RetriableError("MARKER_PENDING", f"target {partition}: {self._job.held[partition]}")
        self._target.leaders(partitions, self._deadline)  # raises RetriableError if there is none now
        add = add_partitions if self._sequences else add_partitions_and_offsets
        add(self._target, txn, partitions, self._deadline)
        self._sequences.update(dict.fromkeys(targets, 0))
        self._job.observer("task.added")

    def _stamped(self, txn: SlotTxn, target: TargetPartition, batch: ColumnBatch) -> SplitBatch:
        sequence = self._sequences[target]
        self._sequences[target] = (sequence + batch.record_count) % SEQUENCE_MODULUS
        return batch.stamped(producer_id=txn.producer_id, producer_epoch=txn.producer_epoch, base_sequence=sequence)

    def _acknowledge(self, refuse: Refuse, left: int) -> None:
        """Wait for the oldest submissions until so many are left: their bytes are then free."""
        while len(self._sent) > left:
            submission, by_target = self._sent[0]
            self._explained(lambda submission=submission: self._pipeline.finish(submission), refuse)  # type: ignore[misc]
            self._sent.popleft()
            for target, batches in by_target.items():
                self._record(target, batches, submission.base_offsets[target.topic_partition])
            self._job.observer("task.produced")

    def _record(self, target: TargetPartition, batches: Sequence[ColumnBatch], base_offsets: Sequence[int]) -> None:
        known_end = self._job.target_ends.get(target, 0)
        if base_offsets[0] < known_end:
            self._require_same_topics()  # cached metadata may name a former topic, which ended there
            raise TargetDataLossError(target.topic_partition, known_end, base_offsets[0], remedy=_AFTER_LOSS)
        written = self._written.setdefault(target, _Written(base_offsets[0], base_offsets[0]))
        for batch, base_offset in zip(batches, base_offsets, strict=True):
            written.end = base_offset + batch.record_count
            written.record_count += batch.record_count
            written.batch_count += 1
            written.size_bytes += len(batch.payload) + BATCH_HEADER_BYTES
            written.max_timestamp_ms = max(written.max_timestamp_ms, batch.max_timestamp_ms)

    def _explained(self, request: Callable[[], None], refuse: Refuse) -> None:
        try:
            request()
        except ProduceRefusedError as refused:
            _, by_target = next(sent for sent in self._sent if sent[0] is self._pipeline.failed)
            target = next(target for target in by_target if target.topic_partition == refused.topic_partition)
            raise refuse(by_target[target][refused.index_in_queue], refused) from refused

    def _require_same_topics(self) -> None:
        """Raise RetriableError if a topic was deleted or created again while it was written: Produce names topics only."""
        ids = {target.topic: target.topic_id for target in self._sequences}
        listed = self._target.metadata(sorted(ids), self._deadline).topics
        gone = [topic for topic, topic_id in ids.items() if is_incarnation_gone(listed.get(topic), topic_id)]
        if gone:
            raise RetriableError("TOPIC_RECREATED", f"topic {gone[0]} was deleted or created again while it was written")
