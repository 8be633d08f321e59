"""Driver, for the cli: the status of a DataFrame sink as tables or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from shallow_mirror.operations.sink_status import SinkMicroBatch, SinkPartition, SinkStatus, UnsettledTransaction
from shallow_mirror.operations.status import RunStatus
from shallow_mirror.operations.status_view import PARTITIONS_SHOWN, run_origin, table_of, time_of
from shallow_mirror.plurals import counted


def show(report: SinkStatus, console: Console, *, as_json: bool = False, is_whole: bool = False) -> None:
    """Print the report. `is_whole`: all partitions, as in JSON."""
    if as_json:
        print(json.dumps(report.document()), file=console.file)
    else:
        console.print(render(report, is_whole=is_whole))


def render(report: SinkStatus, *, is_whole: bool = False) -> RenderableType:
    lines = [f"sink {report.sink}, {time_of(report.at_ms)}", _run_line(report.run), *_newest_lines(report.micro_batches)]
    lines += _unsettled_lines(report.unsettled, report.run)
    parts: list[RenderableType] = [Text(line) for line in lines]
    if report.micro_batches:
        parts.append(_micro_batch_table(report.micro_batches))
    shown = report.partitions if is_whole else report.partitions[:PARTITIONS_SHOWN]
    if shown:
        parts.append(_partition_table(shown))
    if len(shown) < len(report.partitions):
        parts.append(Text(f"and {counted(len(report.partitions) - len(shown), 'more partition')}: --all shows them"))
    return Group(*parts)


def _run_line(run: RunStatus | None) -> str:
    """Return the line of the run. A sink records no exit: its process may be a notebook that does nothing."""
    if run is None:
        return "no run yet"
    if run.is_alive is None:
        return f"{run_origin(run)}: on another host"
    return f"{run_origin(run)}: {'its process is running' if run.is_alive else 'its process has ended'}"


def _newest_lines(micro_batches: Sequence[SinkMicroBatch]) -> list[str]:
    if not micro_batches:
        return ["no micro-batch was decided yet"]
    newest = micro_batches[-1]
    lines = [f"last decision: {_identity(newest)}, {time_of(newest.decided_at_ms)}"]
    if newest.source_offsets is not None:
        lines.append(f"ends of its sources: {' '.join(newest.source_offsets.split())}")
    return lines


def _identity(micro_batch: SinkMicroBatch) -> str:
    if micro_batch.job_id is not None:
        return f"job {micro_batch.job_id}"
    return f"batch {micro_batch.batch_id} of query {micro_batch.query_id}"


def _unsettled_lines(unsettled: Sequence[UnsettledTransaction], run: RunStatus | None) -> list[str]:
    if not unsettled:
        return []
    rest = "" if run is not None and run.is_alive else "; the next run of the sink commits or repeats them"
    lines = [f"decided, and not known to be visible{rest}:"]
    for txn in unsettled:
        state = "committed, a partition has not accepted the marker" if txn.waits_for_marker else "its commit is not confirmed"
        lines.append(f"  {txn.transactional_id} (producer id {txn.producer_id}, epoch {txn.producer_epoch}): {state}")
    return lines


def _micro_batch_table(micro_batches: Sequence[SinkMicroBatch]) -> Table:
    table = table_of("last micro-batches", ("decided at", "micro-batch", "state"), (
        "decision", "decided at", "run", "micro-batch", "records", "MB", "state",
    ))  # fmt: skip
    for micro_batch in micro_batches:
        table.add_row(
            f"{micro_batch.decision}",
            time_of(micro_batch.decided_at_ms),
            f"{micro_batch.run_epoch}",
            Text(_identity(micro_batch)),
            f"{micro_batch.record_count:,}",
            f"{micro_batch.size_bytes / 1e6:.1f}",
            "visible" if micro_batch.is_settled else "decided",
        )
    return table


def _partition_table(partitions: Sequence[SinkPartition]) -> Table:
    table = table_of("target partitions", ("topic",), ("topic", "partition", "end", "records", "MB"))
    for partition in partitions:
        table.add_row(
            Text(partition.topic),
            str(partition.partition),
            f"{partition.end:,}",
            f"{partition.record_count:,}",
            f"{partition.size_bytes / 1e6:.1f}",
        )
    return table
