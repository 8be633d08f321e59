"""Pure: the states of topics by the rows of the table `controls`, and from when to when they were not copied."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from shallow_mirror.checkpoints.rows.codec import TimeMs, row_codec

ControlAction = Literal[
    "pause", "resume", "hand-over", "take-back", "handed-over", "receive", "forget", "fail-over", "abort-fail-over"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlRow:
    """A row of the table: an action on a source topic."""

    sequence: int
    topic: str
    action: ControlAction
    at_ms: TimeMs
    host: str
    pid: int
    topic_id: str = ""
    """Of `forget`; "" for the others, which concern a name."""


CONTROLS = row_codec(ControlRow)


def in_order(rows: Iterable[ControlRow]) -> list[ControlRow]:
    """Return rows in the order in which they count.

    Two commands at once may give their rows the same `sequence`. Their order is that of the clocks then: the same at every read.
    """
    return sorted(rows, key=lambda row: (row.sequence, row.at_ms, row.host, row.pid))


@dataclass(frozen=True, slots=True)
class PausedInterval:
    """[`since_ms`, `until_ms`) of a source topic, in ms since 1970. `until_ms` None: the topic is still paused."""

    topic: str
    since_ms: int
    until_ms: int | None


@dataclass(slots=True)
class TopicState:
    """The states of one source topic while the rows are read `in_order`."""

    paused_ms: int | None = None
    """By an operator."""
    handed_over_ms: int | None = None
    """By a migration."""
    handed_over_sequence: int = -1
    """Of the row that says so."""
    failed_over_ms: int | None = None
    """By a fail-over, for good unless it is aborted."""
    was_resumed: bool = False
    """A pause has ended since the topic was handed over."""

    @property
    def is_copied(self) -> bool:
        return self.paused_ms is None and self.handed_over_ms is None and self.failed_over_ms is None

    def take(self, row: ControlRow) -> None:
        match row.action:
            case "pause" if self.paused_ms is None:
                self.paused_ms = row.at_ms
            case "resume" if self.paused_ms is not None:
                self.paused_ms, self.was_resumed = None, True
            case "hand-over" if self.handed_over_ms is None:
                self.handed_over_ms, self.handed_over_sequence, self.was_resumed = row.at_ms, row.sequence, False
            case "resume" if self.was_resumed:
                pass  # two commands have seen the same pause
            # Earlier releases wrote `resume` to take a topic back; the command `resume` refuses a topic that is handed over.
            case "take-back" | "resume":
                self.handed_over_ms = None
            case "fail-over" if self.failed_over_ms is None:
                self.failed_over_ms = row.at_ms
            case "abort-fail-over":
                self.failed_over_ms = None


def read_topic_states(rows: Iterable[ControlRow]) -> dict[str, TopicState]:
    """Return the state of each topic. `rows`: `in_order`."""
    states: dict[str, TopicState] = {}
    for row in rows:
        states.setdefault(row.topic, TopicState()).take(row)
    return states


def paused_intervals(rows: Iterable[ControlRow]) -> list[PausedInterval]:
    """Return from when to when each topic was paused or handed over, by `since_ms`, then topic.

    A pause of a paused topic and a resume of a topic that is not paused change nothing. Intervals of a topic do not overlap.
    """
    states: dict[str, TopicState] = {}
    since: dict[str, int] = {}
    latest_end: dict[str, int] = {}
    intervals = []
    for row in in_order(rows):
        topic, at_ms = row.topic, row.at_ms
        state = states.setdefault(topic, TopicState())
        state.take(row)
        if not state.is_copied:
            # Rows come from the clocks of several hosts, so a later row may have an earlier time.
            since.setdefault(topic, max(at_ms, latest_end.get(topic, at_ms)))
        elif topic in since:
            begin_ms = since.pop(topic)
            if at_ms > begin_ms:
                intervals.append(PausedInterval(topic, begin_ms, at_ms))
                latest_end[topic] = at_ms
    intervals += [PausedInterval(topic, begin_ms, None) for topic, begin_ms in since.items()]
    return sorted(intervals, key=lambda interval: (interval.since_ms, interval.topic))
