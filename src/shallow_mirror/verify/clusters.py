"""Driver: what an audit asks both clusters before it reads: topics as they are now, the ends of logs, who compacts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from shallow_mirror.broker import Cluster, TopicMetadata
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.cluster import reach
from shallow_mirror.broker.fetch import receive_buffer
from shallow_mirror.broker.net import UNKNOWN_TOPIC_OR_PARTITION, ErrorClass, error_class, error_name, refusal
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.sinks.kafka.targets.settings import NOT_BY_KEY
from shallow_mirror.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel, TopicPartition
from shallow_mirror.verify.map_index import Longs
from shallow_mirror.verify.partition_reader import PATIENCE_MS, LogView, PartitionReader

_LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True, slots=True)
class TopicView:
    """`is_stamped_by_broker`: its batches have their broker's time (LogAppendTime)."""

    topic_id: str
    partitions: frozenset[int]
    is_compacted: bool
    is_stamped_by_broker: bool


class ClusterReader:
    """One of the two clusters. Raises RetriableError, ConfigError.

    `second_connection` is the same cluster over connections of its own. `where` names it in errors. `refused`: a sentence for
    each topic that we may not describe.
    """

    def __init__(
        self,
        client: ClientConfig,
        where: str,
        isolation: IsolationLevel,
        *,
        fetch_bytes: int,
        is_restored: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`is_restored`: a topic whose compaction is paused has been so since it was created, and lacks no record."""
        self._is_restored = is_restored
        self.cluster, self.second_connection = Cluster(client, clock=clock), Cluster(client, clock=clock)
        self.isolation, self._where, self._clock = isolation, where, clock
        self._fetch_bytes, self._buffer = fetch_bytes, receive_buffer(fetch_bytes)
        self.refused: tuple[str, ...] = ()
        self._cluster_id: str | None = None
        self._topics: Mapping[str, TopicView] = {}
        self._starts: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.cluster.close()
        self.second_connection.close()

    def cluster_id(self) -> str:
        """Return the id. It is asked for once: nothing that is read between two answers depends on the second one."""
        if self._cluster_id is None:
            self._cluster_id = reach(self.cluster, self._where, self._deadline()).cluster_id
        return self._cluster_id

    def load_metadata(self, topic_partitions: Iterable[TopicPartition]) -> None:
        """Read metadata and log ends of all partitions at once, as of now. Missing and refused topics are left out."""
        topic_partitions = set(topic_partitions)
        self._topics = self._describe_topics(sorted({topic_partition.topic for topic_partition in topic_partitions}))
        existing = [
            topic_partition
            for topic_partition in topic_partitions
            if (view := self._topics.get(topic_partition.topic)) and topic_partition.partition in view.partitions
        ]
        for offsets, timestamp in ((self._ends, LATEST_TIMESTAMP), (self._starts, EARLIEST_TIMESTAMP)):
            if existing:
                listed = self.cluster.list_offsets(dict.fromkeys(existing, timestamp), self.isolation, self._deadline())
                offsets.update({topic_partition: listed_offset.offset for topic_partition, listed_offset in listed.items()})

    def topic(self, name: str) -> TopicView | None:
        """Return the topic; None if it does not exist, or is refused."""
        return self._topics.get(name)

    def has(self, topic_partition: TopicPartition) -> bool:
        return topic_partition in self._starts

    def log_view(self, topic_partition: TopicPartition) -> LogView:
        """Return the log as `load_metadata` saw it, a new one each time, because it grows; an empty one without a partition."""
        if not self.has(topic_partition):
            return LogView(0, 0, False)
        return LogView(
            self._starts[topic_partition], self._ends[topic_partition], self._topics[topic_partition.topic].is_compacted
        )

    def reader(self, topic_partition: TopicPartition, starts: Longs) -> PartitionReader:
        """Return a reader, to be used before the next one is: they share one buffer."""
        return PartitionReader(
            self.cluster,
            topic_partition,
            self.log_view(topic_partition),
            isolation=self.isolation,
            fetch_bytes=self._fetch_bytes,
            starts=starts,
            buffer=self._buffer,
            clock=self._clock,
        )

    def readers(self, topic_partition: TopicPartition, starts: Longs) -> tuple[PartitionReader, PartitionReader]:
        """Return a reader, and one of the same log over connections of its own."""
        reader = self.reader(topic_partition, starts)
        return reader, reader.with_cluster(self.second_connection)

    def _describe_topics(self, names: Sequence[str]) -> Mapping[str, TopicView]:
        listed = self.cluster.metadata(names, self._deadline()).topics if names else {}
        self.refused = tuple(self._refusals(names, listed))
        existing = [name for name in names if listed[name].error_code == 0]
        settings = self.cluster.topic_configs(existing, self._deadline()) if existing else {}
        return {
            name: TopicView(
                listed[name].topic_id,
                frozenset(listed[name].partitions),
                "compact" in settings[name].get("cleanup.policy", "") and not self._is_compaction_paused(settings[name]),
                settings[name].get("message.timestamp.type") == _LOG_APPEND_TIME,
            )
            for name in existing
        }

    def _is_compaction_paused(self, settings: Mapping[str, str]) -> bool:
        return self._is_restored and all(settings.get(name) == value for name, value in NOT_BY_KEY.items())

    def _refusals(self, names: Sequence[str], listed: Mapping[str, TopicMetadata]) -> Iterator[str]:
        """Brokers hide a topic that we may not describe, whether it exists or not. Only one code says that it does not."""
        for name in names:
            if name not in listed:
                raise RetriableError("PROTOCOL", f"the {self._where} leaves topic {name} out of its Metadata response")
            code = listed[name].error_code
            if code and error_class(code) is ErrorClass.DEFINITE:
                yield f"{self._where}: topic {name}: {refusal(code, 'Fetch', topic=name)}"
            elif code not in (0, UNKNOWN_TOPIC_OR_PARTITION):
                raise RetriableError(error_name(code), f"the {self._where} does not describe topic {name}")

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(PATIENCE_MS, self._clock)
