"""For the cli: ACLs that the target of a mirror lacks, as a table or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from shallow_mirror.acls.acl_copy import AclReport
from shallow_mirror.broker.admin.acl_entries import Acl
from shallow_mirror.plurals import counted

_COLUMNS = ("state", "permission", "operation", "resource", "pattern", "principal", "host", "reason")


def show(report: AclReport, console: Console, *, as_json: bool = False) -> None:
    if as_json:
        print(json.dumps(report.document()), file=console.file)
    else:
        console.print(render(report))


def render(report: AclReport) -> RenderableType:
    """Return the table of all ACLs but those that both clusters have."""
    plan = report.plan
    lines = [
        f"mirror {report.mirror}: ACLs of {report.source} for {report.target}",
        f"{counted(len(plan.present), 'ACL')} present, {len(plan.to_create):,} to create, {len(plan.to_delete):,} not at the "
        f"source, {len(plan.not_copied):,} not copied",
    ]
    if report.is_applied:
        lines.append(
            f"{len(report.created):,} created, {len(report.deleted):,} deleted, {len(report.left):,} refused or withheld"
        )
    elif plan.to_create:
        lines.append("create them with --apply")
    rows = list(_rows(report))
    parts: list[RenderableType] = [Text(line) for line in lines]
    return Group(*parts, _table(rows)) if rows else Group(*parts)


def _rows(report: AclReport) -> Iterator[tuple[str, Acl, str]]:
    """Yield state, ACL and reason; ACLs of the source where they are not copied, otherwise of the target."""
    left = {entry.acl: entry.reason for entry in report.left}
    created, deleted = frozenset(report.created), frozenset(report.deleted)
    for acl in report.plan.to_create:
        yield "created" if acl in created else "not created" if acl in left else "to create", acl, left.get(acl, "")
    for acl in report.plan.to_delete:
        state = "deleted" if acl in deleted else "not deleted" if acl in left else "to delete"
        yield state, acl, left.get(acl, "" if acl in deleted else "not at the source")
    for entry in report.plan.not_copied:
        yield "not copied", entry.acl, entry.reason


def _table(rows: Iterable[tuple[str, Acl, str]]) -> Table:
    table = Table()
    for name in _COLUMNS:
        table.add_column(name, overflow="fold")
    for state, acl, reason in rows:
        pattern = acl.pattern
        cells = (acl.effect, acl.operation, f"{pattern.kind} {pattern.name}", pattern.match, acl.principal, acl.host, reason)
        table.add_row(state, *(Text(cell) for cell in cells))
    return table
