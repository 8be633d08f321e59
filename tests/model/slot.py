"""One slot's task, in the shape of `sinks/slots/slot_task.py`: its transaction is the product's, its reading and Produce a model."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.model import effects
from tests.model.effects import NO_RESPONSE
from tests.model.programs import Port
from tests.model.seams import ModelCluster
from tests.model.source import MAP_ID, Scenario, target_partition
from tests.model.target_cluster import INVALID_STATE, INVALID_TIMESTAMP, NOT_AVAILABLE
from tests.support.receipts import write_receipt

from shallow_mirror.broker.admin import abort_hanging
from shallow_mirror.broker.net import error_name
from shallow_mirror.broker.produce import begin_receipt, finish_receipt
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
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import BatchRefusedError, MirrorError, ProducerEpochFencedError, RetriableError
from shallow_mirror.sinks import SlotResult
from shallow_mirror.sinks.kafka import SINGLE_SLOT, transactional_id
from shallow_mirror.sinks.kafka.writers.kafka_slot_job import PreparedTxn
from shallow_mirror.types import IsolationLevel, PlannedRange, Segment, SegmentKind, SlotTxn, SourcePartition, TopicPartition

MIRROR = "m"
TRANSACTION_TIMEOUT_MS = 9_000
_TRIES = 2


@dataclass(frozen=True)
class TaskFailed:
    """Travels to the driver instead of a `SlotResult`; compares by what it says."""

    error: MirrorError = field(compare=False)
    text: str


@dataclass(frozen=True, slots=True)
class _Step:
    """What becomes of one offset. Without a `topic_partition` nothing is sent."""

    source: SourcePartition
    offset: int
    topic_partition: TopicPartition | None
    sequence: int


@dataclass(frozen=True, slots=True)
class SlotTask:
    """`attempt` is Spark's. `positions` are those of the closure: of every partition, in order."""

    scenario: Scenario
    run: int
    decision: int
    slot: int
    attempt: int
    ranges: tuple[PlannedRange, ...]
    positions: tuple[tuple[SourcePartition, int], ...]
    id_numbers: tuple[int, ...] = ()
    held: tuple[TopicPartition, ...] = ()
    prepared: tuple[PreparedTxn, ...] = ()

    @property
    def transactional_id(self) -> str:
        return transactional_id(MIRROR, self.id_numbers[self.slot])

    def play(self, port: Port) -> SlotResult | TaskFailed:
        target = ModelCluster(port)
        deadline = Deadline.after_ms(TRANSACTION_TIMEOUT_MS, target.clock)
        tries = 0
        poison: list[_QuarantinableBatchError] = []
        while True:
            try:
                prepared: PreparedTxn | None = None
                if self.attempt or tries or poison:
                    self._clean_up(target, deadline)
                else:
                    prepared = next(
                        (ahead for ahead in self.prepared if ahead.txn.transactional_id == self.transactional_id), None
                    )
                return self._copy(target, deadline, poison, prepared)
            except _QuarantinableBatchError as found:
                poison.append(found)
            except MirrorError as error:
                if type(error) is not RetriableError or tries == _TRIES:
                    return TaskFailed(error, repr(error))
                tries += 1

    def _clean_up(self, target: Any, deadline: Deadline) -> None:
        topic_partitions = [target_partition(source.partition).topic_partition for source, _ in self.positions]
        topic_partitions = [
            topic_partition
            for topic_partition in topic_partitions
            if topic_partition not in self.held and _has_leader(target, topic_partition)
        ]
        fenced = init_producer_id(target, self.transactional_id, TRANSACTION_TIMEOUT_MS, deadline)
        abort_hanging(target, [fenced], topic_partitions, TRANSACTION_TIMEOUT_MS, deadline)

    def _copy(
        self, target: Any, deadline: Deadline, poison: Sequence[_QuarantinableBatchError], prepared: PreparedTxn | None
    ) -> SlotResult:
        """With a producer epoch taken ahead, partitions are added before anything is read. As far as what is known to be poison: that is set aside, and the rest is for another round.

        The receipt is on its way together with the last batch, and reaches the target first.
        """
        positions = dict(self.positions)
        steps: list[_Step] = []
        quarantined: list[QuarantinedBatch] = []
        is_partial = False
        topic_partitions: dict[SourcePartition, TopicPartition] = {}
        for planned_range in self.ranges:
            if planned_range.source not in positions:
                continue
            topic_partition = target_partition(planned_range.source.partition).topic_partition
            if topic_partition not in self.held and _has_leader(target, topic_partition):
                topic_partitions[planned_range.source] = topic_partition
        begun: BegunAddition | None = None
        if prepared is not None and not prepared.adding:
            expected = [
                each.source for each in self.ranges if each.source in topic_partitions and positions[each.source] < each.end
            ]
            if expected:
                begun = begin_addition(target, prepared.txn, sorted(topic_partitions[source] for source in expected), deadline)
        for planned_range in self.ranges:
            if planned_range.source not in topic_partitions or is_partial:
                continue
            topic_partition = topic_partitions[planned_range.source]
            sequence = 0
            for offset in range(positions[planned_range.source], planned_range.end):
                if self.scenario.stops_early and self.attempt == 0 and steps:
                    is_partial = True
                    break
                if any((poisoned.source, poisoned.offset) == (planned_range.source, offset) for poisoned in poison):
                    quarantined.append(poisoned(planned_range.source, offset))
                    steps.append(_Step(planned_range.source, offset, None, 0))
                    is_partial = True
                    break
                if self.scenario.logs[planned_range.source.partition][offset] != "m":
                    steps.append(_Step(planned_range.source, offset, topic_partition, sequence))
                    sequence += 1
                else:
                    steps.append(_Step(planned_range.source, offset, None, 0))
        not_sent = {(batch.source, batch.source_start) for batch in quarantined}
        txn, segments, stable = self._written(target, deadline, steps, not_sent, begun, prepared)
        unknown = tuple(planned_range for planned_range in self.ranges if planned_range.source not in positions)
        return SlotResult(
            self.slot,
            txn,
            tuple(segments),
            unknown=unknown,
            is_partial=is_partial,
            quarantined=tuple(quarantined),
            stable_ends=stable,
        )

    def _written(
        self,
        target: Any,
        deadline: Deadline,
        steps: Sequence[_Step],
        quarantined: Collection[tuple[SourcePartition, int]],
        begun: BegunAddition | None,
        prepared: PreparedTxn | None,
    ) -> tuple[SlotTxn | None, list[Segment], dict[TopicPartition, int]]:
        txn: SlotTxn | None = None
        segments: list[Segment] = []
        written: list[TopicPartition] = []
        added: set[TopicPartition] = set()
        receipt: BegunRequest | None = None
        stable: dict[TopicPartition, int] = {}
        last = max((i for i, step in enumerate(steps) if step.topic_partition is not None), default=-1)
        for i, step in enumerate(steps):
            if (step.source, step.offset) in quarantined:
                segments.append(_segment(step.source, step.offset, SegmentKind.QUARANTINED))
                continue
            target_offset = None
            if step.topic_partition is not None:
                if txn is None and begun is not None:
                    finish_addition(target, begun, deadline)
                    txn, added = begun.txn, set(begun.topic_partitions)
                elif txn is None and prepared is not None and prepared.adding:
                    txn, added = prepared.txn, set(prepared.adding)
                elif txn is None:
                    txn = init_producer_id(target, self.transactional_id, TRANSACTION_TIMEOUT_MS, deadline)
                if step.topic_partition not in added:
                    add = add_partitions if added else add_partitions_and_offsets
                    add(target, txn, [step.topic_partition], deadline)
                    added.add(step.topic_partition)
                if step.topic_partition not in written:
                    written.append(step.topic_partition)
                if i == last:
                    receipt = begin_receipt(
                        target, txn, min(written), decision=self.decision, map_id=MAP_ID, run_id=str(self.run), deadline=deadline
                    )
                    for asked in target.begin_latest_offsets(sorted(written), IsolationLevel.READ_COMMITTED, deadline):
                        stable |= asked.receive(deadline)
                is_poison = self.scenario.logs[step.source.partition][step.offset] == "p"
                try:
                    target_offset = produce(
                        target.port, effects.Produce(txn, step.topic_partition, step.sequence, step.offset, is_poison)
                    )
                except BatchRefusedError as refused:
                    raise _QuarantinableBatchError(step.source, step.offset) from refused
                except ProducerEpochFencedError as fenced:
                    if prepared is None or not prepared.adding or fenced.error_name != error_name(INVALID_STATE):
                        raise
                    raise RetriableError("PARTITION_NOT_ADDED", fenced.detail) from fenced
            _extend(segments, step.source, step.offset, target_offset)
        if txn is not None:
            assert receipt is not None
            finish_receipt(target, txn, min(written), receipt, deadline)
        return txn, segments, stable


def _has_leader(target: Any, topic_partition: TopicPartition) -> bool:
    problems: dict[TopicPartition, Any] = target.latest_offsets([topic_partition], IsolationLevel.READ_UNCOMMITTED, None)[1]
    return not problems


class _QuarantinableBatchError(Exception):
    def __init__(self, source: SourcePartition, offset: int) -> None:
        self.source, self.offset = source, offset
        super().__init__(source, offset)


def poisoned(source: SourcePartition, offset: int) -> QuarantinedBatch:
    """Return the batch that goes into quarantine."""
    return QuarantinedBatch(
        source=source,
        source_start=offset,
        source_end=offset + 1,
        target=target_partition(source.partition),
        error_name="INVALID_TIMESTAMP",
        rule="too old",
        remedy="wait",
        batch=b"",
    )


def release(target: Any, batches: Sequence[QuarantinedBatch], decision: int, run: int, deadline: Deadline) -> SlotResult:
    """Run the slot of a retry, after the remedy."""
    txn = init_producer_id(target, transactional_id(MIRROR, SINGLE_SLOT), TRANSACTION_TIMEOUT_MS, deadline)
    topic_partitions = sorted({batch.target.topic_partition for batch in batches})
    add_partitions(target, txn, topic_partitions, deadline)
    sequences = dict.fromkeys(topic_partitions, 0)
    segments: list[Segment] = []
    for batch in batches:
        topic_partition = batch.target.topic_partition
        at = produce(target.port, effects.Produce(txn, topic_partition, sequences[topic_partition], batch.source_start))
        sequences[topic_partition] += 1
        _extend(segments, batch.source, batch.source_start, at)
    write_receipt(target, txn, topic_partitions[0], decision=decision, map_id=MAP_ID, run_id=str(run), deadline=deadline)
    return SlotResult(SINGLE_SLOT, txn, tuple(segments))


def produce(port: Port, request: effects.Produce) -> int:
    """Never sent again: the transaction is over after any error."""
    response = port.ask(request)
    if response is NO_RESPONSE:
        raise RetriableError("NETWORK_EXCEPTION", f"no answer to Produce to {request.topic_partition}")
    code, offset = response
    if code == INVALID_TIMESTAMP:
        raise BatchRefusedError(request.topic_partition, request.record, error_name(code), "wait")
    if code == NOT_AVAILABLE:
        raise RetriableError(error_name(code), f"Produce to {request.topic_partition}")
    if code:
        raise ProducerEpochFencedError(error_name(code), f"Produce to {request.topic_partition}")
    return int(offset)


def _extend(segments: list[Segment], source: SourcePartition, offset: int, target_offset: int | None) -> None:
    """Extend the last segment where the shift is the same; a marker is a separate row."""
    last = segments[-1] if segments else None
    if target_offset is None:
        segments.append(_segment(source, offset, SegmentKind.COMMIT))
    elif last is not None and (last.source, last.source_end, last.target_end) == (source, offset, target_offset):
        segments[-1] = replace(last, source_end=offset + 1, target_end=target_offset + 1)
    else:
        segments.append(_segment(source, offset, SegmentKind.DATA, target_offset))


def _segment(source: SourcePartition, offset: int, kind: SegmentKind, target_offset: int | None = None) -> Segment:
    """Of one offset."""
    return Segment(
        source=source,
        source_start=offset,
        source_end=offset + 1,
        kind=kind,
        target=target_partition(source.partition),
        target_start=target_offset,
        target_end=None if target_offset is None else target_offset + 1,
    )
