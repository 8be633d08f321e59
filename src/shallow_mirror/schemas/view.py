"""For the cli: schemas that the target of a mirror lacks, as a table or JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from shallow_mirror.plurals import counted, listed
from shallow_mirror.schemas.copy import SchemaReport
from shallow_mirror.schemas.schema_plan import GLOBAL, Conflict
from shallow_mirror.schemas.subject_versions import SubjectVersion

_COLUMNS = ("state", "subject", "version", "id", "type", "reason")
_Row = tuple[str, str, str, str, str, str]


def show(report: SchemaReport, console: Console, *, as_json: bool = False) -> None:
    if as_json:
        print(json.dumps(report.document()), file=console.file)
    else:
        console.print(render(report))


def render(report: SchemaReport) -> RenderableType:
    """Return the result in sentences, and a table of all versions but those that both registries have."""
    rows = list(_rows(report))
    parts: list[RenderableType] = [Text(line) for line in _lines(report)]
    if not rows:
        return Group(*parts)
    table = Table()
    for name in _COLUMNS:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return Group(*parts, table)


def _lines(report: SchemaReport) -> Iterator[str]:
    plan = report.plan
    yield f"mirror {report.mirror}: schemas of {report.source} for {report.target}"
    yield (
        f"{counted(report.subjects, 'subject')}: {counted(len(plan.present), 'version')} present, {len(plan.to_register):,} to "
        f"register, {counted(len(plan.conflicts), 'conflict')}"
    )
    yield from _leftover_lines(report)
    if plan.conflicts:
        yield "nothing was written: solve the conflicts at one side, or leave the subjects out (schemas.exclude)"
    elif report.done is None and not report.is_done:
        yield "do it with --apply"
    if report.done is not None and not report.is_done:
        yield "the target still lacks something: run the command again, which names it"


def _leftover_lines(report: SchemaReport) -> Iterator[str]:
    """Return a line for each run that was killed."""
    subjects: dict[tuple[str, int], list[str]] = {}
    for leftover in report.leftovers:
        subjects.setdefault((leftover.host, leftover.pid), []).append(leftover.subject)
    end = "and set back now" if report.done is not None else "which --apply sets back"
    for (host, pid), of_run in subjects.items():
        yield f"{listed(of_run)}: left in mode IMPORT by a run on {host} (process {pid}) that did not end, {end}"


def _rows(report: SchemaReport) -> Iterator[_Row]:
    plan, is_done = report.plan, report.done is not None
    for conflict in plan.conflicts:
        yield _row("conflict", conflict)
    for version in plan.to_register:
        deleted = "softly deleted, as at the source" if version.is_deleted else ""
        yield _row("registered" if is_done else "to register", Conflict(version, deleted))
    for version in (version for version in plan.to_delete if version not in plan.to_register):
        reason = "softly, as at the source: an earlier run that did not end has registered it"
        yield _row("deleted" if is_done else "to delete", Conflict(version, reason))
    for change in plan.levels:
        subject = "(global)" if change.subject == GLOBAL else change.subject
        before = "" if change.before is None else f", before {change.before}"
        yield "set" if is_done else "to set", subject, "", "", "", f"compatibility {change.after}{before}"
    for subject in plan.to_freeze:
        yield "set" if is_done else "to set", subject, "", "", "", "mode READONLY, as at the source"
    for note in plan.notes:
        yield _row("left", note)
    for conflict in () if report.after is None else report.after.conflicts:
        yield _row("conflict now", conflict)


def _row(state: str, entry: Conflict) -> _Row:
    version: SubjectVersion = entry.version
    return state, version.subject, str(version.version), str(version.id), version.schema.type, entry.reason
