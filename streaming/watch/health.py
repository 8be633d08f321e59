"""Driver: liveness and readiness of a run, for probes. Their meaning: docs/how-to/monitoring.md#probes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

READY_INTERVALS = 3
"""Intervals of a decision (trigger and commit interval) after which a run that neither plans nor decides is not ready."""

LEAST_READY_S = 60.0
LEAST_LIVE_S = 600.0
"""More than every step of a start and every pause between attempts takes: docs/design/waits.md."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthLimits:
    """`live_s`: how long the loop of a live run may stand; `ready_s`: how long a ready run may neither plan nor decide."""

    live_s: float
    ready_s: float

    @classmethod
    def of_run(cls, *, trigger_s: float, commit_interval_s: float, round_timeout_ms: int) -> HealthLimits:
        """Return the limits of a run that decides once in `trigger_s`. `round_timeout_ms`: longest time of a round of slots."""
        return cls(
            live_s=max(LEAST_LIVE_S, 2 * round_timeout_ms / 1000),
            ready_s=max(LEAST_READY_S, READY_INTERVALS * (trigger_s + commit_interval_s)),
        )


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Response to a probe, with a text that gives the reason."""

    is_passed: bool
    text: str


def result_of_runs(verdicts: Mapping[str, ProbeResult]) -> ProbeResult:
    """Return the verdict of a process by those of its runs, each on a line that begins with the name of the run."""
    if len(verdicts) == 1:
        return next(iter(verdicts.values()))
    text = "\n".join(f"{name}: {verdict.text}" for name, verdict in verdicts.items())
    return ProbeResult(all(verdict.is_passed for verdict in verdicts.values()), text)


class RunHealth:
    """Of one run. For any thread, without a lock: each field is replaced as a whole, and a probe only reads."""

    def __init__(self, limits: HealthLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._moved_at = self._progressed_at = clock()
        self._owns_tables = False
        self._is_in_micro_batch = False
        self._waits_for: str | None = "start"

    def on_move(self) -> None:
        """Record that the loop of the run moves."""
        self._moved_at = self._clock()

    def on_idle_loop(self, *, is_progress: bool) -> None:
        """Record a turn of the loop beside the query. It counts for nothing while a micro-batch runs, which may be stuck.

        `is_progress`: whether a turn without a micro-batch counts as a plan, because the planner's state cannot be read.
        """
        if self._is_in_micro_batch:
            return
        self.on_move()
        if is_progress:
            self.on_progress()

    def on_step(self, step: str) -> None:
        """Record a step of a start, or a pause before the next attempt. The run is not ready until it plans or decides."""
        self.on_move()
        self._waits_for = step

    def on_wait(self, waits_for: str) -> None:
        """Record the wait of the planner or the micro-batch. The run is not ready until it plans or decides."""
        self._waits_for = waits_for

    def on_take_over(self) -> None:
        """Record that the run owns its tables."""
        self.on_move()
        self._owns_tables = True

    def on_progress(self) -> None:
        """Record a decision, or a plan: also a plan that finds nothing to copy."""
        self.on_move()
        self._progressed_at = self._clock()
        self._waits_for = None

    def on_end(self) -> None:
        """Record the end of the run: its tables may belong to another one from now on."""
        self._owns_tables = False
        self.on_step("end of the process")

    @contextmanager
    def micro_batch(self) -> Iterator[None]:
        """Record the begin and the end of a micro-batch around the block."""
        self.on_move()
        self._progressed_at = self._clock()
        self._is_in_micro_batch = True
        try:
            yield
        finally:
            self._is_in_micro_batch = False
            self.on_move()

    def live(self) -> ProbeResult:
        """Return whether the loop of the run moves. A run that waits for a cluster is alive."""
        stood_s, limit_s = self._clock() - self._moved_at, self._limits.live_s
        if stood_s <= limit_s:
            return ProbeResult(True, "live")
        where = "in a micro-batch" if self._is_in_micro_batch else self._waits_for or "between two micro-batches"
        return ProbeResult(False, f"not live: the run has not moved for {stood_s:.0f} s, the limit is {limit_s:.0f} s: {where}")

    def ready(self) -> ProbeResult:
        """Return whether the run owns its tables and copies everything new."""
        waits_for = self._waits_for
        if waits_for is not None:
            return ProbeResult(False, f"not ready: waits for: {waits_for}")
        if not self._owns_tables:
            return ProbeResult(False, "not ready: does not own its tables")
        idle_s, limit_s = self._clock() - self._progressed_at, self._limits.ready_s
        if idle_s > limit_s:
            return ProbeResult(
                False, f"not ready: neither a plan nor a decision for {idle_s:.0f} s, the limit is {limit_s:.0f} s"
            )
        return ProbeResult(True, "ready")
