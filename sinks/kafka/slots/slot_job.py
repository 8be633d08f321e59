"""Driver and executors: what the task of one slot is to do, as values. `slot_task.py` executes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.checkpoints.positions import Position
from shallow_mirror.sinks.base import Observer, observe_nothing
from shallow_mirror.sinks.kafka.targets.transactional_ids import transactional_id
from shallow_mirror.sinks.routed_topic import RoutedTopic
from shallow_mirror.types import EpochEnd, IsolationLevel, QuarantineLimits, SourcePartition, TopicPartition

if TYPE_CHECKING:
    from shallow_mirror.config import MirrorConfig  # not at run time: workers need none of pydantic


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotJob:
    """Everything a task needs, carried in the closure of one micro-batch.

    `positions` are source offsets from the offset map, `epoch_ends` up to where it knows a leader epoch of the source,
    `target_ends` the ends of what it knows on the target.
    `time_left_ms` is what remains of the micro-batch's deadline when the task starts (clocks of different machines are
    never compared). `max_segments` bounds the rows a slot may return: it stops at a batch boundary and the rest is read in
    another round. So it does when `commit_interval_ms` have passed since its first batch. `quarantine` bounds the batches that
    are set aside; None: what cannot be copied is an error.

    `leaves_out`: partitions that cannot be read or written are left out, so that they do not hold up the others; `isolates`:
    also those that an operator has to fix, except what the driver records as expired (`continues_after_data_loss`).
    `left_out`: those that an earlier round left out.

    `id_numbers`: the number in the transactional id of each slot; empty for the slot's own. `held`: target partitions that no
    transaction may include now, and why.
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
    commit_interval_ms: float
    transaction_timeout_ms: int
    time_left_ms: float
    quarantine: QuarantineLimits | None = None
    leaves_out: bool = False
    isolates: bool = False
    continues_after_data_loss: bool = False
    left_out: frozenset[SourcePartition] = frozenset()
    observer: Observer = observe_nothing
    id_numbers: tuple[int, ...] = ()
    held: Mapping[TopicPartition, str] = field(default_factory=dict)

    @classmethod
    def of_mirror(cls, config: MirrorConfig, *, map_id: str, run_id: str, observer: Observer) -> SlotJob:
        """Return a job without what belongs to one micro-batch: decision, routes, positions, ends, time."""
        return cls(
            mirror=config.mirror,
            map_id=map_id,
            run_id=run_id,
            decision=0,
            source=config.source.client,
            target=config.target.client,
            routes={},
            positions={},
            epoch_ends={},
            target_ends={},
            isolation=config.read.isolation_level,
            fetch_bytes=config.read.fetch_bytes,
            in_flight_requests=config.write.in_flight_requests,
            in_flight_bytes=config.write.in_flight_bytes,
            max_segments=config.read.max_segments,
            commit_interval_ms=config.write.commit_interval_s * 1000,
            transaction_timeout_ms=config.write.transaction_timeout_ms,
            time_left_ms=0.0,
            quarantine=config.write.quarantine_limits,
            continues_after_data_loss=config.read.continues_after_data_loss,
            observer=observer,
        )

    def transactional_id_of(self, slot: int) -> str:
        return transactional_id(self.mirror, self.id_numbers[slot] if self.id_numbers else slot)

    @property
    def quarantines(self) -> bool:
        return self.quarantine is not None

    def without_coalescing(self) -> SlotJob:
        routes = {
            topic: replace(route, limits=replace(route.limits, coalesce_bytes=None)) for topic, route in self.routes.items()
        }
        return replace(self, routes=routes)


def target_ends_of(positions: Collection[Position]) -> dict[TopicPartition, int]:
    """Return up to where the map has records in each target partition."""
    partitions = [position.target.topic_partition for position in positions]
    ends = dict(zip(partitions, (position.target_end for position in positions), strict=True))
    if len(ends) < len(partitions):  # a source topic that was created again continues behind the records of the one before it
        for partition, position in zip(partitions, positions, strict=True):
            ends[partition] = max(position.target_end, ends[partition])
    return ends
