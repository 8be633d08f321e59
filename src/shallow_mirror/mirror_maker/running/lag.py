"""Commands: the lag of MirrorMaker 2, which has no consumer group, as a table or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from shallow_mirror.config import MirrorConfig
from shallow_mirror.mirror_maker.running.copies import (
    CopiedPartition,
    copied_partitions,
    copies_of,
    recorded_offsets,
    time_text,
)
from shallow_mirror.mirror_maker.running.log_reader import LogReader
from shallow_mirror.mirror_maker.running.names import MirrorMakerNames, require_connect_offsets
from shallow_mirror.plurals import counted, listed
from shallow_mirror.types import IsolationLevel, TopicPartition

_COLUMNS = ("topic", "partition", "copied", "log end", "lag", "recorded at", "last record")
_TEXTS = ("topic", "recorded at", "last record")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    flow: str
    partitions: tuple[CopiedPartition, ...]
    without_copy: tuple[TopicPartition, ...]
    """Partitions that the mirror includes, and MirrorMaker 2 has not copied: not counted."""

    @property
    def records(self) -> int:
        """Return how many records are not copied, at most."""
        return sum(partition.lag_records for partition in self.partitions)

    def document(self) -> dict[str, Any]:
        return {
            "flow": self.flow,
            "lag_records": self.records,
            "partitions": [partition.document() for partition in self.partitions],
            "without_copy": [partition._asdict() for partition in self.without_copy],
        }


def read_lag(config: MirrorConfig, names: MirrorMakerNames, where: str, on_wait: Callable[[str], None]) -> Lag:
    """Return the lag of the topics that the mirror includes. `where`: the configuration of MirrorMaker 2, in messages.

    Raises ConfigError, RetriableError.
    """
    offsets_topic = require_connect_offsets(names, where)
    on_wait(f"{config.source_cluster_name} and {config.target_cluster_name} to answer")
    with (
        LogReader(config.source.client, config.source_cluster_name, names.isolation) as source,
        LogReader(config.target.client, config.target_cluster_name, IsolationLevel.READ_COMMITTED) as target,
    ):
        recorded = recorded_offsets(names, offsets_topic, target)
        copies = copies_of(config, names, source, target)
        on_wait("the ends of both logs of each partition")
        partitions = copied_partitions(copies.sources, recorded, source, target)
    return Lag(flow=f"{names.source}->{names.target}", partitions=tuple(partitions), without_copy=copies.missing)


def show(lag: Lag, console: Console, *, as_json: bool = False) -> None:
    if as_json:
        print(json.dumps(lag.document()), file=console.file)
    else:
        console.print(render(lag))


def render(lag: Lag) -> RenderableType:
    behind = [partition for partition in lag.partitions if partition.lag_records]
    state = (
        f"{counted(lag.records, 'record')} behind in {counted(len(behind), 'partition')}" if behind else "has copied everything"
    )
    table = Table()
    for name in _COLUMNS:
        table.add_column(name, justify="left" if name in _TEXTS else "right", overflow="fold")
    for partition in lag.partitions:
        recorded = partition.recorded
        table.add_row(
            Text(partition.source.topic),
            str(partition.source.partition),
            "" if recorded is None else f"{recorded.offset:,}",
            f"{partition.log_end:,}",
            f"{'' if partition.is_counted else 'at most '}{partition.lag_records:,}",
            "none" if recorded is None else time_text(recorded.recorded_at_ms),
            "same" if partition.has_same_end else "differs",
        )
    lines = [f"MirrorMaker 2 {lag.flow}: {counted(len(lag.partitions), 'partition')}, {state}"]
    if lag.without_copy:
        names = listed(str(partition) for partition in lag.without_copy)
        lines.append(f"without a copy, and not counted: {names}")
    return Group(*(Text(line) for line in lines), table)
