"""Driver and commands: the table `controls` beside the offset map: commands of operators to a running mirror.

A row pauses a source topic, or resumes it; of each topic the newest row counts. Rows are only added.

A migration hands a topic over to the mirror in the other direction: it adds `hand-over` here, the running mirror answers with
`handed-over` once it plans nothing of the topic any more, and only then the other mirror, which has `receive`, may write to it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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

ControlAction = Literal["pause", "resume", "hand-over", "handed-over", "receive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicControls:
    """What the table says of topics. `paused`: since when, in ms; those that are handed over are among them.

    `requested`: to be handed over, `handed_over`: the mirror has confirmed it. `received`: ever handed over to this mirror.
    """

    paused: Mapping[str, int]
    requested: frozenset[str]
    handed_over: frozenset[str]
    received: frozenset[str]

    @property
    def without_cycle(self) -> frozenset[str]:
        """Return the topics that only one of two mirrors copies, so that they make no replication cycle."""
        return self.requested | self.handed_over | self.received


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
        return self.read().paused

    def read(self) -> TopicControls:
        rows = sorted(self._rows.read((), None), key=lambda row: row["sequence"])
        # The mirror's answer does not count as a command: one that is late must not undo a `resume`.
        newest = {row["topic"]: row for row in rows if row["action"] not in ("handed-over", "receive")}
        confirmed = {row["topic"]: row["sequence"] for row in rows if row["action"] == "handed-over"}
        requests = {topic: row["sequence"] for topic, row in newest.items() if row["action"] == "hand-over"}
        handed_over = frozenset(topic for topic, sequence in requests.items() if confirmed.get(topic, -1) > sequence)
        return TopicControls(
            paused={topic: ms_of(row["at"]) for topic, row in sorted(newest.items()) if row["action"] != "resume"},
            requested=frozenset(requests) - handed_over,
            handed_over=handed_over,
            received=frozenset(row["topic"] for row in rows if row["action"] == "receive"),
        )

    def paused_intervals(self) -> list[PausedInterval]:
        """Return every interval in which a source topic was paused, or still is, in order of time."""
        return paused_intervals(self._rows.read((), ["sequence", "topic", "action", "at"]))
