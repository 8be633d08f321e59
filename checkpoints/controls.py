"""Driver and commands: the table `controls` beside the offset map: commands of operators to a running mirror.

A row pauses a source topic, or resumes it; of each topic the newest row counts. Rows are only added.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Self

import pyarrow as pa

from shallow_mirror.checkpoints.paused_intervals import PausedInterval, paused_intervals
from shallow_mirror.checkpoints.schema import TIMESTAMP, ms_of
from shallow_mirror.checkpoints.storage import DurableTable, MirrorStorage
from shallow_mirror.checkpoints.table_location import Tables

CONTROLS_TABLE = "controls"

CONTROLS = pa.schema(
    [
        ("sequence", pa.int64()),
        ("topic", pa.string()),
        ("action", pa.string()),
        ("at", TIMESTAMP),
        ("host", pa.string()),
        ("pid", pa.int64()),
    ]
)

ControlAction = Literal["pause", "resume"]


class Controls:
    """The table of pauses and resumes of topics.

    Raises OutcomeUnknownError where the table cannot be written or read, OffsetMapConflictError where it is damaged.
    """

    def __init__(self, rows: DurableTable, now_ms: Callable[[], int] = lambda: int(time.time() * 1000)) -> None:
        self._rows, self._now_ms = rows, now_ms

    @classmethod
    def open(cls, storage: MirrorStorage | Tables) -> Self:
        return cls(MirrorStorage.of(storage).durable_table(CONTROLS_TABLE))

    def add(self, action: ControlAction, topics: Sequence[str]) -> None:
        """Add a row for each topic; on the disk when it returns."""
        newest = max((row["sequence"] for row in self._rows.read((), ["sequence"])), default=0)
        columns = [
            [newest + number for number in range(1, len(topics) + 1)],
            list(topics),
            [action] * len(topics),
            [self._now_ms() * 1000] * len(topics),
            [socket.gethostname()] * len(topics),
            [os.getpid()] * len(topics),
        ]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, CONTROLS, strict=True)]
        self._rows.append(pa.Table.from_arrays(arrays, schema=CONTROLS))

    def paused(self) -> Mapping[str, int]:
        """Return since when each topic is paused, in ms, by source topic."""
        newest = {row["topic"]: row for row in sorted(self._rows.read((), None), key=lambda row: row["sequence"])}
        return {topic: ms_of(row["at"]) for topic, row in sorted(newest.items()) if row["action"] == "pause"}

    def paused_intervals(self) -> list[PausedInterval]:
        """Return every interval in which a source topic was paused, or still is, in order of time."""
        return paused_intervals(self._rows.read((), ["sequence", "topic", "action", "at"]))
