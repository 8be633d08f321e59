"""For the cli: what the target of a mirror lacks of the source's ACLs or quotas, as a table or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from shallow_mirror.access.acls import AclReport
from shallow_mirror.access.comparison import AccessReport
from shallow_mirror.access.plan import E
from shallow_mirror.access.quotas import QuotaReport
from shallow_mirror.broker.admin.access import Acl, Quota
from shallow_mirror.plurals import counted


def _show(report: AccessReport[Any, Any], console: Console, table: RenderableType, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(report.document()), file=console.file)
    else:
        console.print(table)


def _render(
    report: AccessReport[Any, E],
    *,
    noun: str,
    planned: str,
    applied: str,
    changes: Iterable[tuple[str, E, str]],
    columns: Sequence[str],
    cells: Callable[[E], Sequence[str]],
) -> RenderableType:
    """Return the counts, and the table of all entries but those that both clusters have.

    `changes`: state, entry and reason of the target's entries that are to be changed. `planned` and `applied`: their counts.
    `cells`: those of an entry in `columns`.
    """
    plan = report.plan
    lines = [
        f"mirror {report.mirror}: {noun}s of {report.source} for {report.target}",
        f"{counted(len(plan.present), noun)} present, {len(plan.to_create):,} to create, {planned}, "
        f"{len(plan.not_copied):,} not copied",
    ]
    if report.is_applied:
        lines.append(f"{len(report.created):,} created, {applied}")
    elif plan.to_create:
        lines.append("create them with --apply")
    table = Table()
    for name in ("state", *columns, "reason"):
        table.add_column(name, overflow="fold")
    not_copied = [("not copied", left.entry, left.reason) for left in plan.not_copied]
    for state, entry, reason in (*_new(report), *changes, *not_copied):
        table.add_row(*(Text(cell) for cell in (state, *cells(entry), reason)))
    parts: list[RenderableType] = [Text(line) for line in lines]
    return Group(*parts, table) if table.row_count else Group(*parts)


def _reasons(report: AccessReport[Any, E]) -> dict[E, str]:
    """Return why entries were refused or withheld."""
    return {left.entry: left.reason for left in report.left}


def _new(report: AccessReport[Any, E]) -> Iterator[tuple[str, E, str]]:
    left = _reasons(report)
    created = frozenset(report.created)
    for entry in report.plan.to_create:
        state = "created" if entry in created else "not created" if entry in left else "to create"
        yield state, entry, left.get(entry, "")


def show_acls(report: AclReport, console: Console, *, as_json: bool = False) -> None:
    _show(report, console, render_acls(report), as_json=as_json)


def render_acls(report: AclReport) -> RenderableType:
    """Return the table of all ACLs but those that both clusters have."""
    return _render(
        report,
        noun=report.noun,
        planned=f"{len(report.plan.to_delete):,} not at the source",
        applied=f"{len(report.deleted):,} deleted, {len(report.left):,} refused or withheld",
        changes=_deletions(report),
        columns=("permission", "operation", "resource", "pattern", "principal", "host"),
        cells=_acl_cells,
    )


def _deletions(report: AclReport) -> Iterator[tuple[str, Acl, str]]:
    left = _reasons(report)
    deleted = frozenset(report.deleted)
    for acl in report.plan.to_delete:
        state = "deleted" if acl in deleted else "not deleted" if acl in left else "to delete"
        yield state, acl, left.get(acl, "" if acl in deleted else "not at the source")


def _acl_cells(acl: Acl) -> tuple[str, ...]:
    pattern = acl.pattern
    return acl.effect, acl.operation, f"{pattern.kind} {pattern.name}", pattern.match, acl.principal, acl.host


def show_quotas(report: QuotaReport, console: Console, *, as_json: bool = False) -> None:
    _show(report, console, render_quotas(report), as_json=as_json)


def render_quotas(report: QuotaReport) -> RenderableType:
    """Return the table of all quotas but those that both clusters have with the same value."""
    return _render(
        report,
        noun=report.noun,
        planned=f"{len(report.plan.different):,} with another value",
        applied=f"{len(report.updated):,} updated, {len(report.left):,} refused",
        changes=_updates(report),
        columns=("entity", "key", "value"),
        cells=_quota_cells,
    )


def _updates(report: QuotaReport) -> Iterator[tuple[str, Quota, str]]:
    left = _reasons(report)
    for entry in report.plan.different:
        is_updated = entry.wanted in report.updated
        reason = left.get(entry.wanted, f"the target {'had' if is_updated else 'has'} {entry.existing:g}")
        yield "updated" if is_updated else "differs", entry.wanted, reason


def _quota_cells(quota: Quota) -> tuple[str, ...]:
    return str(quota.entity), quota.key, f"{quota.value:g}"
