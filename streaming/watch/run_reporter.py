"""Driver: reports of a run: a log line per micro-batch, rows of `runs` and `micro_batches`, problems, metrics."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from shallow_mirror.access import AccessPass
from shallow_mirror.checkpoints import Position
from shallow_mirror.checkpoints.ledger import LedgerOwner, RunIdentity
from shallow_mirror.checkpoints.logs.runs import Problem, ProblemKind, ProblemLog, RunEnd, RunHistory, log_problem
from shallow_mirror.checkpoints.rows import decided_fillers, preserved_topics
from shallow_mirror.checkpoints.tables import BestEffortTables
from shallow_mirror.config import LagMetricsSettings
from shallow_mirror.errors import BatchRefusedError, CorruptBatchError, IncompleteRunError, MirrorError, StoppedError
from shallow_mirror.groups.report import GroupLag
from shallow_mirror.logging_setup import fields
from shallow_mirror.plurals import counted
from shallow_mirror.sinks.kafka import StalledStep
from shallow_mirror.sinks.micro_batches import MicroBatchReport
from shallow_mirror.streaming.planning import planner_state
from shallow_mirror.streaming.planning.left_out_partitions import LeftOutPartition
from shallow_mirror.streaming.planning.offset_planning import Measurements
from shallow_mirror.streaming.planning.planner_state import PlannerState
from shallow_mirror.streaming.spark import temp_dirs
from shallow_mirror.streaming.watch.error_hints import (
    REMEDY_OF_UNMATCHED,
    problem_of_early_ends,
    problem_of_end,
    problem_of_retry,
    problem_of_wait,
)
from shallow_mirror.streaming.watch.health import RunHealth
from shallow_mirror.streaming.watch.left_out_reporter import LeftOutReporter
from shallow_mirror.streaming.watch.metrics_extra import importing_metrics
from shallow_mirror.streaming.watch.micro_batch_summary import ages_s, observation, offsets_left, problems_of, sentence
from shallow_mirror.streaming.watch.reported_run import ReportedRun
from shallow_mirror.types import SourcePartition
from shallow_mirror.version import __version__

if TYPE_CHECKING:
    from shallow_mirror.streaming.watch.lag_monitor import LagMonitor
    from shallow_mirror.streaming.watch.metrics import Metrics

_log = logging.getLogger(__name__)

_READ_STATE_EVERY_S = 2.0

REPEATED_EARLY_ENDS = 2
"""Rounds in a row before a warning: the first plan of a run is made without a measured rate."""


class RunReporter:
    """Of one run. Nothing it does delays a micro-batch or fails one, but for `left_out`, which the planner depends on."""

    def __init__(self, run: ReportedRun, identity: RunIdentity) -> None:
        self._run = run
        self._identity = identity
        self.health = RunHealth(run.health_limits)
        self._problems = ProblemLog()
        self._observations: RunHistory | None = None
        self._metrics: Metrics | None = None
        self._lag_monitor: LagMonitor | None = None
        self._run_epoch = 0
        self._reported_stall: str | None = None
        self._reported_wait_ms: int | None = None
        self._state_read_at = 0.0
        self._planned_at_ms: int | None = None
        self._micro_batch_count = 0
        self._logged_steps: set[str] = set()
        self._early_ends_in_a_row = 0
        self.ends: Mapping[SourcePartition, int] | None = None
        """Ends of a restore; None: a planner writes the ends of the source."""
        left_out_path = temp_dirs.temp_dir() / f"left-out-{identity.run_id}.json"
        self._planner_state_path = planner_state.planner_state_path(run.checkpoint, left_out_path)
        self._gone_topics: tuple[tuple[str, Problem], ...] = ()
        self._unmatched: tuple[str, ...] = ()
        self.left_out = LeftOutReporter(
            left_out_path, planner_state.left_out_path(run.checkpoint), report=self.record_problem, count=self._count_left_out
        )

    def _count_left_out(self, left_out: Sequence[LeftOutPartition]) -> None:
        if self._metrics is not None:
            self._metrics.clusters.left_out = tuple(left_out)

    @contextlib.contextmanager
    def serve_metrics(self) -> Iterator[None]:
        """Serve metrics and probes while the block runs, if `metrics.port` is set. Raises ConfigError."""
        settings = self._run.metrics
        if settings.port is None:
            yield
            return
        with importing_metrics():
            from shallow_mirror.streaming.watch import metrics, metrics_port
        run = self._run
        max_topics = settings.max_topics if isinstance(settings, LagMetricsSettings) else 0
        self._metrics = metrics.Metrics(run.name, max_topics, version=__version__, source=run.source, target=run.target)
        if run.open_lag_monitor is not None:
            self._lag_monitor = run.open_lag_monitor(self._metrics.clusters)
        monitoring = contextlib.nullcontext() if self._lag_monitor is None else self._lag_monitor.running()
        with metrics_port.serving(run.name, self._metrics.registry, self.health, settings), monitoring:
            _log.info("metrics are at http://%s:%d/metrics", settings.host, settings.port)
            yield

    def on_takeover(self, owner: LedgerOwner, tables: BestEffortTables) -> None:
        """Record the start of the run, and from now on problems."""
        self._run_epoch = owner.run_epoch
        self.health.on_take_over()
        self._observations = RunHistory(tables)
        self._observations.run_started(owner.run_epoch, self._identity, __version__)
        self._problems.begin(tables, owner.run_epoch)
        if self._metrics is not None:
            self._metrics.run_epoch.set(owner.run_epoch)
            if owner.recorded().decided_at_ms:
                self._metrics.on_decision(owner.recorded().decided_at_ms)

    def start_step(self, step: str, detail: str = "") -> None:
        """Write the step of the start for `status`. Logged once per run: the supervisor may start the query often."""
        self.health.on_step(f"start: {step}{detail}")
        if step not in self._logged_steps:
            self._logged_steps.add(step)
            _log.info("start: %s%s", step, detail)
        try:
            state = planner_state.StartState(step=f"{step}{detail}", since_ms=_now_ms())
            planner_state.write_state(planner_state.start_state_path(self._run.checkpoint), state)
        except OSError as error:
            _log.warning("the state for `status` was not written: %s", error)

    def set_clusters(self, source_id: str, target_id: str) -> None:
        """Set the ids of the clusters between which the run copies."""
        if self._lag_monitor is not None:
            self._lag_monitor.source_cluster_id, self._lag_monitor.target_cluster_id = source_id, target_id

    def set_positions(self, positions: Mapping[SourcePartition, Position]) -> None:
        """Set the positions from which lag is counted."""
        if self._lag_monitor is not None:
            self._lag_monitor.positions = positions

    def write_measurements(self, measured: Measurements) -> None:
        """Write the measurements of a micro-batch for the planner. If that fails, it plans with those of an earlier one."""
        try:
            planner_state.write_measurements(planner_state.measurements_path(self._run.checkpoint), measured)
        except OSError as error:  # the micro-batch is decided: it must not fail
            _log.warning("measurements for the planner were not written: %s", error)

    def record_problem(self, problem: Problem, level: int = logging.WARNING) -> None:
        """Log a problem, and add it to the table `problems`."""
        log_problem(problem, level)
        self._add_problem(problem)

    def on_access_pass(self, what: str, path: Path | None, done: AccessPass) -> None:
        """Record the result of a comparison for `status` and the metrics. A failed one changes no metric.

        `what`: acls, quotas or schemas.
        """
        if self._metrics is not None and done.is_compared:
            self._metrics.on_access_pass(what, done.lacking)
        try:
            planner_state.write_state(path, done)
        except OSError as error:
            _log.warning("the state of %s for `status` was not written: %s", what, error)

    def on_group_lag(self, lag: GroupLag) -> None:
        """Serve what the target lacks of the groups' commits. Called by the thread that synchronizes them."""
        if self._metrics is not None:
            self._metrics.on_group_lag(lag)

    def on_retry(self, step: str, error: MirrorError, since_ms: int, pause_s: float) -> None:
        """Report that the supervisor tries `step` again after a pause. `since_ms`: when it failed first."""
        self.health.on_step(f"{step}: {error}")
        self.write_waiting(f"{step}: {error}", since_ms)
        _log.warning("%s: %s; next attempt in %.0f s (%s)", step, error, pause_s, type(error).__name__)
        self._add_problem(problem_of_retry(step, error))
        if self._metrics is not None and step == "query":
            self._metrics.on_restart()

    def write_waiting(self, waiting_for: str, since_ms: int) -> None:
        """Write the current wait for `status`, until the planner writes its next state: it does not while no query runs."""
        if self._metrics is not None:
            self._metrics.waiting.set(1)
        self._reported_wait_ms = since_ms
        state = PlannerState(at_ms=_now_ms(), waiting_for=waiting_for, since_ms=since_ms)
        self._planned_at_ms = state.at_ms  # no outcome of a plan: a probe must not take it for one that follows a decision
        try:
            planner_state.write_state(self._planner_state_path, state)
        except OSError as error:
            _log.warning("the state for `status` was not written: %s", error)

    def check_stalls(self, stalled: StalledStep | None) -> None:
        """Report the wait of a step or of the planner, once for each wait. Called repeatedly while the query runs."""
        waits_for = None if stalled is None else stalled.waits_for
        if stalled is not None and waits_for != self._reported_stall:
            self.write_waiting(f"micro-batch: {waits_for}", int((time.time() - stalled.seconds) * 1000))
            remedy = "if it does not end, check that cluster; the micro-batch is aborted after write.transaction_timeout_ms"
            text = f"the micro-batch has waited {stalled.seconds:.0f} s for {waits_for}"
            self.record_problem(Problem(kind=ProblemKind.WAIT, text=text, remedy=remedy))
        self._reported_stall = waits_for
        if waits_for is not None:
            self.health.on_wait(waits_for)
        has_planner_state = planner_state.planner_state_path(self._run.checkpoint) is not None
        self.health.on_idle_loop(is_progress=not has_planner_state)
        if time.monotonic() - self._state_read_at >= _READ_STATE_EVERY_S:
            self._state_read_at = time.monotonic()
            self._check_planner(is_stalled=stalled is not None)

    def _check_planner(self, *, is_stalled: bool) -> None:
        self._problems.write_due()
        state = planner_state.read_state(self._planner_state_path, planner_state.PlannerState)
        if state is not None and state.at_ms < self._identity.started_at_ms:
            state = None  # the last run's planner wrote it
        if state is not None:
            self.left_out.on_plan(state)
            self._record_plan(state)
        waiting = state if state is not None and state.waiting_for is not None else None
        if self._metrics is not None:
            self._metrics.waiting.set(int(is_stalled or waiting is not None))
        if waiting is not None and not is_stalled and waiting.since_ms != self._reported_wait_ms:
            self._reported_wait_ms = waiting.since_ms
            self.record_problem(problem_of_wait(f"nothing new is planned: {waiting.waiting_for}", waiting.error_name))

    def _record_plan(self, state: PlannerState) -> None:
        """Record for the probes the work of the planner since the state that was read before."""
        if state.at_ms == self._planned_at_ms:
            return
        self._planned_at_ms = state.at_ms
        if state.waiting_for is None:
            self.health.on_progress()
        else:
            self.health.on_wait(state.waiting_for)

    def on_micro_batch(self, report: MicroBatchReport, owner: LedgerOwner, positions: Mapping[SourcePartition, Position]) -> None:
        """Report a micro-batch that is decided and visible: one log line, one row, problems, metrics.

        `positions`: those of the owner's table from which lag is counted.
        """
        self.health.on_progress()
        self.set_positions(positions)
        segments = [row.segment for row in report.rows]
        observed = observation(
            report,
            segments,
            run_epoch=self._run_epoch,
            lag_offsets=self._lag(positions),
            settled_at_ms=_now_ms(),
        )
        if self._observations is not None:
            self._observations.micro_batch(observed)
        self._micro_batch_count += 1
        _log.info("%s", sentence(observed), extra=fields(micro_batch=asdict(observed)))
        for problem in problems_of(report, segments):
            self.record_problem(problem, logging.INFO)
        self._check_early_ends(report)
        if self._metrics is not None:
            self._metrics.on_micro_batch(observed, ages_s(segments, observed.settled_at_ms))
            self._metrics.on_decision(owner.recorded().decided_at_ms)
            self._metrics.clusters.add_fillers(decided_fillers(report.rows, preserved_topics(positions)))

    def _check_early_ends(self, report: MicroBatchReport) -> None:
        """Warn once when slots end early in one round after another, and log once when they no longer do."""
        before = self._early_ends_in_a_row
        self._early_ends_in_a_row = before + 1 if report.early_ends else 0
        if self._early_ends_in_a_row == REPEATED_EARLY_ENDS:
            self.record_problem(problem_of_early_ends(report.early_ends, self._run.commit_interval))
        elif before >= REPEATED_EARLY_ENDS and not report.early_ends:
            _log.info("slots finish their ranges within write.commit_interval again")

    def on_gone_topics(self, problems: Sequence[tuple[str, Problem]]) -> None:
        """Record the topics that a query leaves out as a whole. A run with `available_now` does not end well with them."""
        self._gone_topics = tuple(problems)
        for _, problem in problems:
            self.record_problem(problem)

    def on_unmatched(self, sentences: tuple[str, ...]) -> None:
        """Record entries of `topics.include` that match no topic. A run with `available_now` does not end well with them."""
        for text in sentences:
            if text not in self._unmatched:
                self.record_problem(Problem(kind=ProblemKind.CONFIG, text=text, remedy=REMEDY_OF_UNMATCHED))
        self._unmatched = sentences

    def on_caught_up(
        self,
        positions: Mapping[SourcePartition, Position],
        not_copied: Collection[str] = (),
        *,
        pending: Sequence[str] = (),
        unread: Sequence[str] = (),
    ) -> None:
        """Report that a run with `available_now` has ended. Raise IncompleteRunError if it left something out.

        `not_copied`: topics that are paused or handed over, which were not asked for. `pending`: a sentence for each committed
        transaction that is not visible everywhere. `unread`: one for each open transaction of the source.
        """
        state = planner_state.read_state(self._planner_state_path, planner_state.PlannerState)
        if state is not None:
            self.left_out.on_plan(state)
        partitions = [left for left in self.left_out.partitions() if left.source.topic not in not_copied]
        left_out = [f"{left.source.topic_partition} ({left.reason})" for left in partitions]
        topics = {left.source.topic for left in partitions}
        left_out += [problem.text for name, problem in self._gone_topics if name not in topics]
        left_out += [*self._unmatched, *pending]
        if left_out:
            raise IncompleteRunError(left_out)
        count = self._micro_batch_count
        what = counted(count, "micro-batch") if count else "nothing new"
        left = f"; not copied: {counted(len(not_copied), 'topic')} (paused or handed over)" if not_copied else ""
        behind = (
            f"; what lies behind open transactions of the source is read once they end: {'; '.join(unread)}" if unread else ""
        )
        _log.info("caught up: %s%s%s%s", what, offsets_left(self._lag(positions)), left, behind)

    def _lag(self, positions: Mapping[SourcePartition, Position]) -> int | None:
        if self.ends is not None:
            return sum(max(0, end - positions[source].offset) for source, end in self.ends.items() if source in positions)
        state = planner_state.read_state(self._planner_state_path, planner_state.PlannerState)
        offsets = {source: positions[source].offset for source in (() if state is None else state.ends) if source in positions}
        return planner_state.lag_behind(state, offsets, self._identity.started_at_ms)

    @contextlib.contextmanager
    def recording_end(self) -> Iterator[RunEnd]:
        """Record the end of the block: the outcome that it has set, or its error."""
        end, ended_by = RunEnd(), None
        try:
            yield end
        except StoppedError:
            end.outcome = "stopped"
            raise
        except MirrorError as error:
            end.outcome, ended_by = type(error).__name__, error
            raise
        finally:
            self.on_end(end.outcome, ended_by)

    def on_end(self, outcome: str, error: MirrorError | None) -> None:
        """Record the end of the run, and wait until all problems are written. Before the take-over there is no table."""
        self.health.on_end()
        if error is not None:
            self._add_problem(problem_of_end(error))
            if self._metrics is not None and isinstance(error, BatchRefusedError | CorruptBatchError):
                self._metrics.on_refused_batch()
        if self._observations is not None:
            self._problems.write_due(all_of_them=True)
            self._observations.run_ended(self._run_epoch, self._identity, outcome)

    def _add_problem(self, problem: Problem) -> None:
        self._problems.record(problem)
        if self._metrics is not None:
            self._metrics.on_problem(problem.kind)


def _now_ms() -> int:
    return int(time.time() * 1000)
