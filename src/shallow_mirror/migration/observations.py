"""Pure: observations of clusters and tables, and conclusions of a conductor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from shallow_mirror.plurals import counted
from shallow_mirror.types import TopicPartition

NAMED = 3
"""So many partitions or groups a sentence names."""


class LogEnd(NamedTuple):
    """The high watermark of a log, and its last stable offset, which is lower while a transaction is open."""

    end: int
    stable: int


LogEnds = Mapping[TopicPartition, LogEnd]


class MappedEnd(NamedTuple):
    """How far a partition is mirrored: below `offset` of the origin; its records are below `target_end`."""

    offset: int
    target_end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorRun:
    """The run of a mirror that owns its map. `is_alive` None: unknown, it is on another host and has not ended."""

    description: str
    is_alive: bool | None
    is_over: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Result of a verification. `seconds` it took, `size_bytes` it read."""

    is_equal: bool
    sentences: Sequence[str]
    seconds: float
    size_bytes: int
    record_count: int


def moved_partitions(before: LogEnds, now: LogEnds) -> list[TopicPartition]:
    """Return the partitions whose log end is another one, or that only one of the two has."""
    return sorted(
        name for name in before.keys() | now.keys() if name not in before or name not in now or before[name].end != now[name].end
    )


def open_partitions(ends: LogEnds) -> list[TopicPartition]:
    """Return the partitions with an open transaction."""
    return sorted(name for name, log in ends.items() if log.stable < log.end)


def open_sentence(ends: LogEnds, is_open: Iterable[TopicPartition]) -> str:
    """Return where transactions are open, for whoever has to end them."""
    return named(f"{name} from offset {ends[name].stable:,}" for name in is_open)


def lag_offsets(ends: LogEnds, mapped: Mapping[TopicPartition, MappedEnd]) -> int:
    return sum(max(0, log.end - mapped[name].offset) if name in mapped else log.end for name, log in ends.items())


def not_copied(ends: LogEnds, mapped: Mapping[TopicPartition, MappedEnd]) -> list[TopicPartition]:
    """Return the partitions that the mirror has not copied up to their log ends. An empty log needs no row."""
    return sorted(
        name for name, log in ends.items() if (mapped[name].offset if name in mapped else 0) < log.end or name not in mapped
    )


def not_before(
    mapped: Mapping[TopicPartition, MappedEnd], first: Mapping[TopicPartition, MappedEnd]
) -> dict[TopicPartition, MappedEnd]:
    """Return the positions of `mapped`, none of them below `first`: a mirror that has copied nothing has no target offset."""
    floors = {name: first.get(name, MappedEnd(0, 0)) for name in mapped}
    return {
        name: MappedEnd(max(end.offset, floors[name].offset), max(end.target_end, floors[name].target_end))
        for name, end in mapped.items()
    }


def named(names: Iterable[object]) -> str:
    """Return "a, b, c and 4 more"."""
    texts = [str(name) for name in names]
    more = len(texts) - NAMED
    return ", ".join(texts[:NAMED]) + (f" and {more:,} more" if more > 0 else "")


class Standstill:
    """Since when no log end has moved and no transaction is open. Looks are fed in with their times.

    `longest_pause_s`: the longest rest that an append ended.
    """

    def __init__(self) -> None:
        self._ends: LogEnds = {}
        self._since_s: float | None = None
        self._has_moved = False
        self.longest_pause_s = 0.0

    def look(self, ends: LogEnds, now_s: float) -> float:
        """Return for how long all logs have been at rest; 0.0 if something moved since the last look, or is open."""
        is_moved = self._since_s is not None and bool(moved_partitions(self._ends, ends))
        if is_moved and self._has_moved and self._since_s is not None:
            self.longest_pause_s = max(self.longest_pause_s, now_s - self._since_s)
        self._has_moved = self._has_moved or is_moved
        if self._since_s is None or is_moved or open_partitions(ends):
            self._since_s = now_s
        self._ends = ends
        return now_s - self._since_s

    @staticmethod
    def sentence(before: LogEnds, ends: LogEnds) -> str:
        """Return the logs that are not at rest, for whoever has to stop the writers."""
        moved, is_open = moved_partitions(before, ends), open_partitions(ends)
        parts = []
        if moved:
            parts.append(
                "still written to: "
                + named(
                    f"{name} ({before[name].end if name in before else 0:,} to {ends[name].end:,})"
                    for name in moved
                    if name in ends
                )
            )
        if is_open:
            parts.append(f"transactions are open in {open_sentence(ends, is_open)}")
        return "; ".join(parts) or f"{counted(len(ends), 'log')} at rest"


class LongTransactions:
    """The partitions in which a transaction is open for longer than `long_s`. Looks are fed in with their times."""

    def __init__(self, long_s: float) -> None:
        self._long_s = long_s
        self._since: dict[TopicPartition, tuple[int, float]] = {}
        """Last stable offset, and when it was seen first."""

    def look(self, ends: LogEnds, now_s: float) -> list[TopicPartition]:
        before, self._since = self._since, {}
        for name in open_partitions(ends):
            stable, since_s = before.get(name, (-1, now_s))
            self._since[name] = (ends[name].stable, since_s if stable == ends[name].stable else now_s)
        return [name for name, (_, since_s) in self._since.items() if now_s - since_s > self._long_s]


def to_document(ends: LogEnds) -> dict[str, dict[str, int]]:
    """Return ends of logs as JSON values, by topic and partition."""
    document: dict[str, dict[str, int]] = {}
    for name, log in sorted(ends.items()):
        document.setdefault(name.topic, {})[str(name.partition)] = log.end
    return document


def from_document(document: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """Return the argument of `to_document`, without last stable offsets."""
    return {
        TopicPartition(topic, int(partition)): end
        for topic, partitions in document.items()
        for partition, end in partitions.items()
    }


def mapped_document(mapped: Mapping[TopicPartition, MappedEnd]) -> dict[str, dict[str, list[int]]]:
    """Return positions of a mirror as JSON values, by topic and partition."""
    document: dict[str, dict[str, list[int]]] = {}
    for name, end in sorted(mapped.items()):
        document.setdefault(name.topic, {})[str(name.partition)] = [end.offset, end.target_end]
    return document


def mapped_of(document: Mapping[str, Mapping[str, Sequence[int]]]) -> dict[TopicPartition, MappedEnd]:
    """Return the argument of `mapped_document`."""
    return {
        TopicPartition(topic, int(partition)): MappedEnd(*ends)
        for topic, partitions in document.items()
        for partition, ends in partitions.items()
    }
