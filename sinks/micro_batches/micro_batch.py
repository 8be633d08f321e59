"""Driver: the foreachBatch body: rounds of slots, each decided at once, until all that is planned is copied or left out."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints import DecidedSegment, Position
from shallow_mirror.checkpoints.logs import QuarantinedBatch, QuarantineTable
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import (
    BatchRefusedError,
    DataLossError,
    LogTruncatedError,
    MirrorError,
    RetriableError,
)
from shallow_mirror.sinks.base import Observer, RoundRepeatedError, Sink, SlotRound
from shallow_mirror.sinks.micro_batches.expired_offsets import expired_rows, log_expired
from shallow_mirror.sinks.micro_batches.spark_tasks import SlotRows, most_actionable, run_tasks
from shallow_mirror.sinks.micro_batches.truncated_logs import TruncatedLogs
from shallow_mirror.sinks.slot_values import (
    EarlyEnd,
    MicroBatchOutcome,
    SlotResult,
    SteadyCopying,
    UnfinishedRange,
    require_committed,
)
from shallow_mirror.sinks.slots.quarantine_policy import UNLIMITED_QUARANTINE, QuarantineBudget
from shallow_mirror.sinks.slots.slot_time import SlotTime
from shallow_mirror.types import QuarantineLimits, SourcePartition

_log = logging.getLogger(__name__)

BETWEEN, SLOWEST_SLOT, TOTAL = "Between", "SlowestSlot", "Total"
"""Steps of a round besides those of the sink. `Between`: since the round before, for Spark's log, its planning and waiting for
data; `SlowestSlot`: the part of RunSlots that a task itself took; `Total`: of the round, without `Between`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatchReport:
    """Result of one round."""

    micro_batch: int
    rows: tuple[DecidedSegment, ...]
    fetched_bytes: int
    duration_ms: Mapping[str, float]
    """By step name."""
    quarantined: tuple[QuarantinedBatch, ...] = ()
    retried: tuple[tuple[int, RetriableError], ...] = ()
    """Slots that started again, with the cause."""
    stamped_topics: frozenset[str] = frozenset()
    """Target topics whose broker gave batches its own time."""
    early_ends: tuple[EarlyEnd, ...] = ()
    """Of the slots that the commit interval ended."""
    truncated: tuple[LogTruncatedError, ...] = ()
    """Logs of the source that were cut below the position, behind which the mirror continued."""
    steady: SteadyCopying | None = None
    """Of all slots."""


LeftOutReport = Callable[[Sequence[UnfinishedRange], Mapping[SourcePartition, Position]], None]


def refuse_left_out(unfinished: Sequence[UnfinishedRange], _positions: Mapping[SourcePartition, Position]) -> None:
    """Refuse to leave anything out. Raises RetriableError."""
    for left_out in unfinished:
        raise RetriableError(left_out.error_name, f"{left_out.source.topic_partition}: {left_out.reason}")


class StoppedBeforeMicroBatchError(Exception):
    """Raised into Spark so that a micro-batch, or a further round of one, that was only about to start does not begin."""


class MicroBatchSink:
    """Called by Spark with each micro-batch; the query's only side effect.

    `failure` holds the error that ended the query: Spark passes on its text only.
    """

    def __init__(
        self,
        sink: Sink,
        *,
        source: Cluster | None,
        slot_time: SlotTime,
        report: Callable[[MicroBatchReport], None],
        observer: Observer,
        continues_after_data_loss: bool = False,
        quarantine: QuarantineTable | None = None,
        quarantine_limits: QuarantineLimits = UNLIMITED_QUARANTINE,
        left_out: LeftOutReport = refuse_left_out,
        register: Callable[[], None] = lambda: None,
        begin_lineages: Callable[[LogTruncatedError], bool] = lambda _loss: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`source`: None if offsets cannot expire.

        `slot_time`: as earlier queries of the run measured it. `quarantine`: None if slots quarantine nothing.

        `left_out` is called at the end of each micro-batch with the left out partitions and the positions of the map. An error
        of it ends the query, because Spark would continue behind the ranges that were left out. `register` adds the first rows
        of partitions that appeared since; it is called in front of each micro-batch, and by `register_if_idle`.

        `begin_lineages`: of an archive, with `continues_after_data_loss`: begin the next lineage of truncated logs, and return
        whether one began. Positions are lower then.
        """
        self._sink = sink
        self._source = source
        self._slot_time = slot_time
        self._report = report
        self._observer = observer
        self._continues_after_data_loss = continues_after_data_loss
        self._quarantine = quarantine
        self._quarantine_limits = quarantine_limits
        self._left_out = left_out
        self._register = register
        self._begin_lineages = begin_lineages
        self._clock = clock
        self._unfinished: dict[SourcePartition, UnfinishedRange] = {}
        self._budget = QuarantineBudget(quarantine_limits)
        self._truncated = TruncatedLogs()
        self.failure: BaseException | None = None
        self._running = threading.Lock()
        self._ended_at = clock()
        self._is_stopping = False

    def stop(self) -> None:
        """Let no further micro-batch begin, and wait for the one that runs."""
        self._is_stopping = True
        with self._running:
            pass

    def settle_if_idle(self, quiet_s: float) -> None:
        """From another thread than Spark's: record that all rows are settled once no micro-batch ran for `quiet_s` seconds.

        Without it readers would not see the last micro-batch of a mirror that has nothing to do. Raises as `settle`.
        """
        if not self._running.acquire(blocking=False):
            return
        try:
            if self.failure is None and self._clock() - self._ended_at >= quiet_s:
                self._sink.settle()
                self._sink.recheck_unavailable()
        finally:
            self._running.release()

    def register_if_idle(self) -> None:
        """From another thread than Spark's: register new partitions unless a micro-batch runs, which does so when it begins.

        Raises errors of `register`.
        """
        if not self._running.acquire(blocking=False):
            return
        try:
            if self.failure is None:
                self._register()
        finally:
            self._running.release()

    def __call__(self, planned: SlotRows, spark_batch_id: int) -> None:
        with self._running:
            if self._is_stopping:
                raise StoppedBeforeMicroBatchError(f"stopped before Spark batch {spark_batch_id}")
            try:
                self._register()  # here as well: between two micro-batches the lock may never be free for the driver's loop
                self._copy(planned)
            except StoppedBeforeMicroBatchError:
                raise
            except BaseException as error:
                self.failure = error
                raise
            finally:
                self._ended_at = self._clock()

    def _copy(self, planned: SlotRows) -> None:
        """Run rounds until every planned range is copied or left out.

        One round is enough, except if slots ended early, or offsets were recorded as expired. A range that is left out counts
        as done for Spark, which would otherwise replay its plan forever. Positions are in the map, and the planner sets Spark
        back to them.
        """
        self._sink.recheck_unavailable()
        first_rows: tuple[DecidedSegment, ...] = ()
        self._unfinished = {}
        self._budget = QuarantineBudget(self._quarantine_limits)
        # A round leaves something out in three ways. They are looked at in this order because the first two end a round without
        # a decision, and only a decided round has results.
        # 1. DataLossError: the source has lost offsets. Their rows are the first ones that the next round decides.
        # 2. RoundRepeatedError: the sink has noted what the target cannot take now. `first_rows` are still to be decided.
        # 3. Ranges that slots left out: all else of the round is decided, so later rounds and plans go on without them.
        while True:
            try:
                outcome = self._round(planned, first_rows)
            except DataLossError as loss:
                if self._has_next_lineages(loss):
                    first_rows = ()  # of positions that no longer hold; the next round finds out again what has expired
                else:
                    first_rows += self._after_data_loss(loss, first_rows)
                continue
            except RoundRepeatedError:
                # This ends: each time there is one transactional id, partition or topic less to use.
                continue  # nothing of the round is decided: the next one does without what could not be used
            # First: where a transaction was not committed, its rows are removed and positions have fallen back.
            require_committed(outcome.not_committed)
            unknown = [planned_range for result in outcome.slots for planned_range in result.unknown]
            if unknown:
                # This mirror's planner plans only what is registered, but Spark may replay a plan of an older checkpoint or map.
                # The query begins again, and with it the registration of what the source has.
                raise RetriableError(
                    "PARTITION_NOT_REGISTERED", f"{unknown[0].source.topic_partition} is planned, but is not in the offset map"
                )
            self._unfinished.update({left_out.source: left_out for result in outcome.slots for left_out in result.unfinished})
            if not any(result.is_partial for result in outcome.slots):
                self._left_out(tuple(self._unfinished.values()), self._sink.positions())
                return
            if self._is_stopping:
                # On a slow link the plan may take many more rounds. The next start finds it in Spark's checkpoint, and reads
                # from the positions that this round has reached.
                raise StoppedBeforeMicroBatchError("stopped between two rounds of a micro-batch")
            first_rows = ()

    def _round(self, planned: SlotRows, first_rows: Sequence[DecidedSegment]) -> MicroBatchOutcome:
        deadline = Deadline.after_ms(self._sink.round_timeout_ms, self._clock)
        started = self._clock()
        steps = {BETWEEN: (started - self._ended_at) * 1000}

        def run_slots(decision: int) -> tuple[SlotResult, ...]:
            return self._run_slots(planned, decision, first_rows, deadline)

        def on_step(name: str, duration_ms: float) -> None:
            steps[name] = steps.get(name, 0.0) + duration_ms

        outcome = self._sink.run_round(first_rows, run_slots, deadline, on_step)
        steps[SLOWEST_SLOT] = max((result.duration_ms for result in outcome.slots), default=0.0)
        steps[TOTAL], self._ended_at = (self._clock() - started) * 1000, self._clock()
        if outcome.rows:
            self._report(
                MicroBatchReport(
                    micro_batch=self._sink.micro_batch,
                    rows=outcome.rows,
                    fetched_bytes=sum(result.fetched_bytes for result in outcome.slots),
                    duration_ms=steps,
                    quarantined=tuple(batch for result in outcome.slots for batch in result.quarantined),
                    retried=tuple((result.slot, error) for result in outcome.slots for error in result.retried),
                    stamped_topics=frozenset(topic for result in outcome.slots for topic in result.stamped_topics),
                    early_ends=tuple(result.early_end for result in outcome.slots if result.early_end is not None),
                    truncated=self._truncated.take_unreported(),
                    steady=SteadyCopying.of_slots(outcome.slots),
                )
            )
        return outcome

    def _run_slots(
        self, planned: SlotRows, decision: int, first_rows: Sequence[DecidedSegment], deadline: Deadline
    ) -> tuple[SlotResult, ...]:
        positions, round_timeout_ms = self._sink.positions(), self._sink.round_timeout_ms
        time_left_ms = self._slot_time.time_left_ms(round_timeout_ms)
        commit_interval_ms = self._slot_time.commit_interval_ms(self._sink.commit_interval_ms, round_timeout_ms)
        task = self._sink.task_of(
            SlotRound(
                decision=decision,
                positions=_positions_after(positions, first_rows),
                epoch_ends=self._truncated.epoch_ends(positions),
                time_left_ms=time_left_ms,
                commit_interval_ms=commit_interval_ms,
                left_out=frozenset(self._unfinished),
                is_one_wave=self._slot_time.is_one_wave,
            )
        )
        began = self._clock()
        answers = run_tasks(planned, task)  # the only evaluation of this round
        errors = [answer for answer in answers if isinstance(answer, MirrorError)]
        results = [answer for answer in answers if isinstance(answer, SlotResult)]
        # Seen before the decision: where the first transactions have timed out, the next try already gives each slot less time.
        all_tasks_ms = (self._clock() - began) * 1000
        if errors:
            self._slot_time.record_failed_round(all_tasks_ms, time_left_ms, len(answers))
        else:
            self._slot_time.record_round(all_tasks_ms, [result.duration_ms for result in results], commit_interval_ms)
        # Counted over all rounds of the micro-batch: many small rounds must not quarantine more than a large one.
        try:
            self._budget.take(batch for result in results for batch in result.quarantined)
        except BatchRefusedError as excess:
            errors.append(excess)
        if errors:
            self._sink.check_ownership()  # a fenced producer epoch may mean that another run took over
            error = most_actionable(errors)
            if self._sink.can_avoid(error):
                raise RoundRepeatedError(str(error)) from error  # the tasks ran in front of the decision
            # A definite error ends the process: what is open would hold back readers until it times out. After a retriable
            # error the next start fences the same ids.
            if not isinstance(error, RetriableError):
                self._sink.abandon(deadline)
            raise error
        self._write_quarantine(results, decision)
        return tuple(sorted(results, key=lambda result: result.slot))

    def _write_quarantine(self, results: Sequence[SlotResult], decision: int) -> None:
        """Write quarantined batches in front of the decision: rows that no decision follows count for nothing."""
        batches = [batch for result in results for batch in result.quarantined]
        if not batches:
            return
        assert self._quarantine is not None
        self._quarantine.add(batches, decision)
        self._observer("quarantine.written")
        for quarantined in batches:
            _log.warning("quarantined (pending commit): %s", quarantined)

    def _has_next_lineages(self, loss: DataLossError) -> bool:
        """Return whether an archive continues with the next lineage: the next round reads from the begin of that."""
        return self._continues_after_data_loss and isinstance(loss, LogTruncatedError) and self._begin_lineages(loss)

    def _after_data_loss(self, loss: DataLossError, first_rows: Sequence[DecidedSegment]) -> tuple[DecidedSegment, ...]:
        """Return rows for lost offsets; none behind a log that was truncated, which the next round just continues.

        Raises `loss` if there is no such row, or `read.on_data_loss` is not continue, and RetriableError.
        """
        if not self._continues_after_data_loss:
            raise loss
        deadline = Deadline.after_ms(self._sink.round_timeout_ms, self._clock)
        positions = self._sink.positions()
        if isinstance(loss, LogTruncatedError):
            self._truncated.accept(loss, _positions_after(positions, first_rows))
            return ()
        targets = {source: position.target for source, position in positions.items()}
        targets.update({row.segment.source: row.segment.target for row in first_rows})
        if self._source is None:
            raise loss
        lineages = {source: position.lineage for source, position in positions.items()}
        rows = expired_rows(loss, _positions_after(positions, first_rows), targets, lineages, self._source, deadline)
        rows = self._sink.with_copied(rows, deadline)
        log_expired(rows)
        return rows


def _positions_after(
    positions: Mapping[SourcePartition, Position], first_rows: Sequence[DecidedSegment]
) -> dict[SourcePartition, int]:
    offsets = {source: position.offset for source, position in positions.items()}
    return offsets | {row.segment.source: row.segment.source_end for row in first_rows}
