"""For the cli: quotas that the target of a mirror lacks, as a table or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from shallow_mirror.broker.admin.quota_entries import Quota
from shallow_mirror.plurals import counted
from shallow_mirror.quotas.quota_copy import QuotaReport

_COLUMNS = ("state", "entity", "key", "value", "reason")


def show(report: QuotaReport, console: Console, *, as_json: bool = False) -> None:
    if as_json:
        print(json.dumps(report.document()), file=console.file)
    else:
        console.print(render(report))


def render(report: QuotaReport) -> RenderableType:
    """Return the table of all quotas but those that both clusters have with the same value."""
    plan = report.plan
    lines = [
        f"mirror {report.mirror}: quotas of {report.source} for {report.target}",
        f"{counted(len(plan.present), 'quota')} present, {len(plan.to_create):,} to create, {len(plan.different):,} with another "
        f"value, {len(plan.not_copied):,} not copied",
    ]
    if report.is_applied:
        lines.append(f"{len(report.created):,} created, {len(report.updated):,} updated, {len(report.left):,} refused")
    elif plan.to_create:
        lines.append("create them with --apply")
    rows = list(_rows(report))
    parts: list[RenderableType] = [Text(line) for line in lines]
    return Group(*parts, _table(rows)) if rows else Group(*parts)


def _rows(report: QuotaReport) -> Iterator[tuple[str, Quota, str]]:
    """Yield state, quota and reason; quotas of the source where they are not copied, otherwise of the target."""
    left = {entry.quota: entry.reason for entry in report.left}
    for quota in report.plan.to_create:
        state = "created" if quota in report.created else "not created" if quota in left else "to create"
        yield state, quota, left.get(quota, "")
    for entry in report.plan.different:
        is_updated = entry.wanted in report.updated
        reason = left.get(entry.wanted, f"the target {'had' if is_updated else 'has'} {entry.existing:g}")
        yield "updated" if is_updated else "differs", entry.wanted, reason
    for not_copied in report.plan.not_copied:
        yield "not copied", not_copied.quota, not_copied.reason


def _table(rows: list[tuple[str, Quota, str]]) -> Table:
    table = Table()
    for name in _COLUMNS:
        table.add_column(name, overflow="fold")
    for state, quota, reason in rows:
        table.add_row(state, *(Text(cell) for cell in (str(quota.entity), quota.key, f"{quota.value:g}", reason)))
    return table
