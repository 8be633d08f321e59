"""The driver, in the shape of `streaming/runs/mirror_query.py`: phases over the product's owner, recovery and micro-batch sink.

A phase ends where all that the next one depends on lies in the map's owner: there one history of responses ends and the next
begins.
"""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from tests.model import effects
from tests.model.delta_log import ModelWriter
from tests.model.effects import NO_RESPONSE
from tests.model.programs import Port, Program
from tests.model.seams import MODEL_LAYOUT, PAUSE_S, ModelCluster, ModelTopics, one_column
from tests.model.slot import MIRROR, TRANSACTION_TIMEOUT_MS, TaskFailed, poisoned, release
from tests.model.source import QUIET, TOPIC, MicroBatch, Scenario, source_partition

from shallow_mirror.broker import PathSpeeds
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.cluster.cluster_metadata import SendSpeed
from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.ledger import LedgerOwner, RunIdentity
from shallow_mirror.checkpoints.logs import QuarantinedBatch, undescribed_entries
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError, OutcomeUnknownError, RetriableError
from shallow_mirror.sinks import observe_nothing
from shallow_mirror.sinks.kafka import SINGLE_SLOT, KafkaSink, Releaser, SingleSlot, id_count, transactional_id
from shallow_mirror.sinks.kafka.protocol import TxnPerformer, recover
from shallow_mirror.sinks.kafka.protocol.target_availability import TargetAvailability
from shallow_mirror.sinks.kafka.targets import first_rows
from shallow_mirror.sinks.kafka.writers import KafkaSlotJob
from shallow_mirror.sinks.micro_batches import MicroBatchSink
from shallow_mirror.sinks.slots import SlotTime

NOW_MS = 1_700_000_000_000
START_MS = 12_000
_FAR = PathSpeeds({0: SendSpeed(1e8, 0.08)})
_CLIENT = ClientConfig.from_properties({"bootstrap.servers": "model:9092"})


@dataclass(frozen=True, slots=True)
class Run:
    """One start of the mirror."""

    scenario: Scenario
    number: int

    @property
    def is_retry(self) -> bool:
        return self.scenario.retries and self.number % 2 == 1

    @property
    def identity(self) -> RunIdentity:
        return RunIdentity(run_id=f"run-{self.number}", host="host", pid=self.number, started_at_ms=NOW_MS)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended by itself: `done`, or the error's name."""

    outcome: str
    detail: str = ""


class OwnerState:
    """An `LedgerOwner` between two phases; equal where every field is."""

    def __init__(self, owner: LedgerOwner) -> None:
        self._owner = copy.copy(owner)
        fields = {name: value for name, value in vars(owner).items() if name not in ("_writer", "_now_ms")}
        self._key = tuple(
            tuple(sorted(value.items())) if isinstance(value, dict) else value for _, value in sorted(fields.items())
        )

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OwnerState) and self._key == other._key

    def thaw(self) -> LedgerOwner:
        return copy.copy(self._owner)


class Availability:
    """A `TargetAvailability` between two phases; equal where every field is."""

    def __init__(self, availability: TargetAvailability) -> None:
        self._availability = copy.deepcopy(availability)
        self._key = (
            tuple(sorted(availability.fenced.items())),
            tuple(sorted(availability.blocked)),
            tuple(sorted(availability.pending.items())),
            tuple(sorted(availability.unchecked)),
            tuple(sorted(availability.prepared.items())),
        )

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Availability) and self._key == other._key

    def thaw(self) -> TargetAvailability:
        return copy.deepcopy(self._availability)


@dataclass(frozen=True, slots=True)
class TakeOver:
    run: Run

    def play(self, port: Port) -> Program | Ended:
        try:
            owner = LedgerOwner.take_over(
                "in memory",
                layout=MODEL_LAYOUT,
                name=MIRROR,
                source_cluster_id="S",
                target_cluster_id="T",
                run=self.run.identity,
                now_ms=lambda: NOW_MS,
                slots=id_count(self.run.scenario.slots(self.run.number)),
                writer=ModelWriter(port),  # type: ignore[arg-type]
            )
        except (RetriableError, OutcomeUnknownError):
            return self
        except MirrorError as error:
            return Ended(type(error).__name__, str(error))
        return Recover(self.run, OwnerState(owner))


def _supervised(run: Run, owner: LedgerOwner, phase: Callable[[], Program | Ended]) -> Program | Ended:
    """Level three of the retries: resolve, and start the query again."""
    try:
        return phase()
    except (RetriableError, OutcomeUnknownError):
        return Recover(run, OwnerState(owner))
    except MirrorError as error:
        return Ended(type(error).__name__, str(error))


@dataclass(frozen=True, slots=True)
class Recover:
    run: Run
    state: OwnerState

    def play(self, port: Port) -> Program | Ended:
        owner = self.state.thaw()
        return _supervised(self.run, owner, lambda: self._recover(owner, port))

    def _recover(self, owner: LedgerOwner, port: Port) -> Program:
        target, deadline = ModelCluster(port), _deadline(port)
        owner.check_ownership()
        scenario, availability = self.run.scenario, TargetAvailability()
        recover(owner, _performer(owner, port, availability), mirror=MIRROR, deadline=deadline, guard=None)
        if self.run.is_retry:
            return ReleaseAll(self.run, OwnerState(owner))
        positions = owner.positions()
        starts = {number: 0 for number in map(source_partition, range(len(scenario.logs))) if number not in positions}
        rows = first_rows(ModelTopics(), target, starts, deadline)  # type: ignore[arg-type]
        if rows:
            owner.next_decision()
            owner.decide(rows, highest_slot=-1)
            owner.settle()
        return Query(self.run, OwnerState(owner), Availability(availability))


@dataclass(frozen=True, slots=True)
class ReleaseAll:
    """What `src/shallow_mirror/operations/quarantine_retry.py` does after the take-over. The operator tries again what did not come to its end."""

    run: Run
    state: OwnerState

    def play(self, port: Port) -> Program | Ended:
        owner = self.state.thaw()
        return _supervised(self.run, owner, lambda: self._release(owner, port))

    def _release(self, owner: LedgerOwner, port: Port) -> Program | Ended:
        target = ModelCluster(port)
        slot = SingleSlot(
            owner,
            _performer(owner, port, TargetAvailability()),
            guard=None,
            transactional_id=transactional_id(MIRROR, SINGLE_SLOT),
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            clock=target.clock,
        )
        releaser = Releaser(
            slot, lambda batches, decision, deadline: release(target, batches, decision, self.run.number, deadline)
        )
        try:
            entries = undescribed_entries(OffsetMap(ModelWriter(port)))  # type: ignore[arg-type]
        except OSError as error:
            raise OutcomeUnknownError(str(error)) from error
        kept = [poisoned(entry.segment.source, entry.segment.source_start) for entry in entries if not entry.is_released]
        releaser.release(kept)
        owner.settle()
        return Ended("done")


@dataclass(frozen=True, slots=True)
class Query:
    """Between two micro-batches."""

    run: Run
    state: OwnerState
    availability: Availability

    def play(self, port: Port) -> Program | Ended:
        owner = self.state.thaw()
        return _supervised(self.run, owner, lambda: self._next(owner, self.availability.thaw(), port))

    def _next(self, owner: LedgerOwner, availability: TargetAvailability, port: Port) -> Program | Ended:
        positions = tuple(sorted((source, position.offset) for source, position in owner.positions().items()))
        planned = port.ask(effects.Plan(self.run.number, positions))
        if isinstance(planned, MicroBatch):
            return CopyMicroBatch(self.run, OwnerState(owner), Availability(availability), planned)
        if planned is QUIET or not availability.is_complete:
            _sink(self.run, owner, _performer(owner, port, availability), port).settle_if_idle(0.0)
            if not availability.is_complete:
                ModelCluster(port).sleep(PAUSE_S)
            return Query(self.run, OwnerState(owner), Availability(availability))
        owner.settle()
        return Ended("done")


@dataclass(frozen=True, slots=True)
class CopyMicroBatch:
    run: Run
    state: OwnerState
    availability: Availability
    planned: MicroBatch

    def play(self, port: Port) -> Program | Ended:
        owner = self.state.thaw()
        return _supervised(self.run, owner, lambda: self._copy(owner, self.availability.thaw(), port))

    def _copy(self, owner: LedgerOwner, availability: TargetAvailability, port: Port) -> Program:
        performer = _performer(owner, port, availability)
        sink = _sink(self.run, owner, performer, port, self.planned)
        if self.run.scenario.is_far:
            performer.next_round.begin((), (TOPIC,), (), _deadline(port))
        sink(PlannedFrame(port, self.run.number, self.planned), self.planned.batch_id)
        performer.next_round.finish(_deadline(port))
        port.ask(effects.CommitMicroBatch(self.planned.batch_id))
        return Query(self.run, OwnerState(owner), Availability(availability))


def _deadline(port: Port) -> Deadline:
    return Deadline.after_ms(START_MS, lambda: port.now_s)


def _performer(owner: LedgerOwner, port: Port, availability: TargetAvailability) -> TxnPerformer:
    target = ModelCluster(port)
    return TxnPerformer(
        owner,
        target,  # type: ignore[arg-type]
        transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
        clock=target.clock,
        sleep=target.sleep,
        availability=availability,
    )


def _sink(run: Run, owner: LedgerOwner, performer: TxnPerformer, port: Port, planned: MicroBatch | None = None) -> MicroBatchSink:
    target = ModelCluster(port)

    def report(_report: object) -> None:
        if run.scenario.compacts:
            owner.compact_if_due()

    slots = run.scenario.slots(run.number)
    kafka = KafkaSink(
        job=_job(run),
        slots=slots,
        owner=owner,
        performer=performer,
        targets=ModelTopics(),  # type: ignore[arg-type]
        observer=observe_nothing,
        planned_ranges=lambda: () if planned is None else planned.ranges,
        target_speeds=_FAR if run.scenario.is_far else PathSpeeds(),
        clock=target.clock,
    )
    return MicroBatchSink(
        kafka,
        source=target,  # type: ignore[arg-type]
        slot_time=SlotTime(slots),
        report=report,
        observer=observe_nothing,
        quarantine=ModelQuarantine(port),  # type: ignore[arg-type]
        clock=target.clock,
    )


class ModelQuarantine:
    """Stands in for the table `quarantine`."""

    def __init__(self, port: Port) -> None:
        self._port = port

    def add(self, batches: Sequence[QuarantinedBatch], _decision: int) -> None:
        set_aside = effects.SetAside(tuple((batch.source.partition, batch.source_start) for batch in batches))
        if self._port.ask(set_aside) is NO_RESPONSE:
            raise OutcomeUnknownError("the table quarantine does not answer")


def _job(run: Run) -> KafkaSlotJob:
    """Of its fields only those that the driver itself looks at have a value."""
    fields: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(KafkaSlotJob))
    fields |= {
        "mirror": MIRROR,
        "run_id": run.identity.run_id,
        "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS,
        "commit_interval_ms": 1_000.0,
    }
    return KafkaSlotJob(**fields | {"source": _CLIENT, "target": _CLIENT})


class PlannedFrame:
    """The micro-batch's DataFrame: evaluating it runs the tasks."""

    def __init__(self, port: Port, run: int, planned: MicroBatch) -> None:
        self._port, self._run, self._planned = port, run, planned

    def mapInArrow(self, function: Callable[[Any], Iterator[KafkaSlotJob]], _schema: str) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(toArrow=lambda: self._evaluated(next(function(iter(())))))

    def _evaluated(self, job: KafkaSlotJob) -> pa.Table:
        positions = tuple(sorted(job.positions.items()))
        held = tuple(sorted(job.held))
        prepared = tuple(ahead for _, ahead in sorted(job.prepared.items()))
        results = self._port.ask(
            effects.RunTasks(self._run, job.decision, positions, self._planned.ranges, job.id_numbers, held, prepared)
        )
        return one_column([pickle.dumps(result.error if isinstance(result, TaskFailed) else result) for result in results])
