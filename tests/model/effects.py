"""What the code under test asks of the world: one value per request that leaves its process."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shallow_mirror.types import PlannedRange, SlotTxn, SourcePartition, TopicPartition

if TYPE_CHECKING:
    from tests.model.delta_log import Row, Snapshot

    from shallow_mirror.checkpoints.tables import Condition
    from shallow_mirror.sinks.kafka.writers.kafka_slot_job import PreparedTxn

RECEIPTS = TopicPartition("~receipts", 0)
"""The partition of the receipts: a transaction ends there like in a partition, after all others by name."""


class NoResponse(enum.Enum):
    """The sender hears nothing: the request may have been applied, may be applied later, or never."""

    NO_RESPONSE = "no answer"


NO_RESPONSE = NoResponse.NO_RESPONSE


@dataclass(frozen=True, slots=True)
class Look:
    """Open the Delta table. Response: a `Snapshot`, or None where there is no table."""


@dataclass(frozen=True, slots=True)
class Create:
    properties: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """`removed` are the conditions of a delete: rows that match one of them. `version` None: a compaction. Response: whether it was committed."""

    base: Snapshot
    version: int | None
    metadata: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...] = ()
    removed: tuple[Condition, ...] | None = None


@dataclass(frozen=True, slots=True)
class InitProducerId:
    """Response: (error code, producer id, producer epoch)."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class AddToTxn:
    """AddPartitionsToTxn, or AddOffsetsToTxn where the partition is `RECEIPTS`. Response: an error code."""

    txn: SlotTxn
    topic_partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Produce:
    """One batch of one record; `record` is its source offset. Response: (error code, target offset).

    `is_poison`: the target refuses it.
    """

    txn: SlotTxn
    topic_partition: TopicPartition
    sequence: int
    record: int
    is_poison: bool = False


@dataclass(frozen=True, slots=True)
class WriteReceipt:
    """TxnOffsetCommit. Response: an error code."""

    txn: SlotTxn
    topic_partition: TopicPartition
    metadata: str


@dataclass(frozen=True, slots=True)
class EndTxn:
    """Response: an error code."""

    txn: SlotTxn
    is_commit: bool


@dataclass(frozen=True, slots=True)
class ReadReceipt:
    """OffsetFetch with require_stable. Response: (error code, committed metadata or None)."""

    group: str
    topic_partition: TopicPartition


@dataclass(frozen=True, slots=True)
class DescribeTxn:
    """DescribeTransactions. Response: (state, producer id, producer epoch), or None where the id is not known."""

    transactional_id: str


@dataclass(frozen=True, slots=True)
class ListOffsets:
    """Response: the last stable offsets or the log ends; None for a partition without a leader."""

    topic_partitions: tuple[TopicPartition, ...]
    is_committed: bool


@dataclass(frozen=True, slots=True)
class DescribeProducers:
    """Response: per partition (producer id, start of its open transaction) of those that have one; None without a leader."""

    topic_partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """Response: (producer id, producer epoch, is aborted) of the batch at this offset; None where the log has none, NO_RESPONSE
    without a leader."""

    topic_partition: TopicPartition
    offset: int


@dataclass(frozen=True, slots=True)
class Wait:
    """A pause between two tries. No answer; the world goes on meanwhile."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Spark's next micro-batch. Response: a `MicroBatch`, `QUIET`, or None where everything is read."""

    run: int
    positions: tuple[tuple[SourcePartition, int], ...]


@dataclass(frozen=True, slots=True)
class CommitMicroBatch:
    """Step 8: Spark's checkpoint says that this micro-batch is done. No answer."""

    batch_id: int


@dataclass(frozen=True, slots=True)
class SetAside:
    """Rows of the table `quarantine`, of (partition, source offset). No answer but that they are written."""

    batches: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class RunTasks:
    """Steps 3-5 of every slot. Response: a `SlotResult` or a `TaskFailed` of each."""

    run: int
    decision: int
    positions: tuple[tuple[SourcePartition, int], ...]
    ranges: tuple[PlannedRange, ...]
    id_numbers: tuple[int, ...] = ()
    held: tuple[TopicPartition, ...] = ()
    prepared: tuple[PreparedTxn, ...] = ()


Effect = (
    Look
    | Create
    | Commit
    | InitProducerId
    | AddToTxn
    | Produce
    | WriteReceipt
    | EndTxn
    | ReadReceipt
    | DescribeTxn
    | ListOffsets
    | DescribeProducers
    | Fetch
    | Wait
    | Plan
    | CommitMicroBatch
    | SetAside
    | RunTasks
)
