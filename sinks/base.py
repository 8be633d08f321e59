"""Interface of a sink: the target of slots, and the decisions of the driver.

A task writes where no reader sees it yet, and answers with a `SlotResult`: the executor's half, `SlotTarget` and `SlotWriter`.
The driver makes what all slots wrote true with one decision: its half, `Sink`. Reading, tries of a slot, rounds of a micro-batch
and left out ranges are the same for every sink (`slots/slot_task.py`, `micro_batches/micro_batch.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from shallow_mirror.checkpoints import DecidedSegment, Position
from shallow_mirror.checkpoints.logs import QuarantinedBatch
from shallow_mirror.checkpoints.rows import SegmentBuilder
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError
from shallow_mirror.sinks.slot_values import MicroBatchOutcome, ReadPart, SlotResult, SlotWrite
from shallow_mirror.types import EpochEnd, Segment, SourcePartition

Observer = Callable[[str], None]
"""Called with the name of each point a task passes; tests use it to kill processes at that point."""


def observe_nothing(_point: str) -> None:
    """Do nothing: the observer of every run that is not a test."""


class SlotWriter(Protocol):
    """One try of a slot to write its batches. No reader sees any of it before the driver's decision names it."""

    @property
    def is_due(self) -> bool:
        """Whether the slot hands over its results: nothing more may be written."""

    @property
    def until(self) -> Deadline | None:
        """The time by which the slot hands over its results; None before the first batch."""

    def expect(self, sources: Iterable[SourcePartition]) -> None:
        """Learn which partitions will be read, before it happens: requests that take round trips may begin now."""

    def write(
        self, parts: Sequence[ReadPart], builder_of: Callable[[SourcePartition], SegmentBuilder]
    ) -> Sequence[QuarantinedBatch]:
        """Write the batches of one response that the sink takes, and give their fate to the segments once it is known.

        That may be later: at most `responses_in_flight` of the slot's job are not recorded yet when it returns, and their
        bytes are used until then. Return copies of the quarantined batches of those that were recorded. If `is_due` becomes
        true in the middle, the recorded batches of each partition are the front of its part, and nothing behind them may
        become visible. After an error nothing of this try may be decided. Raises TryRepeatedError.
        """

    def finish(self, builder_of: Callable[[SourcePartition], SegmentBuilder]) -> Sequence[QuarantinedBatch]:
        """Record the batches that were written and are not recorded yet. Returns and raises as `write`."""

    def close(self, segments: Sequence[Segment], *, is_partial: bool) -> SlotWrite:
        """Write the receipt for the decision, last of all. `segments`: of the result of the slot.

        `is_partial`: there is more to read than was written.
        """


class SlotTarget(Protocol):
    """Target of one slot, for as many tries as it takes. Used by one task, on an executor."""

    def begin(self) -> SlotWriter:
        """Return the writer of a further try. Nothing is asked of the target before it writes."""

    def unavailable(self, sources: Iterable[SourcePartition]) -> Mapping[SourcePartition, MirrorError]:
        """Return which of these partitions cannot be written now, and why; those of this try that were returned before, no more.

        Any error but a RetriableError needs an operator. Raises RetriableError if nothing of the target answers.
        """

    def clean_up(self, sources: Iterable[SourcePartition]) -> None:
        """Make sure that nothing of an earlier try to write these partitions can become visible with this one."""

    def abandon(self) -> None:
        """Discard the writes of the last try: the slot ends with an error. Raises nothing that the store or cluster raises."""

    def pause(self, tries: int, deadline: Deadline) -> None:
        """Wait before another try, longer with each."""


class TryRepeatedError(Exception):
    """A try of a slot that cannot be decided. Its target knows why, and the next writer avoids it.

    `end`: the source offset up to which the next try has to read `source`.
    """

    def __init__(self, source: SourcePartition, end: int, reason: str) -> None:
        self.source = source
        self.end = end
        super().__init__(reason)


class RoundRepeatedError(Exception):
    """The round is repeated without unavailable parts of the target.

    Raised in front of the decision only: behind it, it would skip its resolution.
    """


TaskFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
"""The function of `mapInArrow`: one pickled `SlotResult` or `MirrorError` for the rows of a slot."""

RunSlots = Callable[[int], tuple[SlotResult, ...]]
"""Run the tasks of all slots for a decision, and return their results. Raises the error of a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRound:
    """Input of the slots of one round, for any sink."""

    decision: int
    positions: Mapping[SourcePartition, int]
    """Source offsets from which to read."""
    epoch_ends: Mapping[SourcePartition, EpochEnd]
    """Offsets up to which each source partition's last leader epoch was read."""
    time_left_ms: float
    """Of a task, from its own start."""
    commit_interval_ms: float
    left_out: frozenset[SourcePartition]
    """By earlier rounds of the micro-batch."""
    is_one_wave: bool = False
    """The tasks of the last round all ran at once, so that one that takes longer delays no other."""


class Sink(Protocol):
    """The driver's half, as the owner of the table that names every decision."""

    @property
    def round_timeout_ms(self) -> int:
        """Time of a round, from its beginning to the end of its transactions."""

    @property
    def commit_interval_ms(self) -> float:
        """Time after which a slot hands over its results, as configured."""

    @property
    def micro_batch(self) -> int:
        """The number of the newest decision."""

    def positions(self) -> Mapping[SourcePartition, Position]:
        """Return the decided position of each source partition."""

    def check_ownership(self) -> None:
        """Raise FencedError if another run has taken the table over."""

    def settle(self) -> None:
        """Record that all decisions are settled if that is not recorded yet."""

    def recheck_unavailable(self) -> None:
        """Check again the parts of the target that could not be used.

        Raises RetriableError if decided rows were removed: positions have fallen back. Raises OutcomeUnknownError.
        """

    def task_of(self, round_: SlotRound) -> TaskFunction:
        """Return the task of every slot of a round. Raises RetriableError if the target cannot take so many."""

    def run_round(
        self,
        first_rows: Sequence[DecidedSegment],
        run_slots: RunSlots,
        deadline: Deadline,
        on_step: Callable[[str, float], None],
    ) -> MicroBatchOutcome:
        """Run the slots, decide `first_rows` and the rows of the slots in one commit, and make it visible.

        `on_step` hears of each step that was done, by name, and how many milliseconds it took. Raises errors of `run_slots`,
        then nothing is decided, RoundRepeatedError, OutcomeUnknownError, and RetriableError.
        """

    def with_copied(self, rows: Sequence[DecidedSegment], deadline: Deadline) -> tuple[DecidedSegment, ...]:
        """Return rows of offsets that the source no longer has; those that the target holds already are rows of copied ones.

        Raises RetriableError.
        """

    def can_avoid(self, error: MirrorError) -> bool:
        """Return whether the next round avoids the cause of `error`, which is noted then."""

    def abandon(self, deadline: Deadline) -> None:
        """Undo at once the writes of slots that no decision names: the run is about to end.

        Raises nothing if the target does not answer.
        """
