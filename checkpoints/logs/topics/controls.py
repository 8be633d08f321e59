"""Driver and commands: the table `controls` beside the offset map: commands of operators to a running mirror.

Rows are only added. A topic has two states with an owner each, which change independently of each other:

- An operator pauses it (`pause`) and resumes it (`resume`).
- A migration hands it over to the mirror in the other direction (`hand-over`) and takes it back (`take-back`). The running mirror
  answers with `handed-over` once it plans nothing of the topic any more and every micro-batch that was planned before has ended.
  Only then the other mirror, which has `receive`, may write to it.

A fail-over ends a mirror for good (`fail-over`, on each of its topics): no run of it starts again, unless the fail-over is
aborted (`abort-fail-over`).

`forget` is about one topic id, not about a name: nothing of that topic is copied any more, and nothing is reported of it.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self

from shallow_mirror.checkpoints.logs.topics.deleted_topics import TopicIncarnation
from shallow_mirror.checkpoints.logs.topics.forgotten_topics import NOTHING_FORGOTTEN, ForgottenTopics
from shallow_mirror.checkpoints.rows.paused_intervals import (
    CONTROLS,
    ControlAction,
    ControlRow,
    PausedInterval,
    in_order,
    paused_intervals,
    read_topic_states,
)
from shallow_mirror.checkpoints.tables.storage import DurableTable, TableStorage
from shallow_mirror.checkpoints.tables.table_location import Tables
from shallow_mirror.errors import OlderTablesError

CONTROLS_TABLE = "controls"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicControls:
    """The state of source topics in the table."""

    paused: Mapping[str, int]
    """By operators: since when, in ms."""
    requested: Mapping[str, int]
    """To be handed over, not yet confirmed by the mirror: since when, in ms."""
    handed_over: Mapping[str, int]
    """Handed over, confirmed by the mirror: since when, in ms."""
    received: frozenset[str]
    """Ever handed over to this mirror."""
    returned: frozenset[str] = frozenset()
    """Handed over once, and taken back; not those that were handed over to this mirror before."""
    forgotten: ForgottenTopics = NOTHING_FORGOTTEN
    failed_over: Mapping[str, int] = field(default_factory=dict)
    """Failed over to the target: since when, in ms."""
    rows: Sequence[ControlRow] = ()
    """The whole table, `in_order`."""

    @property
    def not_copied(self) -> frozenset[str]:
        """Return the topics of which nothing is planned."""
        return frozenset(self.paused) | self.moving

    @property
    def moving(self) -> frozenset[str]:
        """Return the topics that a migration hands over, or has handed over, or that were failed over."""
        return frozenset(self.requested) | frozenset(self.handed_over) | frozenset(self.failed_over)

    @property
    def without_cycle(self) -> frozenset[str]:
        """Return the topics that only one of two mirrors copies, so that they make no replication cycle."""
        return self.moving | self.received

    def failed_over_problem(self, mirror: str, target: str) -> str | None:
        """Return why no run of this mirror starts; None if it was not failed over. `target`: the alias of its target."""
        if not self.failed_over:
            return None
        at = datetime.fromtimestamp(min(self.failed_over.values()) / 1000, UTC).isoformat(timespec="seconds")
        return (
            f"mirror {mirror} was failed over at {at}: its topics are in use at {target}, and it copies nothing any more. "
            "`shallow-mirror failover status FILE` shows how to continue; another mirror needs another id and other tables"
        )


def older_controls(known: str, evidence: str) -> OlderTablesError:
    """Return the error of a table that lacks a row. `known`: its newest one. `evidence`: of the row that it lacks."""
    return OlderTablesError(
        known,
        evidence,
        what="row of the table controls",
        if_lost="with `shallow-mirror recover CONF --accept-repeats` the mirror continues from these tables, without what was "
        "paused, handed over, forgotten or failed over since",
    )


NO_CONTROLS = TopicControls(paused={}, requested={}, handed_over={}, received=frozenset())


class Controls:
    """The table of pauses and resumes of topics.

    Raises OutcomeUnknownError if the table cannot be written or read, OffsetMapConflictError if it is damaged.
    """

    def __init__(self, rows: DurableTable[ControlRow], now_ms: Callable[[], int] = lambda: int(time.time() * 1000)) -> None:
        self._rows, self._now_ms = rows, now_ms

    @classmethod
    def open(cls, storage: TableStorage | Tables) -> Self:
        return cls(TableStorage.of(storage).durable_table(CONTROLS_TABLE, CONTROLS))

    def add(self, action: ControlAction, topics: Sequence[str]) -> None:
        """Add a row for each topic; on the disk when it returns."""
        self._append([(action, topic, "") for topic in topics])

    def forget(self, topics: Sequence[TopicIncarnation], resumed: Sequence[str]) -> None:
        """Forget topics that are gone, and resume the names `resumed`, in one commit; on the disk when it returns."""
        self._append(
            [
                *(("forget", topic.topic, topic.topic_id) for topic in topics),
                *(("resume", name, "") for name in resumed),
            ]
        )

    def _append(self, actions: Sequence[tuple[ControlAction, str, str]]) -> None:
        newest = max((row["sequence"] for row in self._rows.read_columns((), ["sequence"])), default=0)
        at_ms, host, pid = self._now_ms(), socket.gethostname(), os.getpid()
        self._rows.append(
            [
                ControlRow(sequence=sequence, topic=topic, action=action, at_ms=at_ms, host=host, pid=pid, topic_id=topic_id)
                for sequence, (action, topic, topic_id) in enumerate(actions, start=newest + 1)
            ]
        )

    def paused(self) -> Mapping[str, int]:
        """Return since when each topic is paused by an operator, in ms, by source topic."""
        return self.read().paused

    def read(self) -> TopicControls:
        rows = in_order(self._rows.read())
        # The mirror's answers are no commands: one that is late must not undo a `take-back`.
        states = read_topic_states(rows)
        confirmed = {row.topic: row.sequence for row in rows if row.action == "handed-over"}
        moving = {topic: state for topic, state in sorted(states.items()) if state.handed_over_ms is not None}
        is_confirmed = {topic: confirmed.get(topic, -1) > state.handed_over_sequence for topic, state in moving.items()}
        since_ms = {topic: state.handed_over_ms for topic, state in moving.items() if state.handed_over_ms is not None}
        received = frozenset(row.topic for row in rows if row.action == "receive")
        handed = frozenset(row.topic for row in rows if row.action == "hand-over")
        return TopicControls(
            paused={topic: state.paused_ms for topic, state in sorted(states.items()) if state.paused_ms is not None},
            requested={topic: at_ms for topic, at_ms in since_ms.items() if not is_confirmed[topic]},
            handed_over={topic: at_ms for topic, at_ms in since_ms.items() if is_confirmed[topic]},
            received=received,
            returned=handed - moving.keys() - received,
            forgotten=ForgottenTopics(
                {TopicIncarnation(row.topic, row.topic_id): row.at_ms for row in rows if row.action == "forget"}
            ),
            failed_over={
                topic: state.failed_over_ms for topic, state in sorted(states.items()) if state.failed_over_ms is not None
            },
            rows=rows,
        )

    def paused_intervals(self) -> list[PausedInterval]:
        """Return every interval in which a source topic was paused or handed over, or still is, in order of time."""
        return paused_intervals(self._rows.read())
