"""Driver and executors: the task of one slot of a DataFrame sink, and its result, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.sinks.base import Observer, observe_nothing
from shallow_mirror.sinks.kafka.targets.txn_ids import transactional_id
from shallow_mirror.sinks.records.micro_batch_identity import SlotContent
from shallow_mirror.types import Segment, SlotTxn, TargetPartition, TopicPartition
from shallow_mirror.wire.columns import Compression


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordJob:
    """The job of every slot. `decision` and what follows it are of one round."""

    name: str
    map_id: str
    run_id: str
    target: ClientConfig
    topic: str | None
    """None: the column `topic` names it."""
    compression: Compression
    batch_bytes: int
    """The most bytes of records in a batch, before they are compressed."""
    window_bytes: int
    """Rows that are encoded at once; a task holds two windows and their batches."""
    in_flight_requests: int
    in_flight_bytes: int
    transaction_timeout_ms: int
    target_cluster_id: str = ""
    """As the driver has found it; empty: of whichever answers."""
    bytes_per_second: float | None = None
    """Of this slot, by its share of all that run at once. None: no limit."""
    observer: Observer = observe_nothing
    decision: int = 0
    micro_batch: Mapping[str, str | int] = field(default_factory=dict)
    """As the receipts name it."""
    time_left_ms: float = 0.0
    """When the task starts: clocks of different machines are never compared."""
    id_numbers: tuple[int, ...] = ()
    """The number in the transactional id of each slot."""
    held: Mapping[TopicPartition, str] = field(default_factory=dict)
    """Target partitions that no transaction may include now, and why."""
    target_ends: Mapping[TargetPartition, int] = field(default_factory=dict)
    """Ends of what earlier micro-batches wrote."""
    committed: Mapping[int, SlotContent] = field(default_factory=dict)
    """Slots of this micro-batch whose records were committed before: they are compared, and not written."""

    def transactional_id_of(self, slot: int) -> str:
        return transactional_id(self.name, self.id_numbers[slot])


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSlotResult:
    """Result of a task. `segments`: one for each target partition, within which records of other slots may lie.

    `txn`: None if the slot had no records, or was only compared.
    """

    slot: int
    content: SlotContent
    txn: SlotTxn | None = None
    segments: tuple[Segment, ...] = ()
    stamped_topics: tuple[str, ...] = ()
    """Topics whose broker gave records its own time."""
    duration_ms: float = 0.0
