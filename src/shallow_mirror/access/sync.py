"""Driver: the thread beside a running mirror that follows ACLs or quotas of the source (`acls.sync`, `quotas.sync`).

It has its own connections, works a tenth of the time at most, and no micro-batch waits for it. A failed pass is reported and
retried; it never ends the mirror. The rules are those of the commands `acls` and `quotas`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from shallow_mirror.access.acls import AclCopy, AclStore, acl_stores
from shallow_mirror.access.comparison import AccessCopy, AccessReport
from shallow_mirror.access.plan import AccessPass
from shallow_mirror.access.quotas import QuotaCopy, QuotaStore, quota_stores
from shallow_mirror.checkpoints.logs.runs import Problem, ProblemKind, log_problem
from shallow_mirror.config import MirrorConfig
from shallow_mirror.pass_thread import REQUEST_S, Passes, PassThread

_log = logging.getLogger(__name__)

SHOWN = 20
"""Differences with a log line of their own."""

REMEDY = "do what the message says, if it asks for something; the comparison is repeated automatically"


@dataclass(slots=True)
class Differences:
    """Log differences once: those of the last pass are not logged again."""

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


class AccessPasses:
    """Compare both clusters pass by pass, and create missing entries unless the settings say `report_only`."""

    def __init__(self, what: str, copy: AccessCopy[Any], *, is_report_only: bool) -> None:
        self._what = what
        self._copy = copy
        self._is_report_only = is_report_only
        self._differences = Differences(what)

    def run_pass(self, now: datetime) -> AccessPass:
        """Log the differences before the first change. Raises MirrorError; then some entries may have been changed."""
        report: AccessReport[Any, Any] = self._copy.compare()
        self._differences.log(report.differences())
        if not self._is_report_only:
            report = self._copy.apply(report)
            if outcome := report.outcome():
                _log.info("%s: %s", self._what, outcome)
        return report.as_pass(int(now.timestamp() * 1000))

    def close(self) -> None:
        """Nothing stays open: each request connects for itself."""


def acl_passes(config: MirrorConfig, source: AclStore, target: AclStore) -> AccessPasses:
    copy = AclCopy(config, source, target, is_deleting=config.acls.delete)
    return AccessPasses("acls", copy, is_report_only=config.acls.report_only)


def quota_passes(config: MirrorConfig, source: QuotaStore, target: QuotaStore) -> AccessPasses:
    copy = QuotaCopy(config, source, target, is_updating=config.quotas.update)
    return AccessPasses("quotas", copy, is_report_only=config.quotas.report_only)


def acl_sync(
    config: MirrorConfig, interval_s: float, *, report: Callable[[Problem, int], None], on_pass: Callable[[AccessPass], None]
) -> AccessSync:
    """Return the thread of a mirror."""
    stores = acl_stores(config, timeout_s=REQUEST_S)
    return AccessSync("acls", ProblemKind.ACL, interval_s, lambda: acl_passes(config, *stores), report=report, on_pass=on_pass)


def quota_sync(
    config: MirrorConfig, interval_s: float, *, report: Callable[[Problem, int], None], on_pass: Callable[[AccessPass], None]
) -> AccessSync:
    """Return the thread of a mirror."""
    stores = quota_stores(config, timeout_s=REQUEST_S)
    return AccessSync(
        "quotas", ProblemKind.QUOTA, interval_s, lambda: quota_passes(config, *stores), report=report, on_pass=on_pass
    )
