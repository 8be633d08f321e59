"""Test support: a source cluster for planners, in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError, RetriableError
from shallow_mirror.streaming.planning import LogEnds, SourceOffsets
from shallow_mirror.streaming.planning.source_offsets import FirstBatch
from shallow_mirror.types import IsolationLevel, SourcePartition, TopicPartition

A, B = SourcePartition("orders", "idA", 0), SourcePartition("orders", "idA", 1)

NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass
class FakeCluster:
    """Answers from tables; `away` makes it answer nothing."""

    topics: dict[str, Any]
    offsets: dict[tuple[TopicPartition, int], int]
    away: bool = False
    wrong: dict[TopicPartition, MirrorError] = field(default_factory=dict)
    asked: list[IsolationLevel] = field(default_factory=list)
    listed: list[Sequence[str] | None] = field(default_factory=list)
    high_watermarks: dict[TopicPartition, int] = field(default_factory=dict)
    """Of logs with an open transaction: `offsets` has their last stable offsets."""
    on_pause: Callable[[], None] = lambda: None
    known_id: str = ""

    def metadata(self, names: Sequence[str] | None, deadline: Deadline) -> Any:
        if self.away:
            raise RetriableError("NETWORK_EXCEPTION", "127.0.0.1:1 refused the connection")
        self.listed.append(names)
        wanted = self.topics if names is None else names
        return SimpleNamespace(topics={name: self.topics.get(name, _topic(name, "", [], error_code=3)) for name in wanted})

    def pause(self, tries: int, deadline: Deadline) -> None:
        self.on_pause()

    def latest_offsets(self, topic_partitions: Sequence[TopicPartition], isolation: IsolationLevel, deadline: Deadline) -> Any:
        self.asked.append(isolation)
        wrong = {name: self.wrong[name] for name in topic_partitions if name in self.wrong}
        return {name: self.offsets[name, -1] for name in topic_partitions if name not in wrong}, wrong

    def list_offsets(self, wanted: Mapping[TopicPartition, int], isolation: IsolationLevel, deadline: Deadline) -> Any:
        self.asked.append(isolation)
        offsets = {name: self.offsets[name, timestamp] for name, timestamp in wanted.items()}
        if isolation is IsolationLevel.READ_UNCOMMITTED:
            offsets |= {name: end for name, end in self.high_watermarks.items() if wanted.get(name) == -1}
        return {name: SimpleNamespace(offset=offset) for name, offset in offsets.items()}


class UnsampledPlanner(SourceOffsets):
    """Its first batches are given instead of fetched."""

    batches: dict[SourcePartition, FirstBatch] = {}  # noqa: RUF012

    def first_batches(self, starts: Mapping[SourcePartition, int], listing: LogEnds, deadline: Deadline) -> Any:
        return iter([(partition, batch) for partition, batch in self.batches.items() if partition in starts])


def _topic(name: str, topic_id: str, leaders: list[int], *, is_internal: bool = False, error_code: int = 0) -> Any:
    partitions = {n: SimpleNamespace(partition=n, leader=leader, leader_epoch=7) for n, leader in enumerate(leaders)}
    return SimpleNamespace(name=name, topic_id=topic_id, is_internal=is_internal, error_code=error_code, partitions=partitions)


def _config(
    folder: Path, *, topics: Mapping[str, Any] = NOTHING, write: Mapping[str, Any] = NOTHING, **read: Any
) -> MirrorConfig:
    client = {"bootstrap.servers": "127.0.0.1:1"}
    document = {
        "mirror": "m",
        "source": {"alias": "east", "client": client},
        "target": {"alias": "west", "client": client},
        "topics": {"include": ["orders.*", "_.*"], **topics},
        "read": read,
        "write": dict(write),
        "tables": "tables",
    }
    return MirrorConfig.from_document(document, folder=folder)


def _cluster(**offsets: int) -> FakeCluster:
    listed = {(A.topic_partition, -2): 10, (B.topic_partition, -2): 0, (A.topic_partition, -1): 100, (B.topic_partition, -1): 50}
    listed |= {(A.topic_partition, 1000): 40, (B.topic_partition, 1000): -1}
    topics = {
        "orders": _topic("orders", "idA", [1, 1]),
        "other": _topic("other", "idO", [1]),
        "__consumer_offsets": _topic("__consumer_offsets", "idC", [1], is_internal=True),
    }
    return FakeCluster(topics, listed)


def _deadline() -> Deadline:
    return Deadline.after_ms(1000, lambda: 0.0)
