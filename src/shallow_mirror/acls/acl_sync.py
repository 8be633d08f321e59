"""Driver: ACLs of the source followed by a running mirror (`acls.sync`), by the rules of the command `acls`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from shallow_mirror.acls.access_state import AccessPass
from shallow_mirror.acls.access_sync import AccessSync, Differences, problem_of
from shallow_mirror.acls.acl_copy import AclReport, AclStore, acl_rules, acl_stores, apply_plan, compare_acls
from shallow_mirror.checkpoints.problems import Problem, ProblemKind
from shallow_mirror.config import MirrorConfig
from shallow_mirror.pass_thread import REQUEST_S
from shallow_mirror.plurals import counted

_log = logging.getLogger(__name__)


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
