"""Driver and executors: job of one slot of a Kafka sink, as values."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shallow_mirror.broker import KnownCluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.checkpoints import Position
from shallow_mirror.sinks.base import Observer
from shallow_mirror.sinks.kafka.preserved.log_guard import GuardTimes
from shallow_mirror.sinks.kafka.targets.txn_ids import transactional_id
from shallow_mirror.sinks.slot_values import RoutedTopic
from shallow_mirror.sinks.slots.slot_job import SlotJob
from shallow_mirror.types import SlotTxn, SourcePartition, TopicPartition

if TYPE_CHECKING:
    from shallow_mirror.config import MirrorConfig, RestoreConfig  # not at run time: workers need none of pydantic

NEAR_RESPONSES, FAR_RESPONSES = 1, 2
"""In flight while the next one is read. If the target is far away, a response takes a round trip longer to be acknowledged:
with a single one the path would be empty while its buffer is filled again."""


@dataclass(frozen=True, slots=True)
class PreparedTxn:
    """A producer epoch that was taken ahead, for one transaction.

    `adding`: partitions that the driver is adding to it, with the group of its receipt. It has sent the requests, and makes sure
    of them in front of its decision.
    """

    txn: SlotTxn
    adding: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSlotJob(SlotJob):
    """A slot whose sink is a Kafka transaction."""

    mirror: str
    map_id: str
    run_id: str
    target: ClientConfig
    target_ends: Mapping[TopicPartition, int]
    """Ends of the map on the target."""
    in_flight_requests: int
    in_flight_bytes: int
    transaction_timeout_ms: int
    id_numbers: tuple[int, ...] = ()
    """The number in the transactional id of each slot. Empty: the slot's own."""
    held: Mapping[TopicPartition, str] = field(default_factory=dict)
    """Target partitions that no transaction may include now, and why."""
    shared_producers: Mapping[SourcePartition, int] = field(default_factory=dict)
    """The producer id of each partition with preserved offsets."""
    guard_times: GuardTimes | None = None
    """As `preserved/log_guard.py` has it. None if no topic is preserved."""
    quiet_for_ms: float = 0.0
    """When the task starts, as in `preserved/log_guard.py`."""
    origins: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Of target partitions, if it is not 0, as in `preserved/log_guard.py`."""
    unfit: Mapping[str, str] = field(default_factory=dict)
    """Why nothing may be written to the target topic of a preserved topic, by source topic."""
    prepared: Mapping[str, PreparedTxn] = field(default_factory=dict)
    """Transactions for the first attempt of a slot, by transactional id."""
    known_target: KnownCluster | None = None
    """The driver's knowledge of the target of a moment ago. None: the task asks itself."""
    responses_in_flight: int = NEAR_RESPONSES

    @classmethod
    def template(cls, config: MirrorConfig | RestoreConfig, *, map_id: str, run_id: str, observer: Observer) -> KafkaSlotJob:
        """Return a job without the values of one micro-batch: decision, routes, positions, ends, time."""
        return cls(
            mirror=config.mirror,
            map_id=map_id,
            run_id=run_id,
            decision=0,
            source=config.source_client,
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

    def target_of(self, source: SourcePartition) -> TopicPartition:
        return TopicPartition(self.routes[source.topic].target_topic, source.partition)

    @property
    def quarantines(self) -> bool:
        return self.quarantine is not None

    def without_coalescing(self) -> KafkaSlotJob:
        routes = {
            topic: replace(route, limits=replace(route.limits, coalesce_bytes=None, coalesces_where_cheaper=False))
            for topic, route in self.routes.items()
        }
        return replace(self, routes=routes)


def positions_in(routes: Mapping[str, RoutedTopic], positions: Mapping[SourcePartition, Position]) -> list[Position]:
    """Return the positions in target topics as they are now: former ones of the same names were deleted."""
    return [
        position
        for source, position in positions.items()
        if source.topic not in routes or routes[source.topic].target_topic_id == position.target.topic_id
    ]


def target_ends_of(positions: Collection[Position]) -> dict[TopicPartition, int]:
    """Return the end of the map's records in each target partition."""
    partitions = [position.target.topic_partition for position in positions]
    ends = dict(zip(partitions, (position.target_end for position in positions), strict=True))
    if len(ends) < len(partitions):  # a recreated source topic continues behind the records of the one before it
        for partition, position in zip(partitions, positions, strict=True):
            ends[partition] = max(position.target_end, ends[partition])
    return ends
