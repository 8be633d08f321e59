"""For the cli: groups of MirrorMaker 2's topics, and where they continue, as a table or JSON."""

from __future__ import annotations

import json

from rich.console import Console, Group as Together, RenderableType
from rich.table import Table
from rich.text import Text

from shallow_mirror.groups.report import Step
from shallow_mirror.mirror_maker.running.group_positions import MovedGroup, MovedGroups, MovedPartition
from shallow_mirror.plurals import counted

_COLUMNS = ("topic", "partition", "offset", "source offset", "target", "to offset", "result", "step", "reason")
_TEXTS = ("topic", "target", "result", "step", "reason")


def show(report: MovedGroups, console: Console, *, as_json: bool = False) -> None:
    if as_json:
        print(json.dumps(report.document()), file=console.file)
    else:
        console.print(render(report))


def render(report: MovedGroups) -> RenderableType:
    parts: list[RenderableType] = [
        Text(f"mirror {report.mirror}: groups in topics of MirrorMaker 2 at {report.cluster}, with their offsets in its own")
    ]
    for group in report.groups:
        parts += [Text(""), Text(sentence(group)), _table(group)]
    if not report.is_applied and any(_is_to_commit(partition) for group in report.groups for partition in group.partitions):
        parts.append(Text("commit them with --apply"))
    return Together(*parts)


def sentence(group: MovedGroup) -> str:
    """Return the line of a group: exact, how much it repeats, or how many partitions are left."""
    left = [partition for partition in group.partitions if partition.result == "left"]
    repeats = sum(partition.repeats for partition in group.partitions if partition.result != "left")
    words = [f"repeats {counted(repeats, 'record')} at most" if repeats else "exact"] if len(left) < len(group.partitions) else []
    if left:
        words.append(f"{counted(len(left), 'partition')} left")
    return f"{group.name} ({group.state}): {', '.join(words)}"


def _is_to_commit(partition: MovedPartition) -> bool:
    return partition.translated is not None and partition.translated.step is Step.TO_COMMIT


def _table(group: MovedGroup) -> Table:
    table = Table()
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in _TEXTS else "right", overflow="fold")
    for partition in group.partitions:
        translated = partition.translated
        to = None if translated is None else translated.to_topic_partition
        table.add_row(
            Text(partition.copy.topic),
            str(partition.copy.partition),
            _number(partition.position),
            _number(partition.found.offset),
            Text("" if to is None else str(to)),
            _number(None if translated is None else translated.to_offset),
            partition.result,
            "" if translated is None or translated.step is Step.NONE else translated.step.value,
            Text(partition.reasons),
        )
    return table


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
