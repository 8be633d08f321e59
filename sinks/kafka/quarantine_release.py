"""Driver: copies batches from the quarantine to the target: the protocol of a micro-batch with one slot, and rows beside theirs.

Copied batches get `released` rows; the `quarantined` one stays. So the removal of a transaction's rows gives back what was
before, every offset still has one row of another kind, and positions move nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shallow_mirror.checkpoints.logs import BatchKey, QuarantinedBatch
from shallow_mirror.deadline import Deadline
from shallow_mirror.plurals import counted
from shallow_mirror.sinks.kafka.single_slot import SingleSlot
from shallow_mirror.sinks.slot_values import SlotResult
from shallow_mirror.types import Segment, SegmentKind

_EXPORT = "`shallow-mirror quarantine export CONF DIR` writes the batches to files"

FillSlot = Callable[[Sequence[QuarantinedBatch], int, Deadline], SlotResult]
"""Do steps 3 to 5 of docs/design/exactly-once.md for these batches, of one source topic, and a decision, in the single slot."""


@dataclass(slots=True)
class ReleaseResult:
    """Result of a release: `batch_count` batches went to `segments`. `refused`: those that stay, with the reason of this time."""

    batch_count: int = 0
    segments: list[Segment] = field(default_factory=list)
    refused: list[QuarantinedBatch] = field(default_factory=list)
    moved_counts: Mapping[str, int] = field(default_factory=dict)
    """How many batches stay because a migration has handed over their source topic, by topic."""
    gone_counts: Mapping[str, int] = field(default_factory=dict)
    """How many batches stay because their target topic is gone, by that topic."""
    gone: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        return not self.refused and not self.moved_counts and not self.gone_counts

    def sentences(self) -> list[str]:
        records = sum(segment.record_count for segment in self.segments)
        lines = [f"released {counted(self.batch_count, 'batch')} with {counted(records, 'record')}"]
        if self.segments:
            lines[0] += ": they are at the ends of their target partitions, behind records that were copied since"
        lines += [f"still in quarantine: {batch}" for batch in self.refused]
        lines += [
            f"still in quarantine: {counted(count, 'batch')}: target topic {topic} was deleted, or deleted and created again, "
            f"since they were quarantined. {_EXPORT}"
            for topic, count in self.gone_counts.items()
        ]
        return lines + [
            f"still in quarantine: {counted(count, 'batch')} of {topic}: a migration has handed it over, so nothing is written "
            f"to its copy. {_EXPORT}"
            for topic, count in self.moved_counts.items()
        ]


class Releaser:
    """Release of quarantined batches by the owner of the map, after its recovery."""

    def __init__(self, slot: SingleSlot, fill: FillSlot) -> None:
        self._slot, self._fill = slot, fill
        self.released = ReleaseResult()

    def release(self, batches: Sequence[QuarantinedBatch]) -> None:
        """Release all that the target takes; `released` has the result, also after an error. Raises errors of a micro-batch."""
        waiting = list(batches)
        while waiting:
            done = self._round(waiting)
            assert done, "a round answers for the first of its batches at least"
            waiting = [batch for batch in waiting if batch.key not in done]

    def _round(self, batches: Sequence[QuarantinedBatch]) -> set[BatchKey]:
        """Run one round. Return which batches were released, or refused again."""
        filled: list[SlotResult] = []

        def fill(decision: int, deadline: Deadline) -> SlotResult:
            filled.append(self._fill(batches, decision, deadline))
            return _as_released(filled[0], batches)

        outcome = self._slot.round(fill)
        result = filled[0]
        reached = {segment.source: segment.source_end for segment in result.segments}
        # Batches that were copied or refused; only those up to the end of a slot that stopped early.
        done = {batch.key for batch in batches if not result.is_partial or batch.source_end <= reached.get(batch.source, 0)}
        self.released.refused += result.quarantined
        self.released.batch_count += len(done) - len(result.quarantined)
        self.released.segments += [row.segment for row in outcome.rows]
        return done


def _as_released(result: SlotResult, batches: Sequence[QuarantinedBatch]) -> SlotResult:
    """Return the result with rows of kind `released`: gaps and batches that were refused again keep their quarantined row."""
    copied = [segment for segment in result.segments if segment.kind is SegmentKind.DATA]
    rows = tuple(row for batch in batches for row in _rows_of(batch, copied))
    return SlotResult(result.slot, result.txn, rows, result.fetched_bytes)


def _rows_of(batch: QuarantinedBatch, copied: Sequence[Segment]) -> Iterator[Segment]:
    """Yield the copied rows of this batch, cut out of rows that it shares with neighbours; the first one counts the batch."""
    is_first = True
    for segment in copied:
        start, end = max(segment.source_start, batch.source_start), min(segment.source_end, batch.source_end)
        if segment.source != batch.source or start >= end:
            continue
        assert segment.target_start is not None
        yield replace(
            segment,
            kind=SegmentKind.RELEASED,
            source_start=start,
            source_end=end,
            target_start=segment.target_start + start - segment.source_start,
            target_end=segment.target_start + end - segment.source_start,
            record_count=end - start,
            batch_count=int(is_first),
            rebuilt_batch_count=int(is_first and segment.rebuilt_batch_count > 0),
            size_bytes=len(batch.batch) if is_first else 0,
        )
        is_first = False
