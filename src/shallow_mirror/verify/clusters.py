"""Driver: what an audit asks both clusters before it reads: topics as they are now, the ends of logs, who compacts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.cluster_metadata import TopicMetadata
from shallow_mirror.broker.cluster.connectivity import reach
from shallow_mirror.broker.fetch.range_reader import receive_buffer
from shallow_mirror.broker.net.error_codes import UNKNOWN_TOPIC_OR_PARTITION, ErrorClass, error_class, error_name, refusal
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.types import IsolationLevel, TopicPartition
from shallow_mirror.verify.map_index import Longs
from shallow_mirror.verify.partition_reader import PATIENCE_MS, LogView, Side

_EARLIEST, _LATEST = -2, -1
_LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True, slots=True)
class TopicView:
    """`is_stamped_by_broker`: its batches have their broker's time (LogAppendTime)."""

    topic_id: str
    partitions: frozenset[int]
    is_compacted: bool
    is_stamped_by_broker: bool


class AuditedCluster:
    """One of the two clusters. `again` is the same cluster over connections of its own. Raises RetriableError, ConfigError.

    `where` names it in errors. `refused`: a sentence for each topic that was looked at and that we may not know.
    """

    def __init__(
        self,
        client: ClientConfig,
        where: str,
        isolation: IsolationLevel,
        *,
        fetch_bytes: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.cluster, self.again = Cluster(client, clock=clock), Cluster(client, clock=clock)
        self.isolation, self._where, self._clock = isolation, where, clock
        self._fetch_bytes, self._buffer = fetch_bytes, receive_buffer(fetch_bytes)
        self.refused: tuple[str, ...] = ()
        self._topics: Mapping[str, TopicView] = {}
        self._starts: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.cluster.close()
        self.again.close()

    def cluster_id(self) -> str:
        return reach(self.cluster, self._where, self._deadline()).cluster_id

    def look_at(self, places: Iterable[TopicPartition]) -> None:
        """Ask for all of them at once; the ends are those of this moment. What does not exist, or is refused, is left out."""
        places = set(places)
        self._topics = self._ask_topics(sorted({place.topic for place in places}))
        there = [place for place in places if (found := self._topics.get(place.topic)) and place.partition in found.partitions]
        for offsets, timestamp in ((self._ends, _LATEST), (self._starts, _EARLIEST)):
            if there:
                listed = self.cluster.list_offsets(dict.fromkeys(there, timestamp), self.isolation, self._deadline())
                offsets.update({place: one.offset for place, one in listed.items()})

    def topic(self, name: str) -> TopicView | None:
        """None where it does not exist, or is refused."""
        return self._topics.get(name)

    def has(self, place: TopicPartition) -> bool:
        return place in self._starts

    def log_view(self, place: TopicPartition) -> LogView:
        """As it was looked at; a new one each time, because it grows. An empty log where there is no such partition."""
        if not self.has(place):
            return LogView(0, 0, False)
        return LogView(self._starts[place], self._ends[place], self._topics[place.topic].is_compacted)

    def side(self, place: TopicPartition, starts: Longs) -> Side:
        """To be used before the next one is asked for: they share one buffer."""
        return Side(
            self.cluster,
            place,
            self.log_view(place),
            isolation=self.isolation,
            fetch_bytes=self._fetch_bytes,
            starts=starts,
            buffer=self._buffer,
            clock=self._clock,
        )

    def _ask_topics(self, names: Sequence[str]) -> Mapping[str, TopicView]:
        listed = self.cluster.metadata(names, self._deadline()).topics if names else {}
        self.refused = tuple(self._refusals(names, listed))
        there = [name for name in names if listed[name].error_code == 0]
        settings = self.cluster.topic_configs(there, self._deadline()) if there else {}
        return {
            name: TopicView(
                listed[name].topic_id,
                frozenset(listed[name].partitions),
                "compact" in settings[name].get("cleanup.policy", ""),
                settings[name].get("message.timestamp.type") == _LOG_APPEND_TIME,
            )
            for name in there
        }

    def _refusals(self, names: Sequence[str], listed: Mapping[str, TopicMetadata]) -> Iterator[str]:
        """Brokers hide a topic that we may not describe, whether it exists or not. Only one code says that it does not."""
        for name in names:
            if name not in listed:
                raise RetriableError("PROTOCOL", f"the {self._where} leaves topic {name} out of its answer to Metadata")
            code = listed[name].error_code
            if code and error_class(code) is ErrorClass.DEFINITE:
                yield f"{self._where}: topic {name}: {refusal(code, 'Fetch', topic=name)}"
            elif code not in (0, UNKNOWN_TOPIC_OR_PARTITION):
                raise RetriableError(error_name(code), f"the {self._where} does not describe topic {name}")

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(PATIENCE_MS, self._clock)
