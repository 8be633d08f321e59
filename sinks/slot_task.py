"""Executor: one slot of a micro-batch: read, admit, rebuild, restamp, produce, receipt, segments.

One call reads every range of the slot from its position on and writes what is admitted in one Kafka transaction, which
it leaves open: only the driver ends it, after the decision. A slot that has nothing to write opens no transaction.

Errors of this package go back to the driver as values, so that their type and fields survive Spark.
"""

from __future__ import annotations

import itertools
import logging
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext

from shallow_mirror.broker.client_config import ClientConfig
from shallow_mirror.broker.cluster import Cluster
from shallow_mirror.broker.forgotten_markers import abort_forgotten
from shallow_mirror.broker.produce_window import ProduceRefused, ProduceWindow, explain_refusal
from shallow_mirror.broker.txn import add_partitions, init_producer_id, write_receipt
from shallow_mirror.broker.worker import cluster_of_worker, freeze_imports_once
from shallow_mirror.checkpoints.segments import SegmentBuilder
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import BatchRefused, MirrorError, Retriable, TargetDataLoss
from shallow_mirror.sinks.protocol import SlotResult
from shallow_mirror.sinks.slot_names import transactional_id
from shallow_mirror.sinks.slot_reading import DirectReading, ReadingLimits, ReadPart, RowReading, SlotReading, known_only
from shallow_mirror.sinks.source_log import SourceLogs
from shallow_mirror.types import (
    BatchLimits,
    EpochEnd,
    IsolationLevel,
    PlannedRange,
    SlotTxn,
    SourcePartition,
    TargetPartition,
    TopicPartition,
)
from shallow_mirror.wire.admission import Admission, admit
from shallow_mirror.wire.outgoing import Outgoing, make_outgoing
from shallow_mirror.wire.records import OPENED_FETCHES
from shallow_mirror.wire.restamp import restamp

_log = logging.getLogger(__name__)

SLOT_PATIENCE_MS = 10_000.0
"""A slot starts again by itself so long after its start; later failures go to the driver, whose supervisor shows them."""

RESULT_SCHEMA = "body binary"

_ARROW_RESULT_SCHEMA = pa.schema([("body", pa.binary())])

Observer = Callable[[str], None]
"""Called with the name of each point a task passes; tests use it to kill processes at that point."""


def observe_nothing(_point: str) -> None:
    """The observer of every run that is not a test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedTopic:
    """Where the batches of one source topic go, and what its target topic accepts."""

    target_topic: str
    target_topic_id: str
    limits: BatchLimits

    def target_of(self, source: SourcePartition) -> TargetPartition:
        return TargetPartition(self.target_topic, self.target_topic_id, source.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotJob:
    """Everything a task needs, carried in the closure of one micro-batch.

    `positions` are source offsets from the offset map, `epoch_ends` up to where it knows a leader epoch of the source,
    `target_ends` the ends of what it knows on the target.
    `time_left_ms` is what remains of the micro-batch's deadline when the task starts (clocks of different machines are
    never compared). `max_segments` bounds the rows a slot may return: it stops at a batch boundary and the rest is read in
    another round.
    """

    mirror: str
    map_id: str
    run_id: str
    decision: int
    source: ClientConfig
    target: ClientConfig
    routes: Mapping[str, RoutedTopic]
    positions: Mapping[SourcePartition, int]
    epoch_ends: Mapping[SourcePartition, EpochEnd]
    target_ends: Mapping[TopicPartition, int]
    isolation: IsolationLevel
    fetch_bytes: int
    in_flight_requests: int
    in_flight_bytes: int
    max_segments: int
    transaction_timeout_ms: int
    time_left_ms: float
    observer: Observer = observe_nothing

    def __call__(self, arrow_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The function of `mapInArrow`: rows of one slot in, one pickled result or `MirrorError` out.

        The rows are planned ranges, or record batches of `kafka-batches`; an input partition is a slot.
        """
        first = next(arrow_batches, None)
        if first is None:
            return
        freeze_imports_once()
        rows = itertools.chain([first], arrow_batches)
        body: SlotResult | MirrorError
        try:
            body = run_slot(self, rows, is_planned_ranges="range_end" in first.schema.names)
        except MirrorError as error:
            body = error
        columns = [pa.array([pickle.dumps(body)], pa.binary())]
        yield pa.RecordBatch.from_arrays(columns, schema=_ARROW_RESULT_SCHEMA)


def ranges_of(batch: pa.RecordBatch) -> list[PlannedRange]:
    """Rows of `shallow-mirror-ranges` as values."""
    return [
        PlannedRange(
            slot=row["slot"],
            source=SourcePartition(row["topic"], row["topic_id"], row["partition"]),
            leader_epoch=row["leader_epoch"],
            start=row["range_start"],
            end=row["range_end"],
            bytes_per_offset=row["bytes_per_offset"],
        )
        for row in batch.to_pylist()
    ]


def run_slot(job: SlotJob, rows: Iterator[pa.RecordBatch], *, is_planned_ranges: bool) -> SlotResult:
    """Steps 3-5 for one slot. Raises `MirrorError`s; whatever it wrote then stays in an open transaction that nobody
    will commit, and the next InitProducerId aborts it."""
    deadline = Deadline.after_ms(job.time_left_ms, time.monotonic)
    limits = ReadingLimits(isolation=job.isolation, fetch_bytes=job.fetch_bytes, deadline=deadline)
    positions = known_only(job.positions, job.routes.keys())
    source, target = cluster_of_worker(job.source), cluster_of_worker(job.target)
    places = [job.routes[one.topic].target_of(one).topic_partition for one in positions]
    attempt = _spark_attempt()
    if not is_planned_ranges:
        slot = _OpenSlot(job, _input_partition(), target, deadline)
        if attempt:
            slot.clean_up(places)
        logs = SourceLogs(source, job.epoch_ends, deadline)
        return _copy(job, RowReading(source, rows, slot.number, positions, limits), positions, logs, slot)
    ranges = [one for arrow_batch in rows for one in ranges_of(arrow_batch)]
    patience, tries = deadline.sooner(SLOT_PATIENCE_MS), 0
    while True:
        slot = _OpenSlot(job, ranges[0].slot, target, deadline)
        try:
            if attempt or tries:
                slot.clean_up(places)
            logs = SourceLogs(source, job.epoch_ends, deadline)
            return _copy(job, DirectReading(source, ranges, positions, limits), positions, logs, slot)
        except Retriable as error:
            if type(error) is not Retriable or patience.is_over():
                raise  # a fenced epoch may mean that another run took over: only the driver can tell
            _log.warning("slot %d starts again from its positions: %s", slot.number, error)
            target.pause(tries, patience)
            tries += 1


def _spark_attempt() -> int:
    context = TaskContext.get()
    return 0 if context is None else int(context.attemptNumber())


def _input_partition() -> int:
    context = TaskContext.get()
    assert context is not None
    return int(context.partitionId())


def _copy(
    job: SlotJob, reading: SlotReading, positions: Mapping[SourcePartition, int], logs: SourceLogs, slot: _OpenSlot
) -> SlotResult:
    builders: dict[SourcePartition, SegmentBuilder] = {}
    moved = dict(positions)

    def builder_of(source: SourcePartition) -> SegmentBuilder:
        if source not in builders:
            builders[source] = SegmentBuilder(source, job.routes[source.topic].target_of(source), positions[source])
        return builders[source]

    is_partial = False
    for parts in reading:
        admitted: list[_AdmittedPart] = []
        for part in parts:
            logs.require_continued_by(part)
            admitted.append(_admit(job, part, moved[part.source]))
            moved[part.source] = admitted[-1].admission.next_position
        slot.copy(admitted, builder_of)
        if sum(builder.segment_count for builder in builders.values()) > job.max_segments:
            is_partial = True
            break
    if not is_partial:
        for source, reached in reading.reached().items():
            builder_of(source).close_at(reached)
    segments = tuple(segment for builder in builders.values() for segment in builder.build())
    slot.write_receipt()
    return SlotResult(slot.number, slot.txn, segments, slot.fetched_bytes, reading.unknown, is_partial)


@dataclass(frozen=True, slots=True)
class _AdmittedPart:
    """One partition's part of a response, what becomes of its batches, and what is sent of it."""

    part: ReadPart
    admission: Admission
    outgoing: Outgoing


def _admit(job: SlotJob, part: ReadPart, position: int) -> _AdmittedPart:
    """Raises BatchRefused for what cannot be copied, CorruptBatch for what cannot be opened to be rebuilt."""
    place, limits = part.source.topic_partition, job.routes[part.source.topic].limits
    admission = admit(
        part.index,
        part.records,
        topic_partition=place,
        position=position,
        range_end=part.range_end,
        aborted=part.aborted,
        limits=limits,
    )
    if admission.refusals:
        refusal = admission.refusals[0]
        raise BatchRefused(place, refusal.base_offset, refusal.rule, refusal.remedy)
    outgoing = make_outgoing(
        part.index,
        part.records,
        admission,
        topic_partition=place,
        position=position,
        limits=limits,
        max_opened_bytes=OPENED_FETCHES * job.fetch_bytes,
    )
    return _AdmittedPart(part, admission, outgoing)


class _OpenSlot:
    """The transaction of one slot while its task runs: opened by the first batch that is written."""

    def __init__(self, job: SlotJob, number: int, target: Cluster, deadline: Deadline) -> None:
        self.number = number
        self.txn: SlotTxn | None = None
        self.fetched_bytes = 0
        self._job, self._target, self._deadline = job, target, deadline
        self._window: ProduceWindow | None = None
        self._sequences: dict[TopicPartition, int] = {}

    def clean_up(self, places: Sequence[TopicPartition]) -> None:
        """Before another try: nothing of the one before may still be open, or it would end with this one."""
        name, timeout_ms = transactional_id(self._job.mirror, self.number), self._job.transaction_timeout_ms
        fenced = init_producer_id(self._target, name, timeout_ms, self._deadline)
        abort_forgotten(self._target, [fenced], places, timeout_ms, self._deadline)

    def copy(self, admitted: Sequence[_AdmittedPart], builder_of: Callable[[SourcePartition], SegmentBuilder]) -> None:
        """Restamp and produce what is sent of one response, and hand every batch's fate to the segments."""
        sent = [one for one in admitted if len(one.outgoing)]
        placed = self._produce(sent) if sent else {}
        for one in admitted:
            source = one.part.source
            self.fetched_bytes += int(one.part.index.size_bytes.sum())
            base_offsets = placed.get(self._target_of(source), [])
            builder_of(source).add(one.part.index, one.admission, base_offsets, one.outgoing.rebuilt)

    def _produce(self, sent: Sequence[_AdmittedPart]) -> dict[TopicPartition, list[int]]:
        txn, window = self._open()
        added = [place for one in sent if (place := self._target_of(one.part.source)) not in self._sequences]
        if added:
            add_partitions(self._target, txn, added, self._deadline)
            self._sequences.update(dict.fromkeys(added, 0))
        queues: dict[TopicPartition, list[memoryview]] = {}
        for one in sent:
            place, outgoing = self._target_of(one.part.source), one.outgoing
            self._sequences[place] = restamp(
                outgoing.records,
                outgoing.index,
                outgoing.chosen,
                producer_id=txn.producer_id,
                producer_epoch=txn.producer_epoch,
                first_sequence=self._sequences[place],
            )
            starts, sizes = outgoing.index.pos[outgoing.chosen].tolist(), outgoing.index.size_bytes[outgoing.chosen].tolist()
            queues[place] = [outgoing.records[start : start + size] for start, size in zip(starts, sizes, strict=True)]
        try:
            placed = window.produce_all(queues)
        except ProduceRefused as refused:
            raise self._explained(refused, sent, queues) from refused
        for place, base_offsets in placed.items():
            recorded_end = self._job.target_ends.get(place, 0)
            if base_offsets and base_offsets[0] < recorded_end:
                raise TargetDataLoss(place, recorded_end, base_offsets[0])
        self._job.observer("task.produced")
        return placed

    def _open(self) -> tuple[SlotTxn, ProduceWindow]:
        if self.txn is None or self._window is None:
            name = transactional_id(self._job.mirror, self.number)
            self.txn = init_producer_id(self._target, name, self._job.transaction_timeout_ms, self._deadline)
            self._window = ProduceWindow(
                self._target,
                name,
                in_flight_requests=self._job.in_flight_requests,
                in_flight_bytes=self._job.in_flight_bytes,
                deadline=self._deadline,
            )
            self._job.observer("task.initialised")
        return self.txn, self._window

    def write_receipt(self) -> None:
        """The last write of the transaction: commits with it, and proves it. Nothing to prove where nothing was written."""
        if self.txn is None:
            return
        write_receipt(
            self._target,
            self.txn,
            min(self._sequences),
            decision=self._job.decision,
            map_id=self._job.map_id,
            run_id=self._job.run_id,
            deadline=self._deadline,
        )
        self._job.observer("task.receipt")

    def _target_of(self, source: SourcePartition) -> TopicPartition:
        return TopicPartition(self._job.routes[source.topic].target_topic, source.partition)

    def _explained(
        self, refused: ProduceRefused, sent: Sequence[_AdmittedPart], queues: Mapping[TopicPartition, Sequence[memoryview]]
    ) -> MirrorError:
        """The target's answer in the source's terms: which batch, and whether it was damaged before the target saw it."""
        for one in sent:
            if self._target_of(one.part.source) != refused.topic_partition:
                continue
            index = one.part.index
            batch = int(one.outgoing.origins[refused.index_in_queue])
            base_offset, pos = int(index.headers["base_offset"][batch]), int(index.pos[batch])
            bytes_sent = queues[refused.topic_partition][refused.index_in_queue]
            return explain_refusal(refused, bytes_sent, one.part.source.topic_partition, base_offset, pos)
        return refused
