"""One slot's task, in the shape of `sinks/slot_task.py`: its transaction is the product's, its reading and Produce a model."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tests.model import effects
from tests.model.effects import NO_ANSWER
from tests.model.programs import Port
from tests.model.seams import ModelCluster
from tests.model.source import MAP_ID, Scenario, target_partition

from shallow_mirror.broker.error_codes import error_name
from shallow_mirror.broker.forgotten_markers import abort_forgotten
from shallow_mirror.broker.txn import add_partitions, init_producer_id, write_receipt
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError, ProducerEpochFenced, Retriable
from shallow_mirror.sinks.protocol import SlotResult
from shallow_mirror.sinks.slot_names import transactional_id
from shallow_mirror.types import PlannedRange, Segment, SegmentKind, SlotTxn, SourcePartition, TopicPartition

MIRROR = "m"
TRANSACTION_TIMEOUT_MS = 9_000
_TRIES = 2


@dataclass(frozen=True)
class TaskFailed:
    """Travels to the driver instead of a `SlotResult`; compares by what it says."""

    error: MirrorError = field(compare=False)
    text: str


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

    def play(self, port: Port) -> SlotResult | TaskFailed:
        target = ModelCluster(port)
        deadline = Deadline.after_ms(TRANSACTION_TIMEOUT_MS, target.clock)
        tries = 0
        while True:
            try:
                if self.attempt or tries:
                    self._clean_up(target, deadline)
                return self._copy(target, deadline)
            except MirrorError as error:
                if type(error) is not Retriable or tries == _TRIES:
                    return TaskFailed(error, repr(error))
                tries += 1

    def _clean_up(self, target: Any, deadline: Deadline) -> None:
        places = [target_partition(source.partition).topic_partition for source, _ in self.positions]
        fenced = init_producer_id(target, transactional_id(MIRROR, self.slot), TRANSACTION_TIMEOUT_MS, deadline)
        abort_forgotten(target, [fenced], places, TRANSACTION_TIMEOUT_MS, deadline)

    def _copy(self, target: Any, deadline: Deadline) -> SlotResult:
        positions = dict(self.positions)
        txn: SlotTxn | None = None
        segments: list[Segment] = []
        written: list[TopicPartition] = []
        is_partial = False
        for one in self.ranges:
            if one.source not in positions:
                continue
            place = target_partition(one.source.partition).topic_partition
            sequence = 0
            for offset in range(positions[one.source], one.end):
                if self.scenario.stops_early and self.attempt == 0 and segments:
                    is_partial = True
                    break
                target_offset = None
                if self.scenario.logs[one.source.partition][offset] == "r":
                    if txn is None:
                        txn = init_producer_id(target, transactional_id(MIRROR, self.slot), TRANSACTION_TIMEOUT_MS, deadline)
                    if place not in written:
                        add_partitions(target, txn, [place], deadline)
                        written.append(place)
                    target_offset = _produce(target.port, effects.Produce(txn, place, sequence, offset))
                    sequence += 1
                _extend(segments, one.source, offset, target_offset)
        if txn is not None:
            write_receipt(
                target, txn, min(written), decision=self.decision, map_id=MAP_ID, run_id=str(self.run), deadline=deadline
            )
        unknown = tuple(one for one in self.ranges if one.source not in positions)
        return SlotResult(self.slot, txn, tuple(segments), unknown=unknown, is_partial=is_partial)


def _produce(port: Port, request: effects.Produce) -> int:
    """Never sent again: the transaction is over after any error."""
    answer = port.ask(request)
    if answer is NO_ANSWER:
        raise Retriable("NETWORK_EXCEPTION", f"no answer to Produce to {request.place}")
    code, offset = answer
    if code:
        raise ProducerEpochFenced(error_name(code), f"Produce to {request.place}")
    return int(offset)


def _extend(segments: list[Segment], source: SourcePartition, offset: int, target_offset: int | None) -> None:
    """A record goes on with the segment before it where the shift is the same; a marker is a row of its own."""
    last = segments[-1] if segments else None
    if target_offset is None:
        marker = Segment(
            source=source,
            source_start=offset,
            source_end=offset + 1,
            kind=SegmentKind.COMMIT,
            target=target_partition(source.partition),
        )
        segments.append(marker)
    elif last is not None and (last.source, last.source_end, last.target_end) == (source, offset, target_offset):
        segments[-1] = replace(last, source_end=offset + 1, target_end=target_offset + 1)
    else:
        data = Segment(
            source=source,
            source_start=offset,
            source_end=offset + 1,
            kind=SegmentKind.DATA,
            target=target_partition(source.partition),
            target_start=target_offset,
            target_end=target_offset + 1,
        )
        segments.append(data)
