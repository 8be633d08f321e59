"""For the cli: a look at the groups as tables or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime

from rich.console import Console, Group as Together, RenderableType
from rich.table import Table
from rich.text import Text

from shallow_mirror.groups.report import Group, GroupPartition, GroupsReport, Outcome
from shallow_mirror.plurals import counted


def show(report: GroupsReport, console: Console, *, as_json: bool = False) -> None:
    if as_json:
        print(json.dumps(report.document()), file=console.file)
    else:
        console.print(render(report))


def render(report: GroupsReport) -> RenderableType:
    lines = [f"mirror {report.mirror}: groups of {report.origin}, with their offsets at {report.other}"]
    if report.as_of is not None:
        asked, observed = _time(report.as_of.asked), _time(report.as_of.observed_at)
        after = "none since" if report.as_of.next_at is None else f"the next one {_time(report.as_of.next_at)}"
        lines.append(f"as of {asked}: offsets of the synchronization at {observed}, the last one until then ({after})")
    if not report.groups:
        lines.append("no group has committed offsets there")
    if report.may_hide_groups:
        lines.append(
            f"{report.origin} shows no groups that the mirror's user may not Describe: grant it on the groups, or on the cluster"
        )
    parts: list[RenderableType] = [Text(line) for line in lines]
    for group in report.groups:
        parts += [Text(""), Text(sentence(group, report.origin, report.other)), _table(group.partitions)]
    return Together(*parts)


def sentence(group: Group, origin: str, other: str) -> str:
    """Return the line of a group."""
    outcomes = ", ".join(f"{count:,} {what}" for what, count in sorted(group.outcomes().items()))
    steps = ", ".join(f"{count:,} {what}" for what, count in sorted(group.steps().items())) or "nothing to do"
    repeats = sum(partition.repeats or 0 for partition in group.partitions)
    waits = sum(partition.waits_for or 0 for partition in group.partitions if partition.outcome is Outcome.WAITS)
    at_other = f"at {other}: {group.state}" + (f" ({counted(len(group.clients), 'member')})" if group.clients else "")
    waiting = f", waits for {counted(waits, 'offset')}" if waits else ""
    at_origin = f"; still active at {origin}: stop its consumers before you move it" if group.is_active_at_origin else ""
    return f"{group.name}: {outcomes}; repeats {counted(repeats, 'record')}{waiting}; {at_other}, {steps}{at_origin}"


def _table(partitions: Sequence[GroupPartition]) -> Table:
    table = Table()
    for name in ("topic", "partition", "offset", "target", "to offset", "repeats", "waits for", "committed", "outcome", "reason"):
        table.add_column(name, justify="left" if name in ("topic", "target", "outcome", "reason") else "right", overflow="fold")
    for partition in partitions:
        withheld = f"in quarantine behind it: {counted(partition.withheld, 'record')}" if partition.withheld else ""
        what = partition.step.value if partition.step.value != "none" else partition.outcome.value
        table.add_row(
            Text(partition.topic_partition.topic),
            str(partition.topic_partition.partition),
            _number(partition.offset),
            Text("" if partition.to_topic_partition is None else str(partition.to_topic_partition)),
            _number(partition.to_offset),
            _number(partition.repeats),
            _number(partition.waits_for),
            _number(partition.has),
            what,
            Text("; ".join(filter(None, (partition.reason, withheld)))),
        )
    return table


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _time(at: datetime) -> str:
    return at.isoformat(timespec="seconds")
