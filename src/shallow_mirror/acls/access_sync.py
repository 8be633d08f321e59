"""Driver: the thread beside a running mirror that follows ACLs or quotas of the source.

It has its own connections, works a tenth of the time at most, and no micro-batch waits for it. A failed pass is reported and
retried; it never ends the mirror.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from shallow_mirror.acls.access_report import AccessReport
from shallow_mirror.acls.access_state import AccessPass
from shallow_mirror.checkpoints.problem_log import log_problem
from shallow_mirror.checkpoints.problems import Problem, ProblemKind
from shallow_mirror.pass_thread import Passes, PassThread
from shallow_mirror.plurals import counted

_log = logging.getLogger(__name__)

SHOWN = 20
"""Differences with a log line of their own."""

REFUSED_SHOWN = 3

REMEDY = "do what the message says, if it asks for something; the comparison is repeated automatically"


def problem_of(report: AccessReport[Any, Any], sentence: str, noun: str) -> str | None:
    """Return what the target did not get; None: nothing. `sentence`: what the target did with them."""
    if not report.left:
        return None
    shown = "; ".join(f"{left.entry}: {left.reason}" for left in report.left[:REFUSED_SHOWN])
    more = f"; and {len(report.left) - REFUSED_SHOWN} more" if len(report.left) > REFUSED_SHOWN else ""
    return f"{report.target} {sentence} {counted(len(report.left), noun)}: {shown}{more}"


@dataclass(slots=True)
class Differences:
    """Log differences once: what the last pass has logged is not logged again."""

    what: str
    _logged: frozenset[str] = field(default_factory=frozenset)

    def log(self, sentences: list[str]) -> None:
        new = [sentence for sentence in sentences if sentence not in self._logged]
        self._logged = frozenset(sentences)
        for sentence in new[:SHOWN]:
            _log.info("%s: %s", self.what, sentence)
        if len(new) > SHOWN:
            _log.info("%s: and %d more differences", self.what, len(new) - SHOWN)


class AccessSync(PassThread[AccessPass]):
    """`what`: "acls" or "quotas"; `on_pass` is called with every pass, also one that failed."""

    def __init__(
        self,
        what: str,
        kind: ProblemKind,
        interval_s: float,
        open_passes: Callable[[], Passes[AccessPass]],
        *,
        report: Callable[[Problem, int], None] = log_problem,
        on_pass: Callable[[AccessPass], None],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        super().__init__(
            f"{what}-sync",
            interval_s,
            now,
            abandoned=f"{what}: the comparison that runs did not end within %.0f s and was abandoned",
            recovered=f"{what}: compared again",
        )
        self._what = what
        self._kind = kind
        self._open_passes = open_passes
        self._report = report
        self._on_pass = on_pass
        self._refused: str | None = None

    def open_passes(self) -> Passes[AccessPass]:
        return self._open_passes()

    def on_failure(self, error: Exception, problem: str, now: datetime, level: int) -> None:
        self._record(f"not compared: {problem}", level, type(error).__name__)
        self._on_pass(AccessPass(at_ms=int(now.timestamp() * 1000), is_compared=False, problem=problem))

    def on_done(self, done: AccessPass) -> None:
        if done.problem is not None:
            self._record(done.problem, logging.DEBUG if done.problem == self._refused else logging.WARNING)
        self._refused = done.problem
        self._on_pass(done)

    def _record(self, text: str, level: int, error_name: str | None = None) -> None:
        self._report(Problem(kind=self._kind, text=f"{self._what}: {text}", remedy=REMEDY, error_name=error_name), level)
