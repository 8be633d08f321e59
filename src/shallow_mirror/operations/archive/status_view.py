"""Driver, for the cli: the status of an archive as a table or JSON."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from shallow_mirror.operations.archive.status import ArchiveStatus, DeletedTopic
from shallow_mirror.operations.status_view import run_line
from shallow_mirror.plurals import counted

_MOST_LEFT_OUT = 10
_MOST_LINEAGES = 10
_MOST_DELETED = 10
_MOST_THREATS = 10


def show(status: ArchiveStatus, console: Console, *, as_json: bool = False) -> None:
    if as_json:
        print(json.dumps(status.document()), file=console.file)
    else:
        console.print(render(status))


def render(status: ArchiveStatus) -> RenderableType:
    size_bytes = sum(topic.size_bytes for topic in status.topics)
    lines = [
        f"archive {status.archive}, {_time(status.at_ms)}",
        run_line(status.run),
        f"last decision: micro-batch {status.micro_batch}, {_time(status.decided_at_ms)}",
        f"{counted(len(status.topics), 'topic')}, {counted(size_bytes, 'byte')}",
    ]
    if status.source_problem is not None:
        lines.append(f"the source does not answer: {status.source_problem}")
    if status.waiting_for is not None:
        lines.append(f"the archive waits for: {status.waiting_for}")
    if status.deleting_bytes:
        lines.append(
            f"deletion of {counted(status.deleting_bytes, 'byte')} began: the running archive, its next start or "
            "`shallow-mirror archive expire FILE` finishes it"
        )
    lines += [
        f"{entry.source.topic_partition} is left out since {_time(entry.since_ms)} because of the {entry.side.value}: "
        f"{entry.reason}"
        for entry in status.left_out[:_MOST_LEFT_OUT]
    ]
    if len(status.left_out) > _MOST_LEFT_OUT:
        lines.append(f"and {len(status.left_out) - _MOST_LEFT_OUT:,} more partitions: --json has all")
    lines += _deleted_lines(status)
    lines += _retention_lines(status)
    lines += _lineage_lines(status)
    parts: list[RenderableType] = [Text(line) for line in lines]
    if status.topics:
        parts.append(_table(status))
    return Group(*parts)


def _deleted_lines(status: ArchiveStatus) -> list[str]:
    lines = [
        f"{topic.topic} (id {topic.topic_id}) was deleted at the source, missed since {_time(topic.missed_since_ms)}: "
        f"{counted(topic.size_bytes, 'byte')} are kept {_until(topic)}"
        for topic in status.deleted_topics
    ]
    more = [f"and {len(lines) - _MOST_DELETED:,} more deleted topics: --json has all"] if len(lines) > _MOST_DELETED else []
    return lines[:_MOST_DELETED] + more


def _until(topic: DeletedTopic) -> str:
    return "(deleted_topics.keep: forever)" if topic.kept_until_ms is None else f"until {_time(topic.kept_until_ms)}"


def _retention_lines(status: ArchiveStatus) -> list[str]:
    if status.retention_problem is not None:
        return [
            f"whether retention at the source deletes records before they are archived is not known: {status.retention_problem}"
        ]
    lines = [threat.sentence() for threat in status.retention_threats[:_MOST_THREATS]]
    if len(status.retention_threats) > _MOST_THREATS:
        lines.append(f"and {len(status.retention_threats) - _MOST_THREATS:,} more threatened partitions: --json has all")
    if lines:
        lines.append("raise retention.ms or retention.bytes of these topics at the source until the archive has caught up")
    return lines


def _lineage_lines(status: ArchiveStatus) -> list[str]:
    """Return the records that the source has lost and the archive has, by partition."""
    lines = [
        f"{topic.topic}-{partition.partition}: the source's log was truncated, lineage {partition.lineage} is captured; "
        f"offsets {former.start} to {former.end - 1} of lineage {former.lineage} are in the archive only (until.lineage)"
        for topic in status.topics
        for partition in topic.partitions
        for former in partition.former_lineages
    ]
    more = [f"and {len(lines) - _MOST_LINEAGES:,} more truncated logs: --json has all"] if len(lines) > _MOST_LINEAGES else []
    return lines[:_MOST_LINEAGES] + more


def _table(status: ArchiveStatus) -> Table:
    table = Table(title="topics (offsets over all partitions; --json has each)", title_justify="left")
    table.add_column("topic", overflow="fold")
    for name in ("partitions", "first offset", "last offset", "records", "bytes", "oldest", "newest", "lag_offsets"):
        table.add_column(name, justify="right", overflow="fold")
    for topic in status.topics:
        table.add_row(
            Text(topic.topic),
            f"{len(topic.partitions):,}",
            _number(topic.first_offset, "none"),
            _number(topic.last_offset, "none"),
            f"{topic.record_count:,}",
            f"{topic.size_bytes:,}",
            _time(topic.oldest_timestamp_ms),
            _time(topic.newest_timestamp_ms),
            _number(topic.lag_offsets, "?"),
        )
    return table


def _number(value: int | None, unknown: str) -> str:
    return unknown if value is None else f"{value:,}"


def _time(at_ms: int | None) -> str:
    """Return a timestamp as a date. Producers set them: some are none."""
    if at_ms is None:
        return "?"
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return f"{at_ms} ms"
