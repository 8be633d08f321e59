"""Driver: what happened in a demo, as short tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from shallow_mirror.demo.checker import Comparison
from shallow_mirror.demo.map_rows import Totals, offset_map_path
from shallow_mirror.demo.restored_topic import RestoredTopic
from shallow_mirror.demo.traffic import TrafficReport
from shallow_mirror.plurals import counted
from shallow_mirror.types import TopicPartition

_SHOWN_DIFFERENCES = 20
_WHY_DROPPED = {
    "aborted": "records of transactions that were aborted at the source",
    "commit": "markers: the target has its own transactions",
    "abort": "markers: the target has its own transactions",
    "gap": "offsets without a record",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """When the first run was killed. `open_on`: target topic-partitions with a transaction that was certainly open."""

    after_s: float
    visible_offsets: int
    open_on: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The result. `kill` is None when the mirror ended before it could be killed. `surprises`: problems besides records."""

    traffic: TrafficReport
    totals: Mapping[tuple[str, str], Totals]
    kill: Kill | None
    recovery: tuple[tuple[str, str], ...]
    comparison: Comparison
    surprises: tuple[str, ...]
    seconds: float
    restored: RestoredTopic | None = None

    @property
    def is_equal(self) -> bool:
        return not self.comparison.differences and not self.surprises


def show(console: Console, result: DemoResult, *, conf: Path, tables: Path, is_kept: bool) -> None:
    console.print(_copied(result))
    console.print(_dropped(result))
    _line(console, "source transactions", f"{result.traffic.committed_txns} committed, {result.traffic.aborted_txns} aborted")
    _line(console, "killed", _killed(result.kill))
    for slot, decision in result.recovery or (("", "not in the log of the second run"),):
        _line(console, "recovery", f"{slot}: {decision}" if slot else decision)
    _line(console, "translations checked", f"{result.comparison.translated_offsets:,}")
    if result.restored is not None:
        _line(console, "restored", _restored(result.restored))
    for difference in result.comparison.differences[:_SHOWN_DIFFERENCES]:
        _line(console, "difference", str(difference))
    for surprise in result.surprises[:_SHOWN_DIFFERENCES]:
        _line(console, "wrong", surprise)
    count = len(result.comparison.differences) + len(result.surprises)
    kinds = ", ".join(f"{number} {kind}" for kind, number in sorted(result.comparison.counts.items()))
    console.print(Text(f"differences: {count}{f' ({kinds})' if kinds else ''}", style="bold green" if count == 0 else "bold red"))
    _line(console, "took", f"{result.seconds:.0f} s")
    _look_further(console, conf=conf, tables=tables, is_kept=is_kept)


def _line(console: Console, what: str, text: str) -> None:
    """Print one line, whatever its width: text copied from a terminal must not be broken."""
    console.print(Text(f"{what}: {text}"), soft_wrap=True)


def _copied(result: DemoResult) -> Table:
    table = Table(title="copied", title_justify="left")
    for name in ("topic", "partitions", "written", "visible", "on the target", "batches", "raw", "rebuilt", "MB"):
        table.add_column(name, justify="left" if name == "topic" else "right")
    for topic in result.traffic.topics:
        data = result.totals.get((topic.topic, "data"), Totals())
        numbers = (
            topic.partitions,
            topic.written_records,
            topic.visible_records,
            result.comparison.target_records.get(topic.topic, 0),
            data.batches,
            data.batches - data.rebuilt_batches,
            data.rebuilt_batches,
        )
        table.add_row(topic.topic, *(f"{number:,}" for number in numbers), f"{data.size_bytes / 1e6:.1f}")
    return table


def _dropped(result: DemoResult) -> Table:
    table = Table(title="not copied", title_justify="left")
    for name in ("kind", "segments", "batches", "records", "MB", "why"):
        table.add_column(name, justify="left" if name in ("kind", "why") else "right")
    by_kind: dict[str, list[Totals]] = {}
    for (_, kind), total in sorted(result.totals.items(), key=lambda entry: entry[0]):
        if kind != "data":
            by_kind.setdefault(kind, []).append(total)
    for kind, parts in by_kind.items():
        counts = (
            sum(total.rows for total in parts),
            sum(total.batches for total in parts),
            sum(total.records for total in parts),
        )
        size_mb = sum(total.size_bytes for total in parts) / 1e6
        table.add_row(kind, *(f"{count:,}" for count in counts), f"{size_mb:.1f}", _WHY_DROPPED.get(kind, ""))
    return table


def _killed(kill: Kill | None) -> str:
    if kill is None:
        return "never: the mirror was done before a transaction was seen open; try more records"
    topic_partitions = ", ".join(str(topic_partition) for topic_partition in kill.open_on[:3])
    more = f" and {len(kill.open_on) - 3} more" if len(kill.open_on) > 3 else ""
    return (
        f"SIGKILL {kill.after_s:.1f} s after its start, at {kill.visible_offsets:,} visible offsets, "
        f"a transaction open on {topic_partitions}{more}"
    )


def _restored(restored: RestoredTopic) -> str:
    objects = f"{counted(restored.object_count, 'object')} of {restored.archived_bytes / 1e6:.1f} MB"
    verdict = "as a consumer had seen them" if not restored.problems else "NOT as a consumer had seen them"
    records = counted(restored.record_count, "record")
    return f"{restored.topic} up to {restored.cut.isoformat()}, from {objects}: {records}, {verdict}"


def _look_further(console: Console, *, conf: Path, tables: Path, is_kept: bool) -> None:
    path = offset_map_path(tables)
    if not is_kept:
        console.print("The folder is deleted now. `shallow-mirror demo --keep` keeps it, so that the offset map can be read.")
        return
    for line in (
        f"mirror file: {conf}",
        f"offset map (Delta): {path}",
        f"logs of the two runs: {conf.parent / 'run-1.log'}, {conf.parent / 'run-2.log'}",
        f"shallow-mirror translate {conf} orders.events 0 1000",
        f"SHALLOW_MIRROR_DEMO={conf.parent} for notebooks/tour.ipynb",
        "SELECT kind, count(*) AS segments, sum(batch_count) AS batches, sum(record_count) AS records, sum(size_bytes) AS bytes "
        f"FROM delta.`{path}` GROUP BY kind ORDER BY kind",
        "SELECT micro_batch, min(decided_at) AS decided_at, sum(record_count) AS records, max(transactional_id) AS slot "
        f"FROM delta.`{path}` WHERE kind = 'data' GROUP BY micro_batch ORDER BY micro_batch",
    ):
        console.print(Text(line), soft_wrap=True)
