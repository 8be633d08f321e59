"""Driver: keeps the list of partitions that are left out, writes it where the planner and `status` look, and reports changes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from shallow_mirror.checkpoints.positions import Position
from shallow_mirror.checkpoints.problems import Problem
from shallow_mirror.errors import RetriableError
from shallow_mirror.sinks.slot_results import UnfinishedRange
from shallow_mirror.streaming.planning.left_out_partitions import (
    Change,
    LeftOut,
    LeftOutPartitions,
    parse_left_out,
    write_left_out,
)
from shallow_mirror.streaming.planning.planner_state import PlannerNote
from shallow_mirror.streaming.runner.error_hints import problem_of_left_out
from shallow_mirror.types import SourcePartition

_log = logging.getLogger(__name__)

REPORTED_AT_ONCE = 20
"""So many partitions have a line in the log and a row in `problems` each; the number of the others is one more line."""


class LeftOutReports:
    """Of one run, over all its queries. For Spark's callback thread and the mirror's own.

    `path` is for the planner: without it Spark would not be led back. `status_path` is only for people.
    """

    def __init__(
        self,
        path: Path,
        status_path: Path | None,
        *,
        report: Callable[[Problem], None],
        count: Callable[[Sequence[LeftOut]], None],
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._path, self._status_path, self._report, self._count, self._now_ms = path, status_path, report, count, now_ms
        self._lock = threading.Lock()
        self._partitions = LeftOutPartitions()
        self._written: tuple[LeftOut, ...] | None = None

    @property
    def path(self) -> Path:
        return self._path

    def query_begins(self, positions: Mapping[SourcePartition, int]) -> None:
        """Raises RetriableError."""
        with self._lock:
            self._partitions.query_begins(positions)
            self._write()

    def micro_batch_done(self, unfinished: Sequence[UnfinishedRange], known: Mapping[SourcePartition, Position]) -> None:
        """Raises RetriableError where the planner cannot be told."""
        if not unfinished and not self._partitions.by_slots:
            return
        sources = {one.source for one in unfinished} | {one.source for one in self._partitions.by_slots}
        positions = {source: known[source].offset for source in sources if source in known}
        with self._lock:
            change = self._partitions.micro_batch_done(unfinished, positions, self._now_ms())
            self._write()
        self._tell(change)

    def planner_says(self, note: PlannerNote) -> None:
        """Raises RetriableError."""
        if note.waiting_for is not None:
            return
        unanswered = parse_left_out({"partitions": note.left_out})
        with self._lock:
            change = self._partitions.planner_says(unanswered, note.caught_up)
            self._write()
        self._tell(change)

    def _write(self) -> None:
        by_slots, every = self._partitions.by_slots, self._partitions.all()
        if every == self._written:
            return
        try:
            write_left_out(self._path, by_slots)
        except OSError as error:
            raise RetriableError("NOTE_NOT_WRITTEN", f"the planner cannot be told what was left out: {error}") from error
        try:
            write_left_out(self._status_path, every)
        except OSError as error:
            _log.warning("what is left out was not written for status: %s", error)
        self._written = every
        self._count(every)

    def _tell(self, change: Change) -> None:
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
