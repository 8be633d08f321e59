"""Driver and reading commands: when an archive saw the topic ids, partitions and lineages of a topic.

The archive sees them with the decision that holds their first row, and topics and partitions already with the description in
`archive_topics`, which it records before that decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from shallow_mirror.checkpoints.tables import Condition, ms_of
from shallow_mirror.plurals import counted

if TYPE_CHECKING:  # executors read what imports this file, and need no deltalake
    from shallow_mirror.checkpoints.ledger import ArchiveTable, SeenTopic

_KEYS = ["source_topic", "source_topic_id", "source_partition", "lineage"]
_EXTENT = [
    ("micro_batch", "min"),
    ("micro_batch", "max"),
    ("decided_at", "min"),
    ("decided_at", "max"),
    ("source_start", "min"),
    ("source_end", "max"),
]
_SHOWN_PARTITIONS = 3
_ID_KEYS = ["source_topic", "source_topic_id"]
_ID_ORDER = [("micro_batch", "min"), ("decided_at", "min"), ("micro_batch", "max")]


@dataclass(slots=True)
class Trace:
    """The rows of one lineage of a partition, whatever has expired of them."""

    first_decision: int
    last_decision: int
    first_ms: int
    """Time of the first decision with a row of it."""
    last_ms: int
    start: int
    end: int

    def add(self, other: Trace) -> None:
        self.first_decision = min(self.first_decision, other.first_decision)
        self.last_decision = max(self.last_decision, other.last_decision)
        self.first_ms, self.last_ms = min(self.first_ms, other.first_ms), max(self.last_ms, other.last_ms)
        self.start, self.end = min(self.start, other.start), max(self.end, other.end)


@dataclass(slots=True)
class Incarnation:
    """A topic of the source from its creation to its deletion."""

    topic: str
    topic_id: str
    partitions: dict[int, dict[int, Trace]] = field(default_factory=dict)
    """Lineages of each partition that has rows."""
    seen: list[SeenTopic] = field(default_factory=list)
    """Its descriptions, in order."""

    @property
    def has_rows(self) -> bool:
        return bool(self.partitions)

    @property
    def first_decision(self) -> int:
        described = self.seen[0].micro_batch if self.seen else 0
        return min((trace.first_decision for trace in self._traces()), default=described)

    @property
    def first_ms(self) -> int:
        """Return when the archive saw it first."""
        return min([*(trace.first_ms for trace in self._traces()), *(seen.seen_at_ms for seen in self.seen[:1])])

    @property
    def last_decision(self) -> int:
        return max((trace.last_decision for trace in self._traces()), default=0)

    @property
    def last_ms(self) -> int:
        """Return the time of the last decision with rows of it; without rows when it was seen first."""
        return max((trace.last_ms for trace in self._traces()), default=self.first_ms)

    def first_ms_of(self, partition: int) -> int:
        """Return when the archive saw a partition first."""
        times = [trace.first_ms for trace in self.partitions[partition].values()]
        return min([*times, *(seen.seen_at_ms for seen in self.seen if seen.description.partitions > partition)])

    def sentence(self) -> str:
        """Return the topic id, with the times and offsets that the archive has of it."""
        if not self.has_rows:
            return f"{self.topic_id} (seen {as_text(self.first_ms)}, nothing archived)"
        shown = []
        for partition, lineages in sorted(self.partitions.items())[:_SHOWN_PARTITIONS]:
            start, end = min(trace.start for trace in lineages.values()), max(trace.end for trace in lineages.values())
            shown.append(f"offsets {start} to {end} of {self.topic}-{partition}")
        more = len(self.partitions) - len(shown)
        shown += [f"{counted(more, 'more partition')}"] if more else []
        return f"{self.topic_id} (archived {as_text(self.first_ms)} to {as_text(self.last_ms)}: {', '.join(shown)})"

    def _traces(self) -> list[Trace]:
        return [trace for lineages in self.partitions.values() for trace in lineages.values()]


def read_history(table: ArchiveTable, condition: Condition = (), seen: Sequence[SeenTopic] = ()) -> dict[str, list[Incarnation]]:
    """Return the incarnations of each topic in the order in which the archive saw them.

    `condition` may choose topics and decisions, and must not choose rows of a partition by anything else. `seen`: the
    descriptions of the archive; those of topics without rows count for nothing. Holds an entry for each lineage in memory.
    """
    topics: dict[str, dict[str, Incarnation]] = {}
    columns = [*_KEYS, *dict.fromkeys(column for column, _ in _EXTENT)]
    for piece in table.pieces(condition, columns):
        extents = piece.group_by(_KEYS, use_threads=False).aggregate(_EXTENT)
        names = (*_KEYS, *(f"{column}_{function}" for column, function in _EXTENT))
        for topic, topic_id, partition, lineage, first, last, first_at, last_at, start, end in zip(
            *(extents[name].to_pylist() for name in names), strict=True
        ):
            trace = Trace(first, last, ms_of(first_at), ms_of(last_at), start, end)
            incarnation = topics.setdefault(topic, {}).setdefault(topic_id, Incarnation(topic, topic_id))
            known = incarnation.partitions.setdefault(partition, {}).setdefault(lineage, trace)
            known.add(trace)
    for description in seen:
        topic, topic_id = description.description.topic, description.description.topic_id
        if topic in topics:
            topics[topic].setdefault(topic_id, Incarnation(topic, topic_id)).seen.append(description)
    return {topic: sorted(of_topic.values(), key=_order) for topic, of_topic in topics.items()}


def read_topic_ids(table: ArchiveTable, condition: Condition = ()) -> dict[str, list[str]]:
    """Return the topic ids of each topic, in the order of `read_history` without descriptions; the newest one is the last.

    Takes a fraction of the time of `read_history`. `condition` may choose topics only.
    """
    topics: dict[str, list[str]] = {}
    for piece in table.pieces(condition, _ID_KEYS):
        for topic, topic_id in zip(*piece.group_by(_ID_KEYS, use_threads=False).aggregate([]).to_pydict().values(), strict=True):
            ids = topics.setdefault(topic, [])
            ids += [] if topic_id in ids else [topic_id]
    if all(len(ids) == 1 for ids in topics.values()):
        return topics  # mostly: columns that order several are not read
    names = [*_ID_KEYS, *(f"{column}_{function}" for column, function in _ID_ORDER)]
    pieces = [
        piece.group_by(_ID_KEYS, use_threads=False).aggregate(_ID_ORDER).select(names)
        for piece in table.pieces(condition, [*_ID_KEYS, "micro_batch", "decided_at"])
    ]
    merged = [(f"{column}_{function}", function) for column, function in _ID_ORDER]
    rows = pa.concat_tables(pieces).group_by(_ID_KEYS, use_threads=False).aggregate(merged)
    keys = [("source_topic", "ascending"), *((f"{name}_{function}", "ascending") for name, function in merged)]
    rows = rows.sort_by([*keys, ("source_topic_id", "ascending")])
    topics = {}
    for topic, topic_id in zip(rows["source_topic"].to_pylist(), rows["source_topic_id"].to_pylist(), strict=True):
        topics.setdefault(topic, []).append(topic_id)
    return topics


def topic_id_problem(setting: str, topic: str, topic_id: str, incarnations: Sequence[Incarnation]) -> str | None:
    """Return the problem of a topic id of which the archive has nothing; None if it has."""
    if any(each.topic_id == topic_id and each.has_rows for each in incarnations):
        return None
    known = "; ".join(each.sentence() for each in incarnations)
    return f"{setting}: the archive has nothing of topic {topic} with topic id {topic_id}; it has {known}"


def as_text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _order(incarnation: Incarnation) -> tuple[int, int, int, str]:
    # Ids that one decision saw first, as after a rebuild, are ordered by the fields behind it.
    return incarnation.first_decision, incarnation.first_ms, incarnation.last_decision, incarnation.topic_id
