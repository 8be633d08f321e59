"""For the cli: what the target of a mirror lacks of the source's ACLs or quotas, as a table or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from shallow_mirror.acls.access_plan import E
from shallow_mirror.acls.access_report import AccessReport
from shallow_mirror.plurals import counted


def show(report: AccessReport[Any, Any], console: Console, table: RenderableType, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(report.document()), file=console.file)
    else:
        console.print(table)


def render(
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

    `changes`: state, entry and reason of what the target has, and is to be changed. `planned` and `applied`: their counts.
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
    for state, entry, reason in (*_new(report), *changes, *_not_copied(report)):
        table.add_row(*(Text(cell) for cell in (state, *cells(entry), reason)))
    parts: list[RenderableType] = [Text(line) for line in lines]
    return Group(*parts, table) if table.row_count else Group(*parts)


def reasons(report: AccessReport[Any, E]) -> dict[E, str]:
    """Return why entries were refused or withheld."""
    return {left.entry: left.reason for left in report.left}


def _new(report: AccessReport[Any, E]) -> Iterator[tuple[str, E, str]]:
    left = reasons(report)
    created = frozenset(report.created)
    for entry in report.plan.to_create:
        state = "created" if entry in created else "not created" if entry in left else "to create"
        yield state, entry, left.get(entry, "")


def _not_copied(report: AccessReport[Any, E]) -> Iterator[tuple[str, E, str]]:
    """Yield entries of the source."""
    for not_copied in report.plan.not_copied:
        yield "not copied", not_copied.entry, not_copied.reason
