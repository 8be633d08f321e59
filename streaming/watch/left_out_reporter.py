"""Driver: list of partitions that are left out, in files for the planner and `status`, with reports of changes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from shallow_mirror.checkpoints import Position
from shallow_mirror.checkpoints.logs.runs import Problem
from shallow_mirror.errors import RetriableError
from shallow_mirror.sinks import UnfinishedRange
from shallow_mirror.streaming.planning.left_out_partitions import (
    LeftOutChange,
    LeftOutPartition,
    LeftOutTracker,
    parse_left_out,
    write_left_out,
)
from shallow_mirror.streaming.planning.planner_state import PlannerState
from shallow_mirror.streaming.watch.error_hints import problem_of_left_out
from shallow_mirror.types import SourcePartition

_log = logging.getLogger(__name__)

REPORTED_AT_ONCE = 20
"""Partitions with a line in the log and a row in `problems` each; the number of the others is one more line."""


class LeftOutReporter:
    """Of one run, over all its queries. For Spark's callback thread, the mirror's own and the topic monitor.

    `path` is for the planner: without it Spark would not be rewound. `status_path` is for `status` only.
    """

    def __init__(
        self,
        path: Path,
        status_path: Path | None,
        *,
        report: Callable[[Problem], None],
        count: Callable[[Sequence[LeftOutPartition]], None],
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._path = path
        self._status_path = status_path
        self._report = report
        self._count = count
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._partitions = LeftOutTracker()
        self._written: tuple[LeftOutPartition, ...] | None = None

    @property
    def path(self) -> Path:
        return self._path

    def partitions(self) -> tuple[LeftOutPartition, ...]:
        """Return the partitions that are left out now."""
        with self._lock:
            return self._partitions.all()

    def on_query_start(self, positions: Mapping[SourcePartition, int]) -> None:
        """Update positions before a query starts. Raises RetriableError if the file cannot be written."""
        with self._lock:
            self._partitions.on_query_start(positions)
            self._write()

    def on_micro_batch(self, unfinished: Sequence[UnfinishedRange], all_positions: Mapping[SourcePartition, Position]) -> None:
        """Take over the partitions that a micro-batch left out. Raises RetriableError if the planner's file cannot be written."""
        if not unfinished and not self._partitions.by_slots:
            return
        sources = {entry.source for entry in unfinished} | {entry.source for entry in self._partitions.by_slots}
        positions = {source: all_positions[source].offset for source in sources if source in all_positions}
        with self._lock:
            change = self._partitions.on_micro_batch(unfinished, positions, self._now_ms())
            self._write()
        self._report_change(change)

    def on_changed_settings(self, changed: Sequence[UnfinishedRange]) -> None:
        """Take over all partitions whose target topics were changed, for `status` and metrics.

        The planner still plans them: nothing has to be rewound, and the next try shows whether the setting was put back.
        Raises RetriableError if the planner's file cannot be written.
        """
        with self._lock:
            change = self._partitions.on_changed_settings(changed, self._now_ms())
            self._write()
        self._report_change(change)

    def on_unfilled_logs(self, unfilled: Sequence[UnfinishedRange]) -> None:
        """Take over all partitions whose target logs are not filled up to their positions, for `status` and metrics.

        Raises RetriableError if the planner's file cannot be written.
        """
        with self._lock:
            change = self._partitions.on_unfilled_logs(unfilled, self._now_ms())
            self._write()
        self._report_change(change)

    def on_plan(self, state: PlannerState) -> None:
        """Take over the partitions that a plan left out. Raises RetriableError if the planner's file cannot be written."""
        if state.waiting_for is not None:
            return
        unanswered = parse_left_out({"partitions": state.left_out})
        with self._lock:
            change = self._partitions.on_plan(unanswered, state.caught_up)
            self._write()
        self._report_change(change)

    def _write(self) -> None:
        by_slots, left_out = self._partitions.by_slots, self._partitions.all()
        if left_out == self._written:
            return
        try:
            write_left_out(self._path, by_slots)
        except OSError as error:
            # Without the file Spark would continue behind the ranges that were left out: the query has to begin again.
            raise RetriableError("NOTE_NOT_WRITTEN", f"what was left out cannot be reported to the planner: {error}") from error
        try:
            write_left_out(self._status_path, left_out)
        except OSError as error:
            _log.warning("what is left out was not written for status: %s", error)
        self._written = left_out
        self._count(left_out)

    def _report_change(self, change: LeftOutChange) -> None:
        for left in change.began[:REPORTED_AT_ONCE]:
            self._report(problem_of_left_out(left))
        more = len(change.began) - REPORTED_AT_ONCE
        if more > 0:
            _log.warning("%d more partitions are left out: `shallow-mirror status` lists them", more)
        for left in change.ended[:REPORTED_AT_ONCE]:
            seconds = (self._now_ms() - left.since_ms) / 1000
            _log.info("%s is copied again, it was left out for %.0f s", left.source.topic_partition, seconds)
        more = len(change.ended) - REPORTED_AT_ONCE
        if more > 0:
            _log.info("%d more partitions are copied again", more)
