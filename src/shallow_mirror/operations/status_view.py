"""Driver, for the cli: a status report as tables or JSON, once or repeatedly."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shallow_mirror.access import AccessPass
from shallow_mirror.checkpoints.logs import GroupSyncPass
from shallow_mirror.checkpoints.logs.runs import CountedProblem
from shallow_mirror.checkpoints.rows import PRESERVED, TopicOffsets
from shallow_mirror.operations.status import MicroBatchStatus, RunStatus, StatusReport, total
from shallow_mirror.operations.status_selection import Attention
from shallow_mirror.plurals import counted, listed
from shallow_mirror.streaming.planning import LeftOutPartition
from shallow_mirror.streaming.runs import LIFT
from shallow_mirror.streaming.watch import OpenTransaction, PartitionStatus

_OPEN_SHOWN = 10
PARTITIONS_SHOWN = 40
_UNBROKEN_COLUMNS = 10_000
"""Output into a file or a pipe is not wrapped."""


def stdout_console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_UNBROKEN_COLUMNS)


def show(report: StatusReport, console: Console, *, as_json: bool = False, is_whole: bool = False) -> None:
    """Print the report. `is_whole`: all topics and partitions, as in JSON; otherwise the first that need attention."""
    if as_json:
        print(json.dumps(report.document()), file=console.file)
    else:
        console.print(render(report, is_whole=is_whole))


def watch(
    gather: Callable[[], StatusReport],
    console: Console,
    *,
    interval_s: float,
    as_json: bool = False,
    is_whole: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Show reports until Ctrl-C: in place on a terminal, otherwise one after the other. Raises as `gather`."""
    try:
        if as_json or not console.is_terminal:
            while True:
                show(gather(), console, as_json=as_json, is_whole=is_whole)
                console.file.flush()
                sleep(interval_s)
        with Live(render(gather(), is_whole=is_whole), console=console, auto_refresh=False) as live:
            while True:
                sleep(interval_s)
                live.update(render(gather(), is_whole=is_whole), refresh=True)
    except KeyboardInterrupt:
        return


def render(report: StatusReport, *, is_whole: bool = False) -> RenderableType:
    kind = "restore" if report.is_restore else "mirror"
    lines = [f"{kind} {report.mirror}, {time_of(report.at_ms)}"]
    if report.older_sentence is not None:
        lines.append(report.older_sentence)
    lines += [run_line(report.run), _lag_line(report)]
    if report.source_problem is not None:
        lines.append(f"the source does not answer: {report.source_problem}")
    if report.target_problem is not None:
        lines.append(f"the target does not answer: {report.target_problem}")
    if report.starting is not None:
        lines.append(f"starting, since {time_of(report.starting_since_ms)}: {report.starting}")
    if report.waiting_for is not None:
        lines.append(f"the {kind} waits since {time_of(report.waiting_since_ms)} for: {report.waiting_for}")
    if report.quarantined_batches:
        lines.append(
            f"in quarantine: {counted(report.quarantined_batches, 'batch')}, {counted(report.quarantined_bytes, 'byte')} "
            "(`shallow-mirror quarantine list CONF`)"
        )
    lines += _left_out_lines(report.left_out)
    paused_lines = [
        f"{'handed over' if paused.is_handed_over else 'paused'} since {time_of(paused.since_ms)}: {paused.topic}"
        for paused in report.paused_topics
    ]
    gone_lines = [
        f"deleted at the source, its copies stay on the target: {topic}"
        for topic in report.gone_topics
        if topic not in report.followed_topics
    ]
    for of_topics in (paused_lines, gone_lines, list(report.topic_problems)):
        lines += of_topics if is_whole else _first(of_topics)
    lines += report.changed_settings
    if report.paused_retention:
        lines.append(
            f"retention is paused in {counted(len(report.paused_retention), 'target topic')} ({listed(report.paused_retention)})"
            f": {LIFT} sets the archived values"
        )
    if report.groups is not None:
        lines.append(_groups_line(report.groups))
        if (repeats := report.groups.repeats_sentence) is not None:
            lines.append(f"groups: {repeats}")
    if report.acls is not None:
        lines.append(_access_line("acls", report.acls))
    if report.quotas is not None:
        lines.append(_access_line("quotas", report.quotas))
    if report.schemas is not None:
        lines.append(_access_line("schemas", report.schemas))
    lines += _open_lines(report.open_transactions, report.at_ms)
    lines += _problem_lines(report.problems)
    parts: list[RenderableType] = [Text(line) for line in lines]
    if report.micro_batches:
        parts.append(_micro_batch_table(report.micro_batches))
    attention = Attention(report)
    shown = attention.partitions if is_whole else attention.partitions[:PARTITIONS_SHOWN]
    rest = attention.partitions[len(shown) :]
    if any(topic.offsets == PRESERVED for topic in report.topics):
        hidden = {partition.source.topic for partition in rest} - {partition.source.topic for partition in shown}
        parts.append(_topic_table([topic for topic in report.topics if topic.topic not in hidden]))
    if shown:
        parts.append(_partition_table(shown, is_restore=report.is_restore))
    if rest:
        parts.append(Text(_rest_line(rest, sum(attention.is_needed(partition) for partition in rest))))
    return Group(*parts)


def _rest_line(rest: Sequence[PartitionStatus], needed: int) -> str:
    state = f"{needed:,} of them behind, left out or paused" if needed else "none of them behind, left out or paused"
    topics = counted(len({partition.source.topic for partition in rest}), "topic")
    more = counted(len(rest), "more partition")
    return f"and {more} of {topics}, {state}: --all shows them, --topic NAME those of a topic"


def _first(lines: list[str]) -> list[str]:
    more = len(lines) - _OPEN_SHOWN
    return [*lines[:_OPEN_SHOWN], f"and {counted(more, 'more line')} of this kind: --all shows them"] if more > 0 else lines


def run_line(run: RunStatus | None) -> str:
    if run is None:
        return "no run yet"
    who = run_origin(run)
    if run.outcome is not None:
        return f"{who}: ended {time_of(run.ended_at_ms)}: {run.outcome}"
    if run.is_alive is None:
        return f"{who}: on another host, no exit was recorded"
    return f"{who}: running" if run.is_alive else f"{who}: not running; no exit was recorded (killed?)"


def run_origin(run: RunStatus) -> str:
    return f"run {run.run_epoch} on {run.host} (pid {run.pid}), since {time_of(run.started_at_ms)}"


def _lag_line(report: StatusReport) -> str:
    partitions = report.partitions
    offsets = total([partition.lag_offsets for partition in partitions])
    if report.is_restore:
        return f"{counted(len(partitions), 'partition')}, {counted(offsets, 'offset')} left to restore"
    ages = [partition.lag_ms for partition in partitions if partition.lag_ms is not None]
    oldest_ms = max(ages, default=0) if len(ages) == len(partitions) else None
    return f"{counted(len(partitions), 'partition')}, lag {counted(offsets, 'offset')}, {_number(oldest_ms)} ms"


def _groups_line(sync: GroupSyncPass) -> str:
    at = sync.observed_at.isoformat(timespec="seconds")
    if sync.problem is not None:
        return f"groups: could not be synchronized at {at}: {sync.problem}"
    in_place = sync.in_place_count + sync.committed_count
    line = (
        f"groups: {sync.group_count:,} at {at}: {in_place:,} of {counted(sync.partition_count, 'offset')} in place at the "
        f"target, {sync.waiting_count:,} wait, {sync.left_count:,} are not moved (`shallow-mirror groups CONF`)"
    )
    if sync.is_followed:
        late = f", the oldest that is not there is {sync.oldest_s:.1f} s old" if sync.oldest_s else ""
        return f"{line}; commits are followed: {sync.followed_count:,} since the synchronization before{late}"
    return line


def _access_line(what: str, done: AccessPass) -> str:
    at = time_of(done.at_ms)
    if not done.is_compared:
        return f"{what}: could not be compared at {at}: {done.problem}"
    changed = f", {done.created:,} created" if done.created else ""
    changed += f", {done.deleted:,} deleted" if done.deleted else ""
    problem = "" if done.problem is None else f": {done.problem}"
    return (
        f"{what}: the target lacks {done.lacking:,} at {at}{changed}, {done.not_copied:,} not copied "
        f"(`shallow-mirror {what} CONF`){problem}"
    )


def _open_lines(transactions: tuple[OpenTransaction, ...], at_ms: int) -> list[str]:
    if not transactions:
        return []
    shown = [f"  {txn.sentence(at_ms)}" for txn in transactions[:_OPEN_SHOWN]]
    more = [f"  and {len(transactions) - len(shown):,} more: --json has all"] if len(transactions) > len(shown) else []
    return ["open transactions at the source that the mirror waits for:", *shown, *more]


def _left_out_lines(left_out: tuple[LeftOutPartition, ...]) -> list[str]:
    lines = [
        f"{entry.source.topic_partition} is left out since {time_of(entry.since_ms)} because of the {entry.side.value}: "
        f"{entry.reason}"
        for entry in left_out[:_OPEN_SHOWN]
    ]
    more = len(left_out) - _OPEN_SHOWN
    return [*lines, f"and {more:,} more partitions: --json has all"] if more > 0 else lines


def _problem_lines(problems: tuple[CountedProblem, ...]) -> list[str]:
    if not problems:
        return []
    lines = ["last problems:"]
    for entry in problems:
        problem = entry.problem
        since = f", {entry.occurrences:,} times since {time_of(entry.first_at_ms)}" if entry.occurrences > 1 else ""
        lines += [
            f"  {time_of(entry.last_at_ms)} {problem.kind.value} (run {entry.run_epoch}{since}): {problem}",
            f"    remedy: {problem.remedy}",
        ]
    return lines


def _micro_batch_table(micro_batches: tuple[MicroBatchStatus, ...]) -> Table:
    table = table_of("last micro-batches", ("settled at", "dropped batches"), (
        "micro-batch", "settled at", "records", "MB", "seconds", "raw", "rebuilt", "dropped batches", "lag_offsets",
    ))  # fmt: skip
    for micro_batch in micro_batches:
        dropped = ", ".join(f"{count:,} {kind}" for kind, count in sorted(micro_batch.dropped_batch_counts.items()))
        table.add_row(
            f"{micro_batch.micro_batch}",
            time_of(micro_batch.settled_at_ms),
            f"{micro_batch.record_count:,}",
            f"{micro_batch.size_bytes / 1e6:.1f}",
            f"{micro_batch.seconds:.2f}",
            f"{micro_batch.raw_batch_count:,}",
            f"{micro_batch.rebuilt_batch_count:,}",
            dropped or "none",
            _number(micro_batch.lag_offsets),
        )
    return table


def _topic_table(topics: Sequence[TopicOffsets]) -> Table:
    table = table_of("topics", ("topic", "offsets"), ("topic", "offsets", "fillers"))
    for topic in topics:
        table.add_row(Text(topic.topic), topic.offsets, _number(topic.filler_count))
    return table


def _partition_table(partitions: Sequence[PartitionStatus], *, is_restore: bool) -> Table:
    of_source = ("end", "lag_offsets") if is_restore else ("log end", "lag_offsets", "lag_ms")
    table = table_of("partitions", ("topic",), ("topic", "partition", "position", *of_source))
    for partition in partitions:
        numbers = [partition.position, partition.end, partition.lag_offsets]
        numbers += [] if is_restore else [partition.lag_ms]
        table.add_row(Text(partition.source.topic), str(partition.source.partition), *(_number(number) for number in numbers))
    return table


def table_of(title: str, words: tuple[str, ...], columns: tuple[str, ...]) -> Table:
    """`words` are the columns that hold no numbers."""
    table = Table(title=title, title_justify="left")
    for name in columns:
        table.add_column(name, justify="left" if name in words else "right", overflow="fold")
    return table


def _number(value: int | None) -> str:
    return "?" if value is None else f"{value:,}"


def time_of(at_ms: int | None) -> str:
    return "?" if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")
