"""Driver and commands: the table `problems`: the problems of a run, how often each occurred, and remedies.

Losing it loses no data.

Equal problems are one: they are counted, not repeated. Two are equal when they concern the same topic and differ in nothing but
numbers.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from shallow_mirror.checkpoints.rows.problems import PROBLEMS, CountedProblem, Problem, ProblemKind
from shallow_mirror.checkpoints.tables.best_effort_tables import BestEffortTables
from shallow_mirror.checkpoints.tables.table_protocol import Comparison
from shallow_mirror.logging_setup import fields

_log = logging.getLogger(__name__)

PROBLEMS_TABLE = "problems"

MOST_PROBLEMS = 500
"""Of a run. What it meets after that is counted in one further problem by kind."""

LONGEST_TEXT = 2_000

_LEAST_PAUSE_MS, _MOST_PAUSE_MS = 60_000, 3_600_000
_RUNS_READ = 20


def log_problem(problem: Problem, level: int = logging.WARNING) -> None:
    """Log a problem that no table keeps."""
    described = {"kind": problem.kind.value, "remedy": problem.remedy, "error_name": problem.error_name}
    _log.log(level, "%s (remedy: %s)", problem, problem.remedy, extra=fields(problem=described))


@dataclass(slots=True)
class _Entry:
    counted: CountedProblem
    written: int = 0
    written_at_ms: int = 0

    def is_due(self, now_ms: int) -> bool:
        """Return True at once, then after longer and longer pauses: a month of outage makes hundreds of rows, not a million."""
        if self.written == self.counted.occurrences:
            return False
        pause_ms = max(_LEAST_PAUSE_MS, min(_MOST_PAUSE_MS, (self.written_at_ms - self.counted.first_at_ms) // 2))
        return self.written == 0 or now_ms - self.written_at_ms >= pause_ms


class ProblemLog:
    """Of one run; for any thread. `record` is quick and raises nothing; rows are written in the background."""

    def __init__(self, now_ms: Callable[[], int] = lambda: int(time.time() * 1000)) -> None:
        self._now_ms, self._lock = now_ms, threading.Lock()
        self._entries: dict[object, _Entry] = {}
        self._tables: BestEffortTables | None = None
        self._run_epoch = 0

    def begin(self, tables: BestEffortTables, run_epoch: int) -> None:
        """Write earlier records: until the take-over a run has no number and no table."""
        self._tables, self._run_epoch = tables, run_epoch
        self.write_due()

    def record(self, problem: Problem) -> None:
        with self._lock:
            key = problem.key
            is_one_too_many = key not in self._entries and len(self._entries) >= MOST_PROBLEMS
            if is_one_too_many and problem.kind is not ProblemKind.ENDED:
                text = f"further problems of this kind, beyond {MOST_PROBLEMS} different ones of this run"
                key, problem = problem.kind, Problem(kind=problem.kind, text=text, remedy="see the log of the run")
            entry, now_ms = self._entries.get(key), self._now_ms()
            if entry is None:
                counted = CountedProblem(
                    run_epoch=0,
                    number=len(self._entries) + 1,
                    problem=problem,
                    occurrences=1,
                    first_at_ms=now_ms,
                    last_at_ms=now_ms,
                )
                self._entries[key] = _Entry(counted)
            else:
                more = entry.counted.occurrences + 1
                entry.counted = replace(entry.counted, problem=problem, occurrences=more, last_at_ms=now_ms)
        self.write_due()

    def write_due(self, *, all_of_them: bool = False) -> None:
        """`all_of_them`: at the end of the run."""
        if self._tables is None:
            return
        with self._lock:
            now_ms = self._now_ms()
            due = [
                entry
                for entry in self._entries.values()
                if entry.is_due(now_ms) or (all_of_them and entry.written < entry.counted.occurrences)
            ]
            for entry in due:
                entry.written, entry.written_at_ms = entry.counted.occurrences, now_ms
            rows = [_as_written(entry.counted, self._run_epoch) for entry in due]
        if rows:
            self._tables.append(PROBLEMS_TABLE, PROBLEMS.to_arrow(rows))


def read_problems(tables: BestEffortTables, newest_run_epoch: int) -> tuple[CountedProblem, ...]:
    """Return the problems of the last runs, the latest one last."""
    rows = tables.read(PROBLEMS_TABLE, (Comparison("run_epoch", ">", newest_run_epoch - _RUNS_READ),))
    return merged(PROBLEMS.rows(rows))


def merged(rows: Iterable[CountedProblem]) -> tuple[CountedProblem, ...]:
    """Merge the rows of each problem. Pure."""
    newest: dict[tuple[int, int], CountedProblem] = {}
    for row in rows:
        key = (row.run_epoch, row.number)
        if key not in newest or newest[key].occurrences < row.occurrences:
            newest[key] = row
    return tuple(sorted(newest.values(), key=lambda problem: (problem.last_at_ms, problem.run_epoch, problem.number)))


def _as_written(counted: CountedProblem, run_epoch: int) -> CountedProblem:
    problem = counted.problem
    text, remedy = problem.text[:LONGEST_TEXT], problem.remedy[:LONGEST_TEXT]
    shortened = replace(problem, text=text, remedy=remedy, topic=problem.source_topic)
    return replace(counted, run_epoch=run_epoch, problem=shortened)
