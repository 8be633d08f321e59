"""Driver and executors: input and results of a slot, as values: batches as read and as admitted, routes, results."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shallow_mirror.archive_format import StoredBatches
from shallow_mirror.broker import PathSpeeds
from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.logs import QuarantinedBatch
from shallow_mirror.errors import MirrorError, RetriableError
from shallow_mirror.types import BatchLimits, PlannedRange, Segment, SlotTxn, SourcePartition, TargetPartition, TopicPartition
from shallow_mirror.wire.batches import Admission, BatchIndex
from shallow_mirror.wire.records import Outgoing


class Side(enum.StrEnum):
    """The cluster on which a partition is broken."""

    SOURCE = "source"
    TARGET = "target"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedRange:
    """A planned range that ends at `reached` instead of its planned end. `is_definite`: a retry will not help."""

    source: SourcePartition
    reached: int
    side: Side
    error_name: str
    reason: str
    is_definite: bool = False

    @classmethod
    def of(cls, source: SourcePartition, reached: int, side: Side, error: MirrorError) -> UnfinishedRange:
        """Make it from the error of the partition, or of its whole topic."""
        is_retriable = isinstance(error, RetriableError)
        name = error.error_name if isinstance(error, RetriableError) else type(error).__name__
        reason = error.detail if isinstance(error, RetriableError) else str(error)
        return cls(source=source, reached=reached, side=side, error_name=name, reason=reason, is_definite=not is_retriable)


@dataclass(frozen=True, slots=True)
class EarlyEnd:
    """A slot that write.commit_interval ended before its ranges were done: bytes since its first batch, and the time for them.

    `sending_s`: of `seconds`, how long something was on its way to the target. The rest is waiting for the source.
    """

    sent_bytes: int
    seconds: float
    sending_s: float


@dataclass(frozen=True, slots=True)
class SteadyCopying:
    """How much of `fetched_bytes` came behind the first response of the source, and how long it took from that response on.

    Without steps that do not depend on the size of a plan: connections, requests that wait for a round trip each, first
    responses.
    """

    size_bytes: int
    seconds: float

    @classmethod
    def of_slots(cls, results: Iterable[SlotResult]) -> SteadyCopying | None:
        """Return that of slots that run at the same time; None if none of them had a second response."""
        steady = [result.steady for result in results if result.steady is not None]
        return cls(sum(slot.size_bytes for slot in steady), max(slot.seconds for slot in steady)) if steady else None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotWrite:
    """Writes of one try of a slot, to be named by the decision."""

    txn: SlotTxn | None
    """None if it wrote nothing, and in an archive."""
    fetched_bytes: int
    stamped_topics: tuple[str, ...] = ()
    """Target topics whose broker gave batches its own time."""
    early_end: EarlyEnd | None = None
    """If the commit interval ended it."""
    stored: Mapping[SourcePartition, StoredBatches] = field(default_factory=dict, hash=False)
    """Places of the batches of each partition in an object; empty if the sink is no archive."""
    shared_producers: Mapping[SourcePartition, int] = field(default_factory=dict, hash=False)
    """Of partitions with preserved offsets, the producer id that wrote; they are part of no transaction."""
    has_unanswered: bool = False
    """The first batch of a log, of an earlier try, may still be on its way."""
    stable_ends: Mapping[TopicPartition, int] = field(default_factory=dict, hash=False)
    """Last stable offsets of its target partitions after everything was sent; empty if not known, or no longer new."""
    target_speeds: PathSpeeds = field(default_factory=PathSpeeds, hash=False, compare=False)
    """Of the paths to the brokers of the target, as the task's process has measured them."""


@dataclass(frozen=True, slots=True)
class SlotResult:
    """Result of a task: step 5. Fields that are not explained are as in `SlotWrite`."""

    slot: int
    txn: SlotTxn | None
    segments: tuple[Segment, ...]
    fetched_bytes: int = 0
    unknown: tuple[PlannedRange, ...] = ()
    """Ranges whose partition the driver had no position for: they were not read. The slot needs another round."""
    is_partial: bool = False
    """The slot stopped at a batch boundary before its ranges were done, and needs another round."""
    quarantined: tuple[QuarantinedBatch, ...] = ()
    """The batches of its segments of that kind."""
    duration_ms: float = 0.0
    """Of the task itself, without Spark's time to begin and to end it."""
    retried: tuple[RetriableError, ...] = ()
    """Why it started again."""
    unfinished: tuple[UnfinishedRange, ...] = ()
    """Planned ranges that it left out, wholly or from some offset on."""
    stamped_topics: tuple[str, ...] = ()
    early_end: EarlyEnd | None = None
    """If the commit interval is why it is partial."""
    stored: Mapping[SourcePartition, StoredBatches] = field(default_factory=dict, hash=False)
    stable_ends: Mapping[TopicPartition, int] = field(default_factory=dict, hash=False)
    source_speeds: PathSpeeds = field(default_factory=PathSpeeds, hash=False, compare=False)
    """Of the paths to the brokers of the source."""
    target_speeds: PathSpeeds = field(default_factory=PathSpeeds, hash=False, compare=False)
    shared_producers: Mapping[SourcePartition, int] = field(default_factory=dict, hash=False)
    has_unanswered: bool = False
    """An earlier try or task of the slot may have requests on their way that count on a log without a producer."""
    steady: SteadyCopying | None = None
    """None if there was one response at the most."""

    def rows_of_map(self) -> tuple[DecidedSegment, ...]:
        """Return the slot's rows of the offset map."""
        return tuple(
            DecidedSegment(segment, None, shared_producer_id=self.shared_producers[segment.source])
            if segment.source in self.shared_producers
            else DecidedSegment(segment, self.txn)
            for segment in self.segments
        )


@dataclass(frozen=True, slots=True)
class MicroBatchOutcome:
    """`not_committed` lists transactions whose rows were removed: their ranges must be read again."""

    rows: tuple[DecidedSegment, ...] = ()
    not_committed: tuple[SlotTxn, ...] = ()
    slots: tuple[SlotResult, ...] = field(default=())


def require_committed(removed: Sequence[SlotTxn]) -> None:
    """Raise RetriableError if rows of a decision were removed: only a new query plans their ranges again."""
    if removed:
        raise RetriableError(
            "SLOT_NOT_COMMITTED", f"{len(removed)} slot transactions were not committed; their ranges are read again"
        )


@dataclass(frozen=True, slots=True)
class ReadPart:
    """Whole batches of one source partition."""

    source: SourcePartition
    range_end: int
    """With `is_cut`, records from it on are not wanted; else a batch that straddles it is wanted whole."""
    index: BatchIndex
    records: memoryview
    """Writable, and valid while as many further responses are read as the job has in flight."""
    aborted: tuple[tuple[int, int], ...]
    start: int = 0
    """Of batches that begin below it the records below are not wanted; a position above it counts anyway."""
    is_cut: bool = False
    fills_log: bool = False
    """Without a batch as well, a log with preserved offsets is filled up to the position."""

    def batch(self, i: int) -> memoryview:
        start = int(self.index.pos[i])
        return self.records[start : start + int(self.index.size_bytes[i])]


@dataclass(frozen=True, slots=True)
class AdmittedPart:
    """One partition's part of a response: verdicts of its batches, those to send, and copies of quarantined ones."""

    part: ReadPart
    admission: Admission
    outgoing: Outgoing
    quarantined: tuple[QuarantinedBatch, ...] = ()

    def done_with(self, sent: int) -> int:
        """Return how many fetched batches are done with once the first `sent` batches of `outgoing` are on the target.

        All in front of the first one that has yet to be sent: dropped and quarantined ones need no sending. `sent` has to be
        between two source batches.
        """
        return int(self.outgoing.firsts[sent]) if sent < len(self.outgoing) else len(self.part.index)


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedTopic:
    """Target of the batches of one source topic, and the limits of its target topic.

    `is_preserved`: every record keeps its offset (`topics.offsets`). `is_compacted`: log compaction removes records there.
    """

    target_topic: str
    target_topic_id: str
    limits: BatchLimits
    is_preserved: bool = False
    is_compacted: bool = False

    def target_of(self, source: SourcePartition) -> TargetPartition:
        return TargetPartition(self.target_topic, self.target_topic_id, source.partition)
