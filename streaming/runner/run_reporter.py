"""Driver: what a run tells about itself: a log line a micro-batch, rows of observations, problems, metrics."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from shallow_mirror.checkpoints.backends.best_effort_table import ObservationStore
from shallow_mirror.checkpoints.commit_metadata import RunIdentity
from shallow_mirror.checkpoints.offset_map_writer import OffsetMapOwner
from shallow_mirror.checkpoints.positions import Position
from shallow_mirror.checkpoints.problem_log import ProblemLog, log_problem
from shallow_mirror.checkpoints.problems import Problem, ProblemKind
from shallow_mirror.checkpoints.run_history import MicroBatchObservation, Observations
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import BatchRefusedError, ConfigError, CorruptBatchError, MirrorError
from shallow_mirror.logging_setup import fields
from shallow_mirror.plurals import counted
from shallow_mirror.sinks.kafka.micro_batch import TOTAL, MicroBatchReport
from shallow_mirror.sinks.kafka.protocol.stall_detector import StalledStep
from shallow_mirror.sinks.kafka.slots.quarantine_policy import REMEDY_OF_DAMAGE
from shallow_mirror.streaming.planning import planner_state
from shallow_mirror.streaming.planning.left_out_partitions import LeftOut
from shallow_mirror.streaming.planning.planner_state import PlannerNote
from shallow_mirror.streaming.runner import temp_dirs
from shallow_mirror.streaming.runner.error_hints import (
    problem_of_early_ends,
    problem_of_end,
    problem_of_retry,
    problem_of_truncation,
    problem_of_wait,
)
from shallow_mirror.streaming.runner.left_out_reporter import LeftOutReports
from shallow_mirror.types import Segment, SegmentKind, SourcePartition
from shallow_mirror.version import __version__

if TYPE_CHECKING:
    from shallow_mirror.streaming.runner.lag_monitor import SourceWatch
    from shallow_mirror.streaming.runner.metrics import Metrics

_log = logging.getLogger(__name__)

_LOOK_AT_NOTE_EVERY_S = 2.0

REPEATED_EARLY_ENDS = 2
"""Rounds in a row: the first plan of a run is made without knowing how fast the path is."""

_RETRIED = "Then: shallow-mirror quarantine CONF retry"
_EXPORTED = "Its bytes: shallow-mirror quarantine CONF export DIR"


class Witness:
    """Of one run. Nothing it does stops or delays a micro-batch."""

    def __init__(self, config: MirrorConfig, identity: RunIdentity) -> None:
        self._config, self._identity = config, identity
        self._problems = ProblemLog()
        self._observations: Observations | None = None
        self._metrics: Metrics | None = None
        self._watch: SourceWatch | None = None
        self._run_epoch = 0
        self._told_step: str | None = None
        self._told_wait_ms: int | None = None
        self._looked_at_note = 0.0
        self._micro_batch_count = 0
        self._told_steps: set[str] = set()
        self._early_ends_in_a_row = 0
        left_out_path = temp_dirs.scratch_folder() / f"left-out-{identity.run_id}.json"
        self.left_out = LeftOutReports(
            left_out_path, planner_state.left_out_path(config.checkpoint), report=self.met, count=self._count_left_out
        )

    def _count_left_out(self, left_out: Sequence[LeftOut]) -> None:
        if self._metrics is not None:
            self._metrics.clusters.left_out = tuple(left_out)

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Metrics are served while the block runs, where the mirror file asks for them. Raises ConfigError."""
        settings = self._config.metrics
        if settings.port is None:
            yield
            return
        try:
            from shallow_mirror.streaming.runner import metrics
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"metrics.port needs the package {error.name}: pip install 'shallow-mirror[metrics]', or leave metrics.port out"
            ) from error
        from shallow_mirror.streaming.runner.lag_monitor import SourceWatch

        source, target = self._config.source.alias, self._config.target.alias
        self._metrics = metrics.Metrics(
            self._config.mirror, settings.max_topics, version=__version__, source=source, target=target
        )
        self._watch = SourceWatch(self._config, self._metrics.clusters)
        with metrics.serving(self._metrics, settings), self._watch.watching():
            _log.info("metrics are at http://%s:%d/metrics", settings.host, settings.port)
            yield

    def took_over(self, owner: OffsetMapOwner, store: ObservationStore) -> None:
        self._run_epoch = owner.run_epoch
        self._observations = Observations(self._config.table_storage, store=store)
        self._observations.run_started(owner.run_epoch, self._identity, __version__)
        self._problems.begin(store, owner.run_epoch)
        if self._metrics is not None:
            self._metrics.run_epoch.set(owner.run_epoch)
            if owner.recorded().decided_at_ms:
                self._metrics.decided(owner.recorded().decided_at_ms)

    def start_step(self, step: str, detail: str = "") -> None:
        """Note for `status` what the start does from now on. Logged once per run: the supervisor may start the query often."""
        if step not in self._told_steps:
            self._told_steps.add(step)
            _log.info("start: %s%s", step, detail)
        try:
            note = planner_state.StartNote(step=f"{step}{detail}", since_ms=_now_ms())
            planner_state.write_start(planner_state.start_path(self._config.checkpoint), note)
        except OSError as error:
            _log.warning("the note for status was not written: %s", error)

    def stands_at(self, known: Mapping[SourcePartition, Position]) -> None:
        """Positions from which lag is counted."""
        if self._watch is not None:
            self._watch.positions = known

    def met(self, problem: Problem, level: int = logging.WARNING) -> None:
        """Told in the log, kept in `problems`."""
        log_problem(problem, level)
        self._keep(problem)

    def failed(self, what: str, error: MirrorError, since_ms: int, pause_s: float) -> None:
        """The supervisor tries again after a pause."""
        self.note_waiting(f"{what}: {error}", since_ms)
        _log.warning("%s: %s; next attempt in %.0f s (%s)", what, error, pause_s, type(error).__name__)
        self._keep(problem_of_retry(what, error))
        if self._metrics is not None and what == "query":
            self._metrics.restarted()

    def note_waiting(self, waiting_for: str, since_ms: int) -> None:
        """For `status`, until the planner writes its next note: it has none to write while no query runs."""
        if self._metrics is not None:
            self._metrics.waiting.set(1)
        self._told_wait_ms = since_ms
        note = PlannerNote(at_ms=_now_ms(), waiting_for=waiting_for, since_ms=since_ms)
        try:
            planner_state.write_note(planner_state.note_path(self._config.checkpoint), note)
        except OSError as error:
            _log.warning("the note for status was not written: %s", error)

    def looks_at(self, lingering: StalledStep | None) -> None:
        """From time to time while the query runs: what a step or the planner waits for, told once for each wait."""
        waits_for = None if lingering is None else lingering.waits_for
        if lingering is not None and waits_for != self._told_step:
            self.note_waiting(f"micro-batch: {waits_for}", int((time.time() - lingering.seconds) * 1000))
            remedy = "if it does not end, look at that cluster; it is given up after write.transaction_timeout_ms"
            text = f"the micro-batch waits since {lingering.seconds:.0f} s for {waits_for}"
            self.met(Problem(kind=ProblemKind.WAIT, text=text, remedy=remedy))
        self._told_step = waits_for
        if time.monotonic() - self._looked_at_note >= _LOOK_AT_NOTE_EVERY_S:
            self._looked_at_note = time.monotonic()
            self._look_at_note(is_lingering=lingering is not None)

    def _look_at_note(self, *, is_lingering: bool) -> None:
        self._problems.write_due()
        note = planner_state.read_note(planner_state.note_path(self._config.checkpoint))
        if note is not None and note.at_ms >= self._identity.started_at_ms:
            self.left_out.planner_says(note)
        if note is not None and (note.waiting_for is None or note.at_ms < self._identity.started_at_ms):
            note = None
        if self._metrics is not None:
            self._metrics.waiting.set(int(is_lingering or note is not None))
        if note is not None and not is_lingering and note.since_ms != self._told_wait_ms:
            self._told_wait_ms = note.since_ms
            self.met(problem_of_wait(f"nothing new is planned: {note.waiting_for}", note.error_name))

    def micro_batch(self, report: MicroBatchReport, owner: OffsetMapOwner) -> None:
        """It is decided and visible. One log line, one row, what was met, and what metrics say."""
        known = owner.positions()
        self.stands_at(known)
        segments = [row.segment for row in report.rows]
        observed = self._observed(report, segments, known)
        if self._observations is not None:
            self._observations.micro_batch(observed)
        self._micro_batch_count += 1
        _log.info("%s", sentence(observed), extra=fields(micro_batch=asdict(observed)))
        for problem in problems_of(report, segments):
            self.met(problem, logging.INFO)
        self._note_early_ends(report)
        if self._metrics is not None:
            self._metrics.micro_batch(observed, ages_s(segments, observed.settled_at_ms))
            self._metrics.decided(owner.recorded().decided_at_ms)

    def _note_early_ends(self, report: MicroBatchReport) -> None:
        """One warning when slots begin to end early in one round after another, one line when they no longer do."""
        before = self._early_ends_in_a_row
        self._early_ends_in_a_row = before + 1 if report.early_ends else 0
        if self._early_ends_in_a_row == REPEATED_EARLY_ENDS:
            self.met(problem_of_early_ends(report.early_ends, self._config.write.commit_interval))
        elif before >= REPEATED_EARLY_ENDS and not report.early_ends:
            _log.info("slots are done with their ranges within write.commit_interval again")

    def caught_up(self, known: Mapping[SourcePartition, Position]) -> None:
        """The offsets of the start are reached, as `available_now` wants it."""
        count = self._micro_batch_count
        what = counted(count, "micro-batch") if count else "nothing new"
        _log.info("caught up: %s; %s", what, _left(self._lag(known)))

    def _lag(self, known: Mapping[SourcePartition, Position]) -> int | None:
        note = planner_state.read_note(planner_state.note_path(self._config.checkpoint))
        positions = {one: known[one].offset for one in (() if note is None else note.ends) if one in known}
        return planner_state.lag_behind(note, positions, self._identity.started_at_ms)

    def _observed(
        self, report: MicroBatchReport, segments: list[Segment], known: Mapping[SourcePartition, Position]
    ) -> MicroBatchObservation:
        data = [one for one in segments if one.kind is SegmentKind.DATA]
        dropped: dict[str, int] = {}
        for one in segments:
            if one.kind is not SegmentKind.DATA and one.batch_count:
                dropped[one.kind.value] = dropped.get(one.kind.value, 0) + one.batch_count
        return MicroBatchObservation(
            run_epoch=self._run_epoch,
            micro_batch=report.micro_batch,
            fetched_bytes=report.fetched_bytes,
            size_bytes=sum(one.size_bytes for one in data),
            batch_count=sum(one.batch_count for one in data),
            rebuilt_batch_count=sum(one.rebuilt_batch_count for one in data),
            record_count=sum(one.record_count for one in data),
            dropped_batch_counts=dropped,
            duration_ms=report.duration_ms,
            lag_offsets=self._lag(known),
            settled_at_ms=_now_ms(),
        )

    def ended(self, outcome: str, error: MirrorError | None) -> None:
        """Waits until all of it is written. Before the take-over there is no table to write to."""
        if error is not None:
            self._keep(problem_of_end(error))
            if self._metrics is not None and isinstance(error, BatchRefusedError | CorruptBatchError):
                self._metrics.refused()
        if self._observations is not None:
            self._problems.write_due(all_of_them=True)
            self._observations.run_ended(self._run_epoch, self._identity, outcome)

    def _keep(self, problem: Problem) -> None:
        self._problems.met(problem)
        if self._metrics is not None:
            self._metrics.problem(problem.kind)


def sentence(one: MicroBatchObservation) -> str:
    """PURE: the log line of a micro-batch."""
    seconds = one.duration_ms[TOTAL] / 1000
    raw = one.batch_count - one.rebuilt_batch_count
    dropped = ", ".join(f"{count:,} {kind}" for kind, count in sorted(one.dropped_batch_counts.items()))
    size = f"{one.size_bytes / 1e6:.1f} MB" if one.size_bytes >= 100_000 else f"{one.size_bytes / 1e3:.1f} kB"
    return (
        f"micro-batch {one.micro_batch}: {counted(one.record_count, 'record')}, {counted(one.batch_count, 'batch')} "
        f"({raw:,} raw, {one.rebuilt_batch_count:,} rebuilt), {size} in {seconds:.2f} s"
        f"{f', dropped {dropped}' if dropped else ''}; {_left(one.lag_offsets)}"
    )


def _left(lag_offsets: int | None) -> str:
    return f"{counted(lag_offsets, 'offset')} left"


def problems_of(report: MicroBatchReport, segments: list[Segment]) -> list[Problem]:
    """PURE: what the tasks met."""
    found = [problem_of_retry(f"slot {slot} started again from its positions", error) for slot, error in report.retried]
    found += [
        Problem(
            kind=ProblemKind.QUARANTINED,
            text=f"batch at offsets {one.source_start} to {one.source_end - 1}: {one.rule}",
            remedy=f"{one.remedy}. {_EXPORTED if one.remedy == REMEDY_OF_DAMAGE else _RETRIED}",
            error_name=one.error_name,
            place=one.source.topic_partition,
        )
        for one in report.quarantined
    ]
    found += [
        Problem(
            kind=ProblemKind.EXPIRED,
            text=f"the source deleted offsets {one.source_start} to {one.source_end - 1} before they were copied",
            remedy="they are lost to this mirror; a longer retention of the source's topic gives it more time",
            place=one.source.topic_partition,
        )
        for one in segments
        if one.kind is SegmentKind.EXPIRED
    ]
    found += [problem_of_truncation(loss) for loss in report.truncated]
    return found


def ages_s(segments: list[Segment], visible_at_ms: int) -> list[float]:
    """PURE: of the newest record of each partition that moved. Timestamps of the future are 0 old."""
    newest: dict[SourcePartition, int] = {}
    for one in segments:
        if one.kind is SegmentKind.DATA and one.max_timestamp_ms is not None and one.max_timestamp_ms >= 0:
            newest[one.source] = max(newest.get(one.source, 0), one.max_timestamp_ms)
    return [max(0, visible_at_ms - at_ms) / 1000 for at_ms in newest.values()]


def _now_ms() -> int:
    return int(time.time() * 1000)
