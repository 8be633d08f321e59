"""Everywhere: metadata of a cluster as values, and error codes of responses as exceptions that name the cluster."""

from __future__ import annotations

import base64
import enum
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from shallow_mirror.broker.net.error_codes import TOPIC_AUTHORIZATION_FAILED, ErrorClass, error_class, error_name, refusal
from shallow_mirror.errors import ConfigError, MirrorError, RetriableError, TopicAccessError
from shallow_mirror.types import TopicPartition

FAR_S = 0.02
"""A broker is far away where no response of it has begun sooner."""


class CoordinatorKind(enum.Enum):
    GROUP = 0
    TXN = 1


@dataclass(frozen=True, slots=True)
class PartitionMetadata:
    """One partition. `leader` is -1 while there is none. `in_sync_count`: replicas in sync, the leader's among them."""

    partition: int
    leader: int
    leader_epoch: int
    replica_count: int
    in_sync_count: int = 1


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    name: str
    topic_id: str
    is_internal: bool
    error_code: int
    partitions: Mapping[int, PartitionMetadata]

    def with_newest(self, known: TopicMetadata | None) -> TopicMetadata:
        """Return the topic with those partitions of `known` whose leaders are of a higher epoch. Before Kafka 2.8: `self`."""
        if known is None or known is self or known.topic_id != self.topic_id or self.topic_id == _NO_TOPIC_ID:
            return self
        newer = {
            number: partition
            for number, partition in known.partitions.items()
            if number in self.partitions and partition.leader_epoch > self.partitions[number].leader_epoch
        }
        return replace(self, partitions={**self.partitions, **newer}) if newer else self


@dataclass(frozen=True, slots=True)
class ClusterMetadata:
    """Metadata of one response.

    `controller_id`: the broker that takes administrative requests, -1 while there is none. With KRaft, any that forwards them.
    """

    cluster_id: str
    brokers: Mapping[int, tuple[str, int]]
    topics: Mapping[str, TopicMetadata]
    controller_id: int = -1

    def has(self, topic_partition: TopicPartition) -> bool:
        return topic_partition.topic in self.topics and topic_partition.partition in self.topics[topic_partition.topic].partitions

    def is_in_sync(self, topic_partition: TopicPartition) -> bool:
        """Return whether a partition is there and has a leader, and all of its replicas are in sync."""
        if not self.has(topic_partition):
            return False
        partition = self.topics[topic_partition.topic].partitions[topic_partition.partition]
        return partition.leader >= 0 and partition.in_sync_count == partition.replica_count


class SendSpeed(NamedTuple):
    """Speed of the path to a broker, and duration of an answer."""

    bytes_per_s: float
    round_trip_s: float

    @property
    def is_far(self) -> bool:
        return self.round_trip_s >= FAR_S


class FetchSpeed(NamedTuple):
    """How many bytes a Fetch of a broker asks for, how fast its responses arrive, and how soon the first of them did."""

    request_bytes: float
    bytes_per_s: float
    least_wait_s: float


@dataclass(frozen=True, slots=True)
class PathSpeeds:
    """The paths to the brokers of a cluster, by node id, as one process has measured them."""

    sending: Mapping[int, SendSpeed] = field(default_factory=dict)
    fetching: Mapping[int, FetchSpeed] = field(default_factory=dict)

    def __or__(self, other: PathSpeeds) -> PathSpeeds:
        """Return these with those of `other` in their place."""
        return PathSpeeds({**self.sending, **other.sending}, {**self.fetching, **other.fetching})


@dataclass(frozen=True, slots=True)
class KnownCluster:
    """Knowledge of one process of the mirror about a cluster, for another: node ids of `coordinators` by kind and key.

    `is_new`: the metadata is of this moment. Older metadata helps processes that know nothing yet.
    """

    metadata: ClusterMetadata
    coordinators: Mapping[tuple[CoordinatorKind, str], int]
    speeds: PathSpeeds
    is_new: bool


@dataclass(frozen=True, slots=True)
class ListedOffset:
    """A result of ListOffsets. `offset` is -1 if no record is as new as the timestamp of the request."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class ProducerState:
    """A producer as the leader of a partition remembers it."""

    producer_id: int
    producer_epoch: int
    current_txn_start_offset: int
    """-1 if it has no open transaction."""
    last_timestamp_ms: int
    """Of its newest batch, -1 if the broker has none."""
    coordinator_epoch: int = -1
    """Of its last transaction marker there, -1 if there was none."""
    last_sequence: int = -1
    """Of the last record of its newest batch."""

    @property
    def last_written_at(self) -> str | None:
        """Return when its newest batch was written there, by the clock of the client; None: the broker has none."""
        if self.last_timestamp_ms < 0:
            return None
        try:
            return datetime.fromtimestamp(self.last_timestamp_ms / 1000, UTC).isoformat(timespec="seconds")
        except (ValueError, OverflowError, OSError):  # producers may send any number
            return f"timestamp {self.last_timestamp_ms}"


@dataclass(frozen=True, slots=True)
class LogDescription:
    """A log as its leader describes it: [start, end), then the producers: they are never of an earlier moment than the end."""

    start: int
    end: int
    producers: tuple[ProducerState, ...]


def parse_topic_metadata(topic: Any) -> TopicMetadata:
    return TopicMetadata(
        topic.name,
        _topic_id(topic.topic_id),
        bool(topic.is_internal),
        topic.error_code,
        {
            partition.partition_index: PartitionMetadata(
                partition.partition_index,
                partition.leader_id,
                partition.leader_epoch,
                len(partition.replica_nodes),
                len(partition.isr_nodes),
            )
            for partition in topic.partitions
        },
    )


def _topic_id(topic_id: uuid.UUID | None) -> str:
    """Format an id as Kafka prints it: URL-safe base64 without padding. The decoder returns None for the zero id."""
    raw = bytes(16) if topic_id is None else topic_id.bytes
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


_NO_TOPIC_ID = _topic_id(None)
"""Of every topic, where brokers know no ids: one that was created again cannot be told from the former one."""


class ResponseErrors:
    """Errors of one cluster. `cluster_name` is for messages."""

    def __init__(self, cluster_name: str) -> None:
        self._cluster_name = cluster_name

    def raise_for(self, code: int, what: str, api: str, *, topic: str = "", key: str = "") -> None:
        """Raise the result of `error_of`; return for code 0."""
        error = self.error_of(code, what, api, topic=topic, key=key)
        if error is not None:
            raise error

    def error_of(self, code: int, what: str, api: str, *, topic: str = "", key: str = "") -> MirrorError | None:
        """Return RetriableError for an error that may pass, ConfigError for one that a person must fix, None for 0."""
        if code == 0:
            return None
        if error_class(code) is not ErrorClass.DEFINITE:
            return RetriableError(error_name(code), what)
        text = f"{what}: {self._cluster_name} answered {refusal(code, api, topic=topic, key=key)}"
        return TopicAccessError(text, [topic]) if code == TOPIC_AUTHORIZATION_FAILED else ConfigError(text)
