"""Everywhere: the latest offsets of the same logs, asked for before every micro-batch: an idle partition costs only its bytes.

A request is built once for as long as the partitions and their leaders are the same, and a response is read as arrays.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from shallow_mirror.broker.cluster.cluster_metadata import ListedOffset
from shallow_mirror.broker.cluster.connection_pool import CONTROL
from shallow_mirror.broker.cluster.log_queries import LogQueries
from shallow_mirror.broker.cluster.metadata_cache import MetadataCache, group_by_leader
from shallow_mirror.broker.net.begun_call import BEGUN, BegunCall
from shallow_mirror.broker.net.connection import Connection
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError, RetriableError
from shallow_mirror.types import IsolationLevel, TopicPartition
from shallow_mirror.wire.protocol import WireError, list_offsets

_LENGTH = struct.Struct(">i")

_SLOW_FAILURE_S = 0.5
"""A leader that takes so long to fail is not asked again for twice as long: it delays the others a third of the time at most."""

_LEAST_SHARE_MS = 1_000.0
"""A leader has at least so long to answer, and half of the time that is left."""

Offsets = dict[TopicPartition, int]
Errors = dict[TopicPartition, MirrorError]


class LatestOffsets:
    """Latest offsets by topic-partition, or an error for each that has none."""

    def __init__(self, metadata: MetadataCache, queries: LogQueries, clock: Callable[[], float]) -> None:
        self._metadata = metadata
        self._queries = queries
        self._clock = clock
        self._plan: _RequestPlan | None = None
        self._silent: dict[int, tuple[float, RetriableError]] = {}
        """Leaders that are not asked until a time on the clock, and why."""

    def ask(
        self, topic_partitions: Sequence[TopicPartition], isolation: IsolationLevel, deadline: Deadline
    ) -> tuple[Offsets, Errors]:
        """Return the offsets of the leaders that answer, and an error for each of the other topic-partitions."""
        offsets, errors = self._ask_once(topic_partitions, isolation, deadline)
        # Most often the leader only moved to another broker.
        if any(type(error) is RetriableError for error in errors.values()):
            self._metadata.forget()
            offsets, errors = self._ask_once(topic_partitions, isolation, deadline)
        if errors:
            self._metadata.forget()
        return offsets, errors

    def begin(
        self, topic_partitions: Sequence[TopicPartition], isolation: IsolationLevel, deadline: Deadline
    ) -> list[BegunCall[Offsets]]:
        """Ask the leaders without waiting for their answers, which are empty if they hold errors."""
        requests = self._plan_for(topic_partitions, isolation, deadline).requests
        return [self._begin_at(node_id, request, deadline) for node_id, request in requests.items()]

    def _begin_at(self, node_id: int, request: LatestOffsetsRequest, deadline: Deadline) -> BegunCall[Offsets]:
        return BegunCall(
            lambda: self._metadata.connection(node_id, BEGUN, deadline),
            lambda connection: request.begin(connection, deadline),
            lambda connection, receiving: request.finish(connection, receiving) or {},
        )

    def _plan_for(
        self, topic_partitions: Sequence[TopicPartition], isolation: IsolationLevel, deadline: Deadline
    ) -> _RequestPlan:
        plan = self._plan
        if plan is None or not plan.is_for(topic_partitions, isolation, self._metadata.version):
            leaders, leaderless = self._metadata.leaders_and_errors(topic_partitions, deadline)
            requests = {
                node_id: LatestOffsetsRequest.of(partitions, isolation)
                for node_id, partitions in group_by_leader(leaders).items()
            }
            # The version after the call, which may have refreshed the metadata.
            plan = self._plan = _RequestPlan(topic_partitions, isolation, requests, leaderless, self._metadata.version)
        return plan

    def _ask_once(
        self, topic_partitions: Sequence[TopicPartition], isolation: IsolationLevel, deadline: Deadline
    ) -> tuple[Offsets, Errors]:
        plan = self._plan_for(topic_partitions, isolation, deadline)
        offsets: Offsets = {}
        errors: Errors = dict(plan.leaderless)
        for node_id, request in plan.requests.items():
            try:
                silent_until, silence = self._silent.get(node_id, (0.0, None))
                if silence is not None and self._clock() < silent_until:
                    raise silence
                offsets.update(self._ask_leader(node_id, request, isolation, deadline, errors))
            except RetriableError as error:
                errors.update(dict.fromkeys(request.topic_partitions(), error))
        return offsets, errors

    def _ask_leader(
        self, node_id: int, request: LatestOffsetsRequest, isolation: IsolationLevel, deadline: Deadline, errors: Errors
    ) -> Offsets:
        """Return the offsets of one leader; put errors of single topic-partitions into `errors`. Raises RetriableError."""
        started = self._clock()
        deadline = deadline.sooner(max(_LEAST_SHARE_MS, deadline.remaining_ms() / 2))
        try:
            offsets = request.send(self._metadata.connection(node_id, CONTROL, deadline), deadline)
            if offsets is not None:
                return offsets
            # The response holds errors: those are read by kafka-python's classes, of a request of their own.
            partitions, timestamps = request.partitions(), dict.fromkeys(request.topic_partitions(), -1)
            listed = self._queries.offsets_of_leader(node_id, "ListOffsets", partitions, timestamps, isolation, deadline)
        except RetriableError as error:
            now = self._clock()
            if now - started >= _SLOW_FAILURE_S:
                self._silent[node_id] = (now + 2 * (now - started), error)
            raise
        self._silent.pop(node_id, None)
        left_out = RetriableError("PROTOCOL", "the answer to ListOffsets leaves it out")
        errors.update({key: result for key, result in listed.items() if isinstance(result, MirrorError)})
        errors.update({key: left_out for key in timestamps if key not in listed})
        return {key: result.offset for key, result in listed.items() if isinstance(result, ListedOffset)}


@dataclass(frozen=True, slots=True)
class _RequestPlan:
    """Requests by leader, for the same object `topic_partitions` as long as the metadata has the same version."""

    topic_partitions: Sequence[TopicPartition]
    isolation: IsolationLevel
    requests: Mapping[int, LatestOffsetsRequest]
    leaderless: Mapping[TopicPartition, RetriableError]
    version: int

    def is_for(self, topic_partitions: Sequence[TopicPartition], isolation: IsolationLevel, version: int) -> bool:
        return self.topic_partitions is topic_partitions and self.isolation is isolation and self.version == version


@dataclass(frozen=True, slots=True)
class _TopicOrder:
    """The partitions of a topic in the order of a response."""

    partitions: list[int]
    topic_partitions: list[TopicPartition]

    @classmethod
    def of(cls, topic: str, partitions: list[int]) -> _TopicOrder:
        return cls(partitions, [TopicPartition(topic, partition) for partition in partitions])


@dataclass(frozen=True, slots=True)
class LatestOffsetsRequest:
    """A request to one leader. `topics` in the order of its last response: brokers have an order of their own."""

    body: bytes
    topics: dict[str, _TopicOrder]

    @classmethod
    def of(cls, partitions_by_topic: Mapping[str, Sequence[int]], isolation: IsolationLevel) -> LatestOffsetsRequest:
        topics = {topic: _TopicOrder.of(topic, list(partitions)) for topic, partitions in partitions_by_topic.items()}
        return cls(list_offsets.build_latest_body(partitions_by_topic, isolation), topics)

    def topic_partitions(self) -> list[TopicPartition]:
        return [topic_partition for order in self.topics.values() for topic_partition in order.topic_partitions]

    def partitions(self) -> dict[str, list[int]]:
        """Return partitions by topic."""
        return {topic: order.partitions for topic, order in self.topics.items()}

    def send(self, connection: Connection, deadline: Deadline) -> Offsets | None:
        """Return the offsets; None if the response holds errors or is to another request. Raises RetriableError."""
        self.begin(connection, deadline)
        return self.finish(connection, deadline)

    def begin(self, connection: Connection, deadline: Deadline) -> None:
        correlation_id = connection.next_correlation_id()
        header = list_offsets.build_header(correlation_id, connection.client_id)
        size = _LENGTH.pack(len(header) + len(self.body))
        connection.send(correlation_id, [size, header, self.body], deadline)

    def finish(self, connection: Connection, deadline: Deadline) -> Offsets | None:
        """Receive the answer to `begin`. Returns and raises as `send`."""
        frame = connection.receive(deadline)
        try:
            topics = list_offsets.parse_offsets(frame)
        except WireError as error:
            connection.close()
            raise RetriableError(
                "PROTOCOL", f"{connection.transport.peer} sent an unreadable answer to ListOffsets: {error}"
            ) from error
        if topics is None:
            return None
        offsets: Offsets = {}
        for topic, entries in topics:
            answered, order = entries["partition"].tolist(), self.topics.get(topic)
            if order is None or (answered != order.partitions and sorted(answered) != sorted(order.partitions)):
                return None
            if answered != order.partitions:
                order = self.topics[topic] = _TopicOrder.of(topic, answered)
            offsets.update(zip(order.topic_partitions, entries["offset"].tolist(), strict=True))
        return offsets
