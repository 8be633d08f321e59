"""For the cli: ACLs that the target of a mirror lacks, as a table or JSON."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, RenderableType

from shallow_mirror.acls.acl_copy import AclReport
from shallow_mirror.broker.admin.acl_entries import Acl
from shallow_mirror.operations import access_view


def show(report: AclReport, console: Console, *, as_json: bool = False) -> None:
    access_view.show(report, console, render(report), as_json=as_json)


def render(report: AclReport) -> RenderableType:
    """Return the table of all ACLs but those that both clusters have."""
    return access_view.render(
        report,
        noun="ACL",
        planned=f"{len(report.plan.to_delete):,} not at the source",
        applied=f"{len(report.deleted):,} deleted, {len(report.left):,} refused or withheld",
        changes=_deletions(report),
        columns=("permission", "operation", "resource", "pattern", "principal", "host"),
        cells=_cells,
    )


def _deletions(report: AclReport) -> Iterator[tuple[str, Acl, str]]:
    left = access_view.reasons(report)
    deleted = frozenset(report.deleted)
    for acl in report.plan.to_delete:
        state = "deleted" if acl in deleted else "not deleted" if acl in left else "to delete"
        yield state, acl, left.get(acl, "" if acl in deleted else "not at the source")


def _cells(acl: Acl) -> tuple[str, ...]:
    pattern = acl.pattern
    return acl.effect, acl.operation, f"{pattern.kind} {pattern.name}", pattern.match, acl.principal, acl.host
