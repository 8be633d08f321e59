"""Driver: quotas of the source followed by a running mirror (`quotas.sync`), by the rules of the command `quotas`."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from shallow_mirror.acls.access_state import AccessPass
from shallow_mirror.acls.access_sync import AccessSync, Differences, problem_of
from shallow_mirror.checkpoints.problems import Problem, ProblemKind
from shallow_mirror.config import MirrorConfig
from shallow_mirror.pass_thread import REQUEST_S
from shallow_mirror.plurals import counted
from shallow_mirror.quotas.quota_copy import QuotaStore, apply_quotas, compare_quotas, quota_stores

_log = logging.getLogger(__name__)


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
