"""Everywhere: topics and leaders of a cluster as brokers answered last, and the connections to the brokers that they name."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.cluster.cluster_metadata import (
    ClusterMetadata,
    PartitionMetadata,
    ResponseErrors,
    TopicMetadata,
    parse_topic_metadata,
)
from shallow_mirror.broker.cluster.connection_pool import CONTROL, ConnectionPool
from shallow_mirror.broker.net.begun_call import BEGUN, BegunCall
from shallow_mirror.broker.net.connection import Connection
from shallow_mirror.broker.net.error_codes import ErrorClass, error_class
from shallow_mirror.broker.net.requests import LastAnswer, call, receive, request_class, send
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.types import TopicPartition


@dataclass(slots=True)
class _Listing:
    """Metadata of all topics, or of those of one tuple, as it was answered last."""

    topics: tuple[str, ...] | None
    metadata: ClusterMetadata = field(default_factory=lambda: ClusterMetadata("", {}, {}))
    last: LastAnswer = field(default_factory=LastAnswer)


class MetadataCache:
    """Metadata of topics, for leaders no older than `metadata.max.age.ms`. Nothing is repeated here."""

    def __init__(
        self,
        config: ClientConfig,
        pool: ConnectionPool,
        errors: ResponseErrors,
        clock: Callable[[], float],
        cluster_id: str = "",
    ) -> None:
        self._config = config
        self._pool = pool
        self._errors = errors
        self._clock = clock
        self._topics: dict[str, TopicMetadata] = {}
        self._topics_at = 0.0
        self._newest: dict[str, TopicMetadata] = {}
        """As `_topics`, but it is never forgotten: which leader epochs have been seen."""
        self._controller_id = -1
        self.cluster_id = cluster_id
        """Of the first response if it is not given; empty before it, and of brokers that do not name it. No other cluster is
        listened to."""
        self.has_met_another = False
        """Whether an address has led to another cluster."""
        self._asked_last = self._doubted = ""
        """Host and port: of the broker that was asked last, and of one that may know less than another."""
        self._all_topics = _Listing(None)
        self._named_topics = _Listing(())
        self.version = 0
        """Rises whenever leaders may have changed: what was derived of them with another version is stale."""

    def doubt(self) -> None:
        """Ask another broker next time, if there is one: the last one may not hear of changes any more."""
        self._doubted = self._asked_last

    def forget(self) -> None:
        self.doubt()
        self.version += 1
        self._topics.clear()
        self._topics_at = 0.0
        self._controller_id = -1

    def connection(self, node_id: int, purpose: str, deadline: Deadline) -> Connection:
        """Return the connection to a broker for one purpose, made when needed. Raises RetriableError."""
        if not self._pool.has_broker(node_id):
            self.refresh(None, deadline)
        return self._pool.connection(node_id, purpose, deadline)

    def any_broker(self, deadline: Deadline) -> Connection:
        """Return a connection to a listed broker, or to a bootstrap server that is of the same cluster still.

        Raises the last error when none can be reached.
        """
        connection = self._pool.any_broker(deadline, doubted=self._doubted)
        if self.cluster_id and not self._pool.is_listed(connection):
            self.refresh([], deadline)
            connection = self._pool.any_broker(deadline, doubted=self._doubted)
        self._asked_last = connection.transport.peer
        return connection

    def controller(self, deadline: Deadline) -> Connection:
        """Return a connection to the controller. Raises RetriableError, also while the cluster has none."""
        if self._controller_id < 0:
            self.refresh([], deadline)
        if self._controller_id < 0:
            raise RetriableError("NOT_CONTROLLER", "the cluster has no controller now")
        return self.connection(self._controller_id, CONTROL, deadline)

    def leaders(self, topic_partitions: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, PartitionMetadata]:
        """Return the leaders. Raises as `leaders_and_errors`, and RetriableError if a topic-partition has none now."""
        leaders, leaderless = self.leaders_and_errors(topic_partitions, deadline)
        for error in leaderless.values():
            raise error
        return leaders

    def leaders_and_errors(
        self, topic_partitions: Iterable[TopicPartition], deadline: Deadline
    ) -> tuple[dict[TopicPartition, PartitionMetadata], dict[TopicPartition, RetriableError]]:
        """Return the leaders, and an error for each topic-partition that has none now.

        Raises RetriableError if no broker answers, ConfigError if the permission to describe a topic is missing.
        """
        topic_partitions = list(topic_partitions)
        topics = self.known_topics({topic_partition.topic for topic_partition in topic_partitions}, deadline)
        leaders: dict[TopicPartition, PartitionMetadata] = {}
        leaderless: dict[TopicPartition, RetriableError] = {}
        for topic_partition in topic_partitions:
            topic = topics.get(topic_partition.topic)
            partition = None if topic is None else topic.partitions.get(topic_partition.partition)
            if partition is None or partition.leader < 0:
                leaderless[topic_partition] = RetriableError("LEADER_NOT_AVAILABLE", f"{topic_partition} has no leader")
            else:
                leaders[topic_partition] = partition
        if leaderless:
            # The next call has to look again: a partition is without a leader for a moment as a rule.
            self.forget()
        return leaders, leaderless

    def known_topics(self, names: set[str], deadline: Deadline) -> dict[str, TopicMetadata]:
        """Return cached metadata of those of the topics that exist. Raises as `leaders_and_errors`."""
        if self._clock() - self._topics_at > self._config.metadata_max_age_ms / 1000:
            self.forget()
        self._require_topics(names, deadline)
        return {name: self._topics[name] for name in names if name in self._topics}

    def partitions_by_leader(
        self, topic_partitions: Iterable[TopicPartition], deadline: Deadline
    ) -> dict[int, dict[str, list[int]]]:
        """Return partitions by topic, by node id of their leader. Raises as `leaders`."""
        return group_by_leader(self.leaders(topic_partitions, deadline))

    def refresh(self, topics: Sequence[str] | None, deadline: Deadline) -> ClusterMetadata:
        """Request metadata from any broker. None: of all topics. Raises RetriableError, ConfigError.

        Unchanged bytes of a response that is asked for again and again (of all topics, or of the same tuple) are not decoded
        again: the same object is returned.
        """
        deadline = deadline.sooner(self._config.request_timeout_ms)
        listing = self._listing_of(topics)
        last_answer = None if listing is None else listing.last.answer
        connection = self._pool.any_broker(deadline, doubted=self._doubted)
        self._asked_last = connection.transport.peer
        last = None if listing is None else listing.last
        response = call(connection, "Metadata", deadline, last=last, **_fields(topics))
        self._require_same_cluster(response, connection)
        brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        self._pool.set_brokers(brokers)
        if listing is None or last_answer is None or response is not last_answer:
            metadata = _parsed(response)
            self.version += 1
        else:
            metadata = listing.metadata
        if listing is not None:
            listing.metadata = metadata
        self._keep(metadata)
        return metadata

    def ask(self, node_id: int, topics: Sequence[str], deadline: Deadline) -> ClusterMetadata:
        """Return the metadata of topics that one broker has. It is not kept. Raises RetriableError."""
        connection = self.connection(node_id, CONTROL, deadline)
        response = call(connection, "Metadata", deadline, **_fields(topics))
        self._require_same_cluster(response, connection)
        return _parsed(response)

    def begin(
        self, topics: Sequence[str], deadline: Deadline, node_id: int | None = None, purpose: str = BEGUN
    ) -> BegunCall[ClusterMetadata]:
        """Request metadata of topics, to be received later. The response is not kept here: `learn`.

        `node_id`: of the broker; None: any. `purpose`: of the connection.
        """
        deadline = deadline.sooner(self._config.request_timeout_ms)

        def connect() -> Connection:
            return self._pool.any_broker(deadline, purpose) if node_id is None else self.connection(node_id, purpose, deadline)

        def receive_metadata(connection: Connection, receiving: Deadline) -> ClusterMetadata:
            response = receive(connection, "Metadata", receiving.sooner(self._config.request_timeout_ms))
            self._require_same_cluster(response, connection)
            return _parsed(response)

        return BegunCall(
            connect,
            lambda connection: send(connection, "Metadata", deadline, **_fields(topics)),
            receive_metadata,
        )

    def learn(self, metadata: ClusterMetadata) -> None:
        """Take metadata that another process of the mirror received a moment ago."""
        self.cluster_id = self.cluster_id or metadata.cluster_id
        self._pool.set_brokers(metadata.brokers)
        self.version += 1
        self._keep(metadata)

    def _require_same_cluster(self, response: Any, connection: Connection) -> None:
        """Raise RetriableError, and close the connection, if a broker is of another cluster than those before.

        A name or an address may lead to another one now, which may have topics of the same names: what it lacks is not gone.
        """
        cluster_id = response.cluster_id or ""
        if self.cluster_id and cluster_id and cluster_id != self.cluster_id:
            self.has_met_another = True
            self._pool.reject(connection)
            raise RetriableError(
                "OTHER_CLUSTER",
                f"{connection.transport.peer} answers as cluster {cluster_id}, not {self.cluster_id}: check bootstrap.servers, "
                "and where its names lead to now",
            )
        self.cluster_id = self.cluster_id or cluster_id

    def _keep(self, metadata: ClusterMetadata) -> None:
        for name, answered in metadata.topics.items():
            if answered.error_code == 0:
                topic = answered.with_newest(self._newest.get(name))
                if topic is not answered:  # of a broker that hears of no changes: a former leader would answer for itself
                    self.doubt()
                self._topics[name] = self._newest[name] = topic
        self._topics_at = self._clock()
        self._controller_id = metadata.controller_id

    def _require_topics(self, names: set[str], deadline: Deadline) -> None:
        if names <= self._topics.keys():
            return
        # All at once: what is in the cache already is of the same age then.
        refreshed = self.refresh(sorted(names | self._topics.keys()), deadline)
        for name in sorted(names & refreshed.topics.keys()):
            if error_class(refreshed.topics[name].error_code) is ErrorClass.DEFINITE:
                self._errors.raise_for(refreshed.topics[name].error_code, f"describing topic {name}", "Metadata", topic=name)

    def _listing_of(self, topics: Sequence[str] | None) -> _Listing | None:
        """Return the last answer to this question; None for questions that are not repeated."""
        if topics is None:
            return self._all_topics
        if not isinstance(topics, tuple):
            return None
        if self._named_topics.topics is not topics:
            self._named_topics = _Listing(topics)
        return self._named_topics


def _parsed(response: Any) -> ClusterMetadata:
    brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
    topics = {topic.name: parse_topic_metadata(topic) for topic in response.topics}
    return ClusterMetadata(response.cluster_id or "", brokers, topics, response.controller_id)


def _fields(topics: Sequence[str] | None) -> dict[str, Any]:
    entry = request_class("Metadata").MetadataRequestTopic
    return {
        "topics": None if topics is None else [entry(topic_id=uuid.UUID(int=0), name=name) for name in topics],
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False,
        "include_topic_authorized_operations": False,
    }


def group_by_leader(leaders: Mapping[TopicPartition, PartitionMetadata]) -> dict[int, dict[str, list[int]]]:
    """Return partitions by topic, by node id of their leader."""
    grouped: dict[int, dict[str, list[int]]] = {}
    for topic_partition, metadata in leaders.items():
        grouped.setdefault(metadata.leader, {}).setdefault(topic_partition.topic, []).append(topic_partition.partition)
    return grouped
