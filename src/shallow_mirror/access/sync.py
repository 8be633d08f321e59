"""Driver: the thread beside a running mirror that follows ACLs or quotas of the source (`acls.sync`, `quotas.sync`).

It has its own connections, works a tenth of the time at most, and no micro-batch waits for it. A failed pass is reported and
retried; it never ends the mirror. The rules are those of the commands `acls` and `quotas`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from shallow_mirror.access.acls import AclReport, AclStore, acl_rules, acl_stores, apply_plan, compare_acls
from shallow_mirror.access.comparison import AccessReport
from shallow_mirror.access.plan import AccessPass
from shallow_mirror.access.quotas import QuotaStore, apply_quotas, compare_quotas, quota_stores
from shallow_mirror.checkpoints.logs.runs import Problem, ProblemKind, log_problem
from shallow_mirror.config import MirrorConfig
from shallow_mirror.pass_thread import REQUEST_S, Passes, PassThread
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


class AclPasses:
    """Compare the ACLs of both clusters pass by pass, and create what is missing unless `acls.report_only` is set."""

    def __init__(self, config: MirrorConfig, source: AclStore, target: AclStore) -> None:
        self._config = config
        self._source = source
        self._target = target
        self._differences = Differences("acls")

    def run_pass(self, now: datetime) -> AccessPass:
        """Log the differences before the first change. Raises MirrorError; then some ACLs may have been created."""
        config = self._config
        report = compare_acls(self._source, self._target, config, acl_rules(config))
        self._differences.log(_sentences(report, is_deleting=config.acls.delete))
        if not config.acls.report_only:
            report = self._apply(report)
        return AccessPass(
            at_ms=int(now.timestamp() * 1000),
            lacking=len(report.plan.to_create) - len(report.created),
            created=len(report.created),
            deleted=len(report.deleted),
            not_copied=len(report.plan.not_copied),
            problem=problem_of(report, "did not take", "ACL"),
        )

    def close(self) -> None:
        """Nothing stays open: each request connects for itself."""

    def _apply(self, report: AclReport) -> AclReport:
        is_deleting = self._config.acls.delete
        if not report.plan.to_create and not (is_deleting and report.plan.to_delete):
            return replace(report, is_applied=True)
        applied = apply_plan(self._target, report, is_deleting=is_deleting)
        _log.info(
            "acls: %s created, %d deleted, %d refused or withheld",
            counted(len(applied.created), "ACL"),
            len(applied.deleted),
            len(applied.left),
        )
        return applied


def acl_sync(
    config: MirrorConfig,
    interval_s: float,
    *,
    report: Callable[[Problem, int], None],
    on_pass: Callable[[AccessPass], None],
) -> AccessSync:
    """Return the thread of a mirror."""
    source, target = acl_stores(config, timeout_s=REQUEST_S)
    return AccessSync(
        "acls",
        ProblemKind.ACL,
        interval_s,
        lambda: AclPasses(config, source, target),
        report=report,
        on_pass=on_pass,
    )


def _sentences(report: AclReport, *, is_deleting: bool) -> list[str]:
    lacking = [f"{report.target} lacks: {acl}" for acl in report.plan.to_create]
    return lacking + [f"{report.source} does not have: {acl}" for acl in report.plan.to_delete if is_deleting]


class QuotaPasses:
    """Compare the quotas of both clusters pass by pass, and create what is missing unless `quotas.report_only` is set."""

    def __init__(self, config: MirrorConfig, source: QuotaStore, target: QuotaStore) -> None:
        self._config = config
        self._source = source
        self._target = target
        self._differences = Differences("quotas")

    def run_pass(self, now: datetime) -> AccessPass:
        """Log the differences before the first change. Raises MirrorError; then some quotas may have been set."""
        settings = self._config.quotas
        report = compare_quotas(self._source, self._target, self._config)
        lacking = [f"{report.target} lacks: {quota}" for quota in report.plan.to_create]
        self._differences.log(lacking + [f"{report.target} has another value: {entry}" for entry in report.plan.different])
        if not settings.report_only:
            report = apply_quotas(self._target, report, is_updating=settings.update)
            if report.created or report.updated:
                _log.info("quotas: %s created, %d updated", counted(len(report.created), "quota"), len(report.updated))
        return AccessPass(
            at_ms=int(now.timestamp() * 1000),
            lacking=len(report.plan.to_create) - len(report.created),
            created=len(report.created) + len(report.updated),
            not_copied=len(report.plan.not_copied),
            problem=problem_of(report, "refused", "quota"),
        )

    def close(self) -> None:
        """Nothing stays open: each request connects for itself."""


def quota_sync(
    config: MirrorConfig,
    interval_s: float,
    *,
    report: Callable[[Problem, int], None],
    on_pass: Callable[[AccessPass], None],
) -> AccessSync:
    """Return the thread of a mirror."""
    source, target = quota_stores(config, timeout_s=REQUEST_S)
    return AccessSync(
        "quotas",
        ProblemKind.QUOTA,
        interval_s,
        lambda: QuotaPasses(config, source, target),
        report=report,
        on_pass=on_pass,
    )
