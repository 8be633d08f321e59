"""For the cli: quotas that the target of a mirror lacks, as a table or JSON."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType

from shallow_mirror.broker.admin.quota_entries import Quota
from shallow_mirror.operations import access_view
from shallow_mirror.quotas.quota_copy import QuotaReport


def show(report: QuotaReport, console: Console, *, as_json: bool = False) -> None:
    access_view.show(report, console, render(report), as_json=as_json)


def render(report: QuotaReport) -> RenderableType:
    """Return the table of all quotas but those that both clusters have with the same value."""
    return access_view.render(
        report,
        noun="quota",
        planned=f"{len(report.plan.different):,} with another value",
        applied=f"{len(report.updated):,} updated, {len(report.left):,} refused",
        changes=_updates(report),
        columns=("entity", "key", "value"),
        cells=_cells,
    )


def _updates(report: QuotaReport) -> Iterator[tuple[str, Quota, str]]:
    left = access_view.reasons(report)
    for entry in report.plan.different:
        is_updated = entry.wanted in report.updated
        reason = left.get(entry.wanted, f"the target {'had' if is_updated else 'has'} {entry.existing:g}")
        yield "updated" if is_updated else "differs", entry.wanted, reason


def _cells(quota: Quota) -> tuple[str, ...]:
    return str(quota.entity), quota.key, f"{quota.value:g}"
