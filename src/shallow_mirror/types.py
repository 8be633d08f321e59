"""Values that travel between the layers. Runs on driver and executors; imports nothing of this package.

Names of partitions are tuples, which hash and compare fast: they are keys of every mapping.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

EARLIEST_TIMESTAMP, LATEST_TIMESTAMP = -2, -1
"""Timestamps of ListOffsets that ask for the log start and the log end."""


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class SourcePartition(NamedTuple):
    """A source topic-partition in one incarnation: a recreated topic has another `topic_id` (Kafka's base64 form)."""

    topic: str
    topic_id: str
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class TargetPartition(NamedTuple):
    topic: str
    topic_id: str
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class EpochEnd(NamedTuple):
    """A leader epoch of a log, and the offset behind its last record; -1, -1: the log never had such an epoch."""

    leader_epoch: int
    end: int


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Half-open [start, end) of Kafka offsets."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if self.start < 0 or self.end < self.start:
            raise ValueError(f"not an offset range: [{self.start}, {self.end})")


@dataclass(frozen=True, slots=True, order=True)
class SlotTxn:
    """Names one Kafka transaction of one slot: the triple every row of the slot carries."""

    transactional_id: str
    producer_id: int
    producer_epoch: int

    def __str__(self) -> str:
        return f"{self.transactional_id} (producer id {self.producer_id}, epoch {self.producer_epoch})"


class IsolationLevel(enum.Enum):
    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"


class LogAppendTimePolicy(enum.Enum):
    """How batches with append times of the source broker are copied: `read.log_append_time`."""

    KEEP = "keep"
    PRODUCER = "producer"


UNKNOWN_BYTES_PER_OFFSET = 1024.0
"""What a plan assumes for a partition of which nothing has been read yet."""


class SegmentKind(enum.StrEnum):
    DATA = "data"
    COMMIT = "commit"
    ABORT = "abort"
    ABORTED = "aborted"
    GAP = "gap"
    EXPIRED = "expired"
    QUARANTINED = "quarantined"
    RELEASED = "released"
    """Records of a quarantined batch that were copied after all. Lies within that batch's row, which stays."""


COPIED_KINDS = (SegmentKind.DATA, SegmentKind.RELEASED)
"""Kinds with a range on the target, where target - source is constant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One row of the offset map without the columns of its decision. Source offsets [source_start, source_end)."""

    source: SourcePartition
    source_start: int
    source_end: int
    kind: SegmentKind
    target: TargetPartition
    target_start: int | None = None
    """None except for COPIED_KINDS, as `target_end`."""
    target_end: int | None = None
    record_count: int = 0
    """Of COPIED_KINDS, of aborted and of quarantined batches; 0 for other kinds."""
    batch_count: int = 0
    rebuilt_batch_count: int = 0
    size_bytes: int = 0
    max_timestamp_ms: int | None = None
    source_leader_epoch: int | None = None
    source_producer_id: int | None = None
    """This and the next two are those of the *source*, and None except for markers and aborted data."""
    source_producer_epoch: int | None = None
    coordinator_epoch: int | None = None
    lineage: int = 0
    """Of a row of an archive, which log of the partition it is of (`checkpoints/rows/lineages.py`); 0 in an offset map."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRange:
    """A row of a micro-batch's plan: the range of one source topic-partition that slot `slot` copies.

    The task reads [position, end), whatever `start` says. `bytes_per_offset` is an estimate that keeps the last fetch
    of the range from reading far beyond `end`.
    """

    slot: int
    source: SourcePartition
    start: int
    end: int
    bytes_per_offset: float


AUTO_COALESCE_BYTES = 1 << 20
"""The limit of `write.coalesce_bytes: auto`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """The inputs of the verdict about a batch besides the batch: the target topic's settings and the mirror's policies.

    `coalesce_bytes`: small neighbours are coalesced up to so many bytes of records. None: they are not.
    `coalesces_where_cheaper`: only if sizes and codecs of a response show that this saves more than it takes.
    """

    max_message_bytes: int
    isolation_level: IsolationLevel
    log_append_time: LogAppendTimePolicy
    coalesce_bytes: int | None = None
    coalesces_where_cheaper: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineLimits:
    """Bounds of one micro-batch: `write.max_quarantined_batches` and `write.max_quarantined_bytes`."""

    batches: int
    size_bytes: int
