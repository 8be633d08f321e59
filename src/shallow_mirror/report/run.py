"""Driver, for the cli: gathers the content of a report and writes it. Starts no JVM, but for tables in a catalog."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shallow_mirror.checkpoints import OffsetMap, Position
from shallow_mirror.checkpoints.logs.runs import read_problems, run_history
from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.checkpoints.tables import BestEffortTables, Comparison, TableStorage
from shallow_mirror.config import MirrorConfig, RestoreConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.operations.status import gather_status
from shallow_mirror.report.offset_map_chart import COLUMNS, MapPicture, map_picture
from shallow_mirror.report.page import RUNS_SHOWN, ReportContent, page
from shallow_mirror.report.time_series import history_of
from shallow_mirror.report.verifications import shown_verifications
from shallow_mirror.report.written_file import write_whole
from shallow_mirror.types import SourcePartition
from shallow_mirror.version import __version__

MICRO_BATCHES_READ = 100_000


def write_report(
    config: MirrorConfig | RestoreConfig, out: Path, *, topic: str | None = None, partition: int | None = None, spark: Any = None
) -> None:
    """`topic` and `partition`: of the chart. Raises ConfigError (no map yet, no such partition, `out` cannot be written)."""
    write_whole(out, page(gather_content(config, topic=topic, partition=partition, spark=spark)).encode())


def gather_content(
    config: MirrorConfig | RestoreConfig, *, topic: str | None = None, partition: int | None = None, spark: Any = None
) -> ReportContent:
    storage = TableStorage(config.table_location, spark)
    offset_map = OffsetMap.open(storage, mirror=config.mirror)
    tables = storage.best_effort_tables()
    recorded = offset_map.recorded()
    newest, run_epoch = (0, 0) if recorded is None else (recorded.micro_batch, recorded.run_epoch)
    positions = offset_map.positions()
    chosen = choose_partition(positions, topic, partition)
    recent = (Comparison("micro_batch", ">", newest - MICRO_BATCHES_READ),)
    return ReportContent(
        status=gather_status(config, spark=spark),
        source=config.archive.alias if isinstance(config, RestoreConfig) else config.source.alias,
        target=config.target.alias,
        version=__version__,
        micro_batch_count=newest,
        is_cut=newest > MICRO_BATCHES_READ,
        history=history_of(tables.read(run_history.MICRO_BATCHES_TABLE, recent)),
        problems=read_problems(tables, run_epoch),
        runs=_read_runs(tables, run_epoch),
        pauses=Controls.open(storage).paused_intervals(),
        verifications=shown_verifications(tables, positions),
        picture=None if chosen is None else _read_picture(offset_map, chosen),
    )


def choose_partition(
    positions: Mapping[SourcePartition, Position], topic: str | None, partition: int | None
) -> SourcePartition | None:
    """Pure: of those that fit the one that reaches furthest. None if nothing was asked for and there is none."""
    fits = {
        source: position.offset
        for source, position in positions.items()
        if topic in (None, source.topic) and partition in (None, source.partition)
    }
    if fits:
        return max(fits, key=lambda source: (fits[source], source))
    if topic is None and partition is None:
        return None
    wanted = " ".join(
        [*([] if topic is None else [f"--topic {topic}"]), *([] if partition is None else [f"--partition {partition}"])]
    )
    topics = sorted({source.topic for source in positions})
    shown = ", ".join(topics[:10]) + (f" and {len(topics) - 10} more" if len(topics) > 10 else "")
    raise ConfigError(f"{wanted}: the offset map has no such partition; its topics are: {shown or 'none'}")


def _read_picture(offset_map: OffsetMap, source: SourcePartition) -> MapPicture | None:
    of_partition = (
        Comparison("source_topic", "=", source.topic),
        Comparison("source_topic_id", "=", source.topic_id),
        Comparison("source_partition", "=", source.partition),
    )
    return map_picture(source, offset_map.settled_rows(of_partition, columns=COLUMNS))


def _read_runs(tables: BestEffortTables, newest_run_epoch: int) -> list[Mapping[str, Any]]:
    """Return a row for each run, from its two rows."""
    rows = tables.read(run_history.RUNS_TABLE, (Comparison("run_epoch", ">", newest_run_epoch - RUNS_SHOWN),))
    runs: dict[tuple[int, str], dict[str, Any]] = {}
    for row in rows:
        values = {name: value for name, value in row.items() if value is not None}
        runs.setdefault((row["run_epoch"], row["run_id"]), dict.fromkeys(run_history.RUNS.schema.names)).update(values)
    return sorted(runs.values(), key=lambda run: (run["run_epoch"], run["started_at"]))
