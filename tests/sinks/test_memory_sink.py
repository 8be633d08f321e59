"""A sink without Kafka transactions: objects in memory, named by a decision. The code of micro-batches and slots drives it as it is."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from tests.sinks.two_strict_clusters import A, B, Clusters, payloads, planned as range_of

from shallow_mirror.checkpoints import DecidedSegment, Position
from shallow_mirror.checkpoints.logs import QuarantinedBatch
from shallow_mirror.checkpoints.rows import SegmentBuilder
from shallow_mirror.checkpoints.rows.positions import positions_of
from shallow_mirror.checkpoints.rows.schema import rows_to_arrow
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import DataLossError, MirrorError, OutcomeUnknownError, RetriableError
from shallow_mirror.sinks import ReadPart, TaskFunction, observe_nothing
from shallow_mirror.sinks.base import RunSlots, Sink, SlotRound, SlotTarget, SlotWriter
from shallow_mirror.sinks.kafka.writers import KafkaSlotJob
from shallow_mirror.sinks.kafka.writers.slot_admission import admit_part
from shallow_mirror.sinks.micro_batches import MicroBatchReport, MicroBatchSink
from shallow_mirror.sinks.slot_values import MicroBatchOutcome, SlotWrite
from shallow_mirror.sinks.slots import SlotTime, arrow_batch_of
from shallow_mirror.sinks.slots.slot_task import SlotTask
from shallow_mirror.types import PlannedRange, Segment, SegmentKind, SourcePartition, TargetPartition
from shallow_mirror.wire import BATCH_HEADER_BYTES

TARGETS = {source: TargetPartition("copy", "t", source.partition) for source in (A, B)}

Object = dict[SourcePartition, list[tuple[int, bytes]]]
"""Of each partition the record sections of its batches, each with its position."""


@dataclass(slots=True)
class Store:
    """What outlives a driver: objects by the try that wrote them, and decisions, each with the objects that it names."""

    objects: list[Object] = field(default_factory=list)
    decisions: list[tuple[Sequence[DecidedSegment], tuple[int, ...]]] = field(default_factory=list)

    def visible(self, source: SourcePartition) -> list[bytes]:
        """Return the record sections that a reader sees: those of objects that a decision names."""
        named = [self.objects[number] for _, numbers in self.decisions for number in numbers]
        return [section for each in named for _, section in each.get(source, [])]

    def positions(self) -> dict[SourcePartition, Position]:
        return positions_of(rows_to_arrow(rows, 1, number, 0) for number, (rows, _) in enumerate(self.decisions))


class Writer:
    """One try: an object of its own."""

    def __init__(
        self,
        store: Store,
        job: KafkaSlotJob,
        ends: Mapping[SourcePartition, int],
        batches: int | None,
        fault: Callable[[], None],
    ) -> None:
        self._job = job
        self._ends = dict(ends)
        self._left = batches
        self._fault = fault
        self._object: Object = {}
        store.objects.append(self._object)
        self._fetched_bytes = 0

    @property
    def is_due(self) -> bool:
        return self._left is not None and self._left <= 0

    @property
    def until(self) -> None:
        """Return that no time ends this try: the number of its batches does."""

    def expect(self, sources: Iterable[SourcePartition]) -> None:
        """Nothing takes a round trip here."""

    def write(self, parts: Sequence[ReadPart], builder_of: Callable[[SourcePartition], SegmentBuilder]) -> list[QuarantinedBatch]:
        for part in (admit_part(self._job, read, builder_of(read.source).position, {}) for read in parts):
            source, outgoing = part.part.source, part.outgoing
            positions = list[int]()
            for i in outgoing.chosen.tolist():
                start, size = int(outgoing.index.pos[i]), int(outgoing.index.size_bytes[i])
                position = self._ends.get(source, 0)
                section = bytes(outgoing.records[start + BATCH_HEADER_BYTES : start + size])
                self._object.setdefault(source, []).append((position, section))
                self._ends[source] = position + int(outgoing.index.headers["last_offset_delta"][i]) + 1
                positions.append(position)
            self._fetched_bytes += int(part.part.index.size_bytes.sum())
            if self._left is not None:
                self._left -= len(positions)
            builder_of(source).add(part.part.index, part.admission, positions, outgoing.rewritten)
        self._fault()
        return []

    def finish(self, builder_of: Callable[[SourcePartition], SegmentBuilder]) -> Sequence[QuarantinedBatch]:
        """Do nothing: every response is recorded when it is written."""
        return ()

    def close(self, segments: Sequence[Segment], *, is_partial: bool) -> SlotWrite:
        return SlotWrite(txn=None, fetched_bytes=self._fetched_bytes)


class Target:
    """Where a slot writes. `objects` receives the number of the object of its newest try."""

    def __init__(
        self,
        store: Store,
        job: KafkaSlotJob,
        objects: dict[int, int],
        number: int,
        batches: int | None,
        fault: Callable[[], None],
    ) -> None:
        self._store = store
        self._job = job
        self._objects = objects
        self._number = number
        self._batches = batches
        self._fault = fault

    def begin(self) -> SlotWriter:
        ends = {source: position.target_end for source, position in self._store.positions().items()}
        writer = Writer(self._store, self._job, ends, self._batches, self._fault)
        self._objects[self._number] = len(self._store.objects) - 1
        return writer

    def unavailable(self, sources: Iterable[SourcePartition]) -> Mapping[SourcePartition, RetriableError]:
        return {}

    def clean_up(self, sources: Iterable[SourcePartition]) -> None:
        """Do nothing: an object that no decision names is not read."""

    def abandon(self) -> None:
        """Do nothing: an object that no decision names is not read."""

    def pause(self, tries: int, deadline: Deadline) -> None:
        """Nothing is waited for."""


class MemorySink:
    """Decides with one entry of a list. `avoids`: slots do without what made them raise RetriableError."""

    def __init__(self, store: Store, template: KafkaSlotJob, *, batches: int | None = None, avoids: bool = False) -> None:
        self.store = store
        self.fault: Callable[[], None] = lambda: None
        self.before_the_decision: Callable[[], None] = lambda: None
        self.abandoned = 0
        self._template = template
        self._batches = batches
        self._avoids = avoids
        self._objects: dict[int, int] = {}

    @property
    def round_timeout_ms(self) -> int:
        return 60_000

    @property
    def commit_interval_ms(self) -> float:
        return 30_000

    @property
    def micro_batch(self) -> int:
        return len(self.store.decisions)

    def positions(self) -> Mapping[SourcePartition, Position]:
        return self.store.positions()

    def check_ownership(self) -> None:
        """There is one driver."""

    def settle(self) -> None:
        """Do nothing: a decision holds at once."""

    def recheck_unavailable(self) -> None:
        """Memory is never unavailable."""

    def task_of(self, round_: SlotRound) -> TaskFunction:
        job = replace(
            self._template,
            decision=round_.decision,
            positions=round_.positions,
            epoch_ends=round_.epoch_ends,
            time_left_ms=round_.time_left_ms,
            left_out=round_.left_out,
        )
        self._objects = {}
        return SlotTask(job, functools.partial(self._open, job))

    def _open(self, job: KafkaSlotJob, number: int, _deadline: Deadline) -> SlotTarget:
        return Target(self.store, job, self._objects, number, self._batches, self.fault)

    def run_round(
        self,
        first_rows: Sequence[DecidedSegment],
        run_slots: RunSlots,
        deadline: Deadline,
        on_step: Callable[[str, float], None],
    ) -> MicroBatchOutcome:
        results = run_slots(len(self.store.decisions) + 1)
        rows = (*first_rows, *(DecidedSegment(segment, None) for result in results for segment in result.segments))
        self.before_the_decision()
        if rows:
            self.store.decisions.append((rows, tuple(self._objects.values())))
        on_step("Decide", 0.0)
        return MicroBatchOutcome(rows, (), results)

    def can_avoid(self, error: MirrorError) -> bool:
        return self._avoids and isinstance(error, RetriableError)

    def with_copied(self, rows: Sequence[DecidedSegment], deadline: Deadline) -> tuple[DecidedSegment, ...]:
        return tuple(rows)

    def abandon(self, deadline: Deadline) -> None:
        self.abandoned += 1


class Mirror:
    """A store with the first rows of both partitions, and a driver over it."""

    def __init__(self, clusters: Clusters, store: Store | None = None, **settings: Any) -> None:
        self.clusters = clusters
        self.store = _begun() if store is None else store
        template = replace(clusters.job({}), target_ends={})
        self.reports: list[MicroBatchReport] = []
        self.memory = MemorySink(self.store, template, **settings)
        sink: Sink = self.memory
        source: Any = None
        self.sink = MicroBatchSink(
            sink, source=source, slot_time=SlotTime(2), report=self.reports.append, observer=observe_nothing
        )

    def copy(self, *slots: Sequence[PlannedRange]) -> None:
        """Run a micro-batch with these slots, as Spark does."""

        def map_in_arrow(task: Any, _schema: str) -> Any:
            def evaluate() -> pa.Table:
                rows = [list(task(iter([arrow_batch_of(ranges)]))) for ranges in slots]
                return pa.Table.from_batches(itertools.chain.from_iterable(rows))

            return SimpleNamespace(toArrow=evaluate)

        frame: Any = SimpleNamespace(mapInArrow=map_in_arrow)
        self.sink(frame, 0)

    def copy_all(self) -> None:
        self.copy(*([self._all_of(source, slot)] for slot, source in enumerate((A, B))))

    def _all_of(self, source: SourcePartition, slot: int) -> PlannedRange:
        return replace(range_of(source, self.clusters.source.log("orders", source.partition).end_offset), slot=slot)

    def is_copied_once(self) -> bool:
        return all(self.store.visible(source) == payloads(self.clusters.written[source]) for source in (A, B))


def _begun() -> Store:
    rows = [
        DecidedSegment(Segment(source=source, source_start=0, source_end=0, kind=SegmentKind.GAP, target=target), None)
        for source, target in TARGETS.items()
    ]
    return Store(decisions=[(rows, ())])


def offsets(store: Store) -> dict[SourcePartition, int]:
    return {source: position.offset for source, position in store.positions().items()}


def test_a_micro_batch_is_visible_once_it_is_decided_and_the_next_one_continues_behind_it(clusters: Clusters) -> None:
    clusters.write(A, 2, 3)
    clusters.write(B, 4)
    mirror = Mirror(clusters)
    mirror.copy_all()
    assert offsets(mirror.store) == {A: 5, B: 4}
    assert mirror.is_copied_once()
    clusters.write(A, 1)
    mirror.copy_all()
    assert offsets(mirror.store) == {A: 6, B: 4}
    assert mirror.is_copied_once()
    assert [report.micro_batch for report in mirror.reports] == [2, 3]
    rows = [row.segment for row in mirror.reports[-1].rows]
    assert [(row.source, row.source_start, row.target_start, row.record_count) for row in rows] == [(A, 5, 5, 1)]


def test_what_was_written_and_not_decided_is_invisible_and_copied_again(clusters: Clusters) -> None:
    clusters.write(A, 2)
    clusters.write(B, 1)
    mirror = Mirror(clusters)

    def crash() -> None:
        raise OutcomeUnknownError("the driver ends in front of the decision")

    mirror.memory.before_the_decision = crash
    with pytest.raises(OutcomeUnknownError):
        mirror.copy_all()
    assert mirror.store.visible(A) == []
    assert len(mirror.store.objects) == 2
    later = Mirror(clusters, mirror.store)
    later.copy_all()
    assert later.is_copied_once()


def test_a_slot_that_ends_early_continues_in_further_rounds(clusters: Clusters) -> None:
    clusters.write(A, 1, 1, 1)
    mirror = Mirror(clusters, batches=1)
    mirror.copy_all()
    assert offsets(mirror.store) == {A: 3, B: 0}
    assert mirror.is_copied_once()


def test_a_slot_tries_again_with_an_object_of_its_own_and_only_the_last_one_is_named(clusters: Clusters) -> None:
    clusters.write(A, 2)
    mirror = Mirror(clusters)
    faults = iter([RetriableError("SLOW", "the store answers 503")])

    def fail_once() -> None:
        error = next(faults, None)
        if error is not None:
            raise error

    mirror.memory.fault = fail_once
    mirror.copy_all()
    assert mirror.is_copied_once()
    assert len(mirror.store.objects) == 3, "two tries of one slot, one of the other"
    (report,) = mirror.reports
    assert [(number, error.error_name) for number, error in report.retried] == [(0, "SLOW")]


def test_what_the_sink_can_avoid_costs_a_round_and_what_it_cannot_is_abandoned(clusters: Clusters) -> None:
    clusters.write(A, 2)
    mirror = Mirror(clusters, avoids=True)
    errors = iter([_BlockedError("BLOCKED", "this object cannot be written")])

    def blocked_once() -> None:
        error = next(errors, None)
        if error is not None:
            raise error

    mirror.memory.fault = blocked_once
    mirror.copy_all()
    assert mirror.is_copied_once()
    assert mirror.memory.abandoned == 0

    clusters.write(A, 1)
    clusters.source.log("orders", 0).delete_records_before(3)
    with pytest.raises(DataLossError):
        mirror.copy_all()
    assert mirror.memory.abandoned == 1


class _BlockedError(RetriableError):
    """Not tried again by the slot: only the driver knows what to do about it."""
