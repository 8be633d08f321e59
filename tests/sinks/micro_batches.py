"""The driver's part of the Kafka sink, without a target: what slots answer is given."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from shallow_mirror.checkpoints.ledger import LedgerOwner
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError
from shallow_mirror.sinks.kafka import KafkaSink
from shallow_mirror.sinks.kafka.writers import KafkaSlotJob
from shallow_mirror.sinks.micro_batches import MicroBatchSink
from shallow_mirror.sinks.slots import SlotTime
from shallow_mirror.sinks.slots.slot_task import SlotTask
from shallow_mirror.types import SlotTxn, TopicPartition


class NothingAhead:
    """Stands in for `NextRound`: nothing comes ahead, so tasks ask for all themselves. `begun`: what was to be asked for."""

    def __init__(self) -> None:
        self.begun: list[tuple[Sequence[str], Sequence[str], Sequence[str]]] = []

    def begin(self, names: Sequence[str], topics: Sequence[str], source_topics: Sequence[str], _deadline: Deadline) -> None:
        self.begun.append((names, topics, source_topics))

    def take_source(self, *_asked: object) -> None:
        return None

    def take_epochs(self, _deadline: Deadline) -> dict[str, SlotTxn]:
        return {}

    def take_target(self, *_asked: object) -> None:
        return None

    def begin_additions(self, partitions: Mapping[SlotTxn, Sequence[TopicPartition]], _deadline: Deadline) -> None:
        assert not partitions, "there is no producer epoch to which the driver could add something"

    def require_added(self, _txns: Iterable[SlotTxn], _deadline: Deadline) -> None:
        """Nothing was added."""


def micro_batch_sink(
    owner: LedgerOwner,
    performer: Any,
    job: KafkaSlotJob,
    *,
    slots: int = 1,
    observer: Callable[[str], None] = lambda _point: None,
    report: Callable[[Any], None] = lambda _report: None,
    **settings: Any,
) -> MicroBatchSink:
    """Return a sink whose `performer` stands in for the target."""
    targets: Any = SimpleNamespace(routes={})
    performer.next_round = NothingAhead()
    kafka = KafkaSink(job=job, slots=slots, owner=owner, performer=performer, targets=targets, observer=observer)
    source: Any = None
    return MicroBatchSink(kafka, source=source, slot_time=SlotTime(slots), report=report, observer=observer, **settings)


def planned_frame(
    rounds: Iterator[Sequence[Any]], jobs: list[KafkaSlotJob] | None = None, run: Callable[[], None] = lambda: None
) -> Any:
    """Return a micro-batch whose slots answer as `rounds` says; their jobs are added to `jobs`."""

    def evaluate() -> pa.Table:
        run()
        results: Sequence[MirrorError | object] = next(rounds)
        return pa.table({"body": [pickle.dumps(result) for result in results]})

    def map_in_arrow(function: Any, _schema: str) -> Any:
        task = function.__closure__[0].cell_contents
        assert isinstance(task, SlotTask)
        if jobs is not None:
            assert isinstance(task.job, KafkaSlotJob)
            jobs.append(task.job)
        return SimpleNamespace(toArrow=evaluate)

    return SimpleNamespace(mapInArrow=map_in_arrow)
