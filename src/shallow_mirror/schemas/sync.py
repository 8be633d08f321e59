"""Driver: the thread beside a running mirror that follows the schemas of the source's registry (`schemas.sync`).

The rules are those of the command `schemas`: ids and versions stay equal, and with one conflict nothing is written. A failed pass
is reported and retried; it never ends the mirror.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator
from datetime import datetime

from shallow_mirror.access import AccessPass, AccessSync, Differences
from shallow_mirror.checkpoints.logs import SchemaImports, UnfinishedImport
from shallow_mirror.checkpoints.logs.runs import Problem, ProblemKind
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.plurals import counted, listed
from shallow_mirror.processes import is_process
from shallow_mirror.schemas.copy import ImportHistory, SchemaReport, copy_between
from shallow_mirror.schemas.registry import open_registries
from shallow_mirror.schemas.schema_plan import GLOBAL

_log = logging.getLogger(__name__)

ABANDONED_AFTER_MS = 600_000
"""An import of another host that is not finished after so long was killed. On this host its process is looked for."""
_CONFLICTS_SHOWN = 3

OpenHistory = Callable[[str], ImportHistory]
"""Of the registry with this URL."""


class SchemaPasses:
    """Compare both registries pass by pass, and register missing versions unless the settings say `report_only`."""

    def __init__(self, config: MirrorConfig, open_history: OpenHistory) -> None:
        self._config = config
        self._open_history = open_history
        self._differences = Differences("schemas")

    def run_pass(self, now: datetime) -> AccessPass:
        """Log the differences before the first change. Raises MirrorError; then some versions may have been registered."""
        at_ms = int(now.timestamp() * 1000)
        with open_registries(self._config) as (source, target):
            history = self._open_history(target.url)
            running = [leftover for leftover in history.unfinished() if not _is_abandoned(leftover, at_ms)]
            report = copy_between(source, target, self._config, history, is_applied=False)
            self._differences.log(list(_differences(report, target.name, has_running=bool(running))))
            is_wanted = not report.is_done and not self._config.schemas.report_only
            if is_wanted and not running and not report.plan.conflicts:
                report = copy_between(source, target, self._config, history, is_applied=True)
                if report.done is not None:
                    _log.info("schemas: %s registered", counted(len(report.done.registered), "version"))
        problem = _conflicts(report, target.name)
        if problem is None and is_wanted and running:
            run = f"{running[0].host}, process {running[0].pid}"
            problem = f"waits for the end of a run of `schemas --apply` ({run}), which registers versions"
        return _as_pass(report, at_ms, problem)

    def close(self) -> None:
        """Nothing stays open: each pass connects for itself."""


def schema_sync(
    config: MirrorConfig,
    interval_s: float,
    storage: TableStorage,
    *,
    report: Callable[[Problem, int], None],
    on_pass: Callable[[AccessPass], None],
) -> AccessSync:
    """Return the thread of a mirror. `storage`: where it records which subjects it sets to mode IMPORT."""
    passes = SchemaPasses(config, lambda registry: SchemaImports.open(storage, registry))
    return AccessSync("schemas", ProblemKind.SCHEMA, interval_s, lambda: passes, report=report, on_pass=on_pass)


def _differences(report: SchemaReport, target: str, *, has_running: bool) -> Iterator[str]:
    plan = report.plan
    for version in plan.to_register:
        yield f"{target} lacks: {version} ({version.schema_id})"
    for version in (version for version in plan.to_delete if version not in plan.to_register):
        yield f"{target} has {version}, which an interrupted run was about to delete softly, as at the source"
    for change in plan.levels:
        has = "no compatibility level" if change.before is None else f"compatibility level {change.before}"
        yield f"{target} has {has} for {_name(change.subject)}, the source {change.after}"
    for subject in plan.to_freeze:
        yield f"{target} does not have mode READONLY for {subject}"
    if report.leftovers and not has_running:
        yield f"{target}: left in mode IMPORT: {listed(leftover.subject for leftover in report.leftovers)}"


def _conflicts(report: SchemaReport, target: str) -> str | None:
    conflicts = (report.after or report.plan).conflicts
    if not conflicts:
        return None
    shown = "; ".join(f"{conflict.version}: {conflict.reason}" for conflict in conflicts[:_CONFLICTS_SHOWN])
    more = f"; and {len(conflicts) - _CONFLICTS_SHOWN} more" if len(conflicts) > _CONFLICTS_SHOWN else ""
    return f"{target}: {counted(len(conflicts), 'conflict')}, nothing is written: {shown}{more}"


def _as_pass(report: SchemaReport, at_ms: int, problem: str | None) -> AccessPass:
    """Return the counts: versions, levels and modes that the target lacks; versions with a conflict are not copied."""
    plan = report.after or report.plan
    return AccessPass(
        at_ms=at_ms,
        lacking=len(plan.to_register) + len(plan.levels) + len(plan.to_freeze),
        created=0 if report.done is None else len(report.done.registered),
        not_copied=len(plan.conflicts),
        problem=problem,
    )


def _is_abandoned(leftover: UnfinishedImport, now_ms: int) -> bool:
    """Return whether the run that has set a subject to mode IMPORT is gone. This thread has none under way between its passes."""
    if leftover.host != socket.gethostname():
        return now_ms - leftover.at_ms > ABANDONED_AFTER_MS
    return leftover.pid == os.getpid() or not is_process(leftover.pid)


def _name(subject: str) -> str:
    return "(global)" if subject == GLOBAL else subject
