"""Driver: the archive sink: slots write objects, and one commit to `archive_segments` decides what is in the archive."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from shallow_mirror.checkpoints import DecidedSegment, Position
from shallow_mirror.checkpoints.ledger import LedgerOwner
from shallow_mirror.config.archive_config import ROUND_TIMEOUT_MS
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError
from shallow_mirror.sinks.archive.archive_slot_job import ArchiveSlotJob, archived_topic
from shallow_mirror.sinks.archive.archive_slot_target import open_archive_target
from shallow_mirror.sinks.archive.txn_outcomes import TxnOutcomes
from shallow_mirror.sinks.base import Observer, RunSlots, SlotRound, TaskFunction
from shallow_mirror.sinks.slot_values import MicroBatchOutcome
from shallow_mirror.sinks.slots.slot_job import CompactDict
from shallow_mirror.sinks.slots.slot_task import SlotTask
from shallow_mirror.types import EpochEnd, SegmentKind, SourcePartition


class ArchiveSink:
    """The archive of a query (a `Sink`), for the owner of its table.

    A decision that was committed needs no second step: its objects were complete before it. It is settled by the next one, or
    when the archive is idle.
    """

    def __init__(
        self,
        *,
        job: ArchiveSlotJob,
        owner: LedgerOwner,
        observer: Observer,
        read_outcomes: Callable[[], TxnOutcomes],
        expire: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`job` is the template of every slot's, without the values of one round. `expire` is called between micro-batches.

        `read_outcomes` is called once, in front of the first decision: it reads the table.
        """
        self._job = job
        self._owner = owner
        self._observer = observer
        self._read_outcomes = read_outcomes
        self._outcomes: TxnOutcomes | None = None
        self._expire = expire
        self._clock = clock

    @property
    def round_timeout_ms(self) -> int:
        return ROUND_TIMEOUT_MS

    @property
    def commit_interval_ms(self) -> float:
        return self._job.commit_interval_ms

    @property
    def micro_batch(self) -> int:
        return self._owner.micro_batch

    def positions(self) -> Mapping[SourcePartition, Position]:
        return self._owner.positions()

    def check_ownership(self) -> None:
        self._owner.check_ownership()

    def settle(self) -> None:
        self._owner.settle()

    def recheck_unavailable(self) -> None:
        """Delete expired objects. A store that cannot be used now is tried again with every round."""
        self._expire()

    def task_of(self, round_: SlotRound) -> TaskFunction:
        lineages = {source: position.lineage for source, position in self._owner.positions().items() if position.lineage}
        job = replace(
            self._job,
            decision=round_.decision,
            positions=CompactDict(round_.positions, SourcePartition, int),
            epoch_ends=CompactDict(round_.epoch_ends, SourcePartition, EpochEnd),
            routes={topic: archived_topic(topic) for topic in {source.topic for source in round_.positions}},
            time_left_ms=round_.time_left_ms,
            commit_interval_ms=round_.commit_interval_ms,
            left_out=round_.left_out,
            lineages=CompactDict(lineages, SourcePartition, int),
        )
        return SlotTask(job, functools.partial(open_archive_target, job))

    def run_round(
        self,
        first_rows: Sequence[DecidedSegment],
        run_slots: RunSlots,
        deadline: Deadline,
        on_step: Callable[[str, float], None],
    ) -> MicroBatchOutcome:
        """Run the slots, and decide their rows in one commit. Steps: TakeDecision, RunSlots, Decide.

        Raises TxnOutcomeChangedError if the rows end a transaction otherwise than those in front of them; nothing is decided.
        """

        @contextmanager
        def step(name: str) -> Iterator[None]:
            began = self._clock()
            yield
            on_step(name, (self._clock() - began) * 1000)
            self._observer(f"done.{name}")

        with step("TakeDecision"):
            self._owner.check_ownership()
            decision = self._owner.next_decision()
        with step("RunSlots"):
            results = run_slots(decision)
        rows = (
            *first_rows,
            *(
                DecidedSegment(segment, None, result.stored[segment.source] if segment.kind is SegmentKind.DATA else None)
                for result in results
                for segment in result.segments
            ),
        )
        if rows:
            with step("Decide"):
                if self._outcomes is None:
                    self._outcomes = self._read_outcomes()
                self._outcomes.take(rows, self._owner.positions())
                self._owner.decide(rows, highest_slot=-1)
        return MicroBatchOutcome(rows, (), results)

    def with_copied(self, rows: Sequence[DecidedSegment], deadline: Deadline) -> tuple[DecidedSegment, ...]:
        """Return `rows`: batches that no decision names are not in the archive."""
        return tuple(rows)

    def can_avoid(self, error: MirrorError) -> bool:
        return False

    def abandon(self, deadline: Deadline) -> None:
        """Do nothing: objects that no row names are removed by `archive clean`."""
