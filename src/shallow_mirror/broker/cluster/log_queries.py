"""Everywhere: what the leaders of topic-partitions report about their logs: offsets, leader epochs, producers.

One request to each leader; nothing is repeated here. RetriableError for what may pass (another leader, network), ConfigError
where a permission is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from shallow_mirror.broker.cluster.cluster_metadata import ListedOffset, LogDescription, ProducerState, ResponseErrors
from shallow_mirror.broker.cluster.connection_pool import CONTROL
from shallow_mirror.broker.cluster.metadata_cache import MetadataCache
from shallow_mirror.broker.net.begun_call import BEGUN, DecodedCall
from shallow_mirror.broker.net.requests import call, request_class
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError, RetriableError
from shallow_mirror.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, EpochEnd, IsolationLevel, TopicPartition

_EARLIEST_LOCAL = -4

_K = TypeVar("_K")
_V = TypeVar("_V")


class LogQueries:
    """Requests to leaders, which come from the metadata cache."""

    def __init__(self, metadata: MetadataCache, errors: ResponseErrors) -> None:
        self._metadata = metadata
        self._errors = errors

    def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], isolation: IsolationLevel, deadline: Deadline
    ) -> dict[TopicPartition, ListedOffset]:
        return self._list_offsets("ListOffsets", timestamps, isolation, deadline)

    def local_log_starts(self, topic_partitions: Iterable[TopicPartition], deadline: Deadline) -> dict[TopicPartition, int]:
        """Return the start of the local part of each log (KIP-405). Raises BrokerTooOldError before Kafka 3.5."""
        timestamps = dict.fromkeys(topic_partitions, _EARLIEST_LOCAL)
        listed = self._list_offsets("ListLocalOffsets", timestamps, IsolationLevel.READ_UNCOMMITTED, deadline)
        return {topic_partition: local_start.offset for topic_partition, local_start in listed.items()}

    def _list_offsets(
        self, api: str, timestamps: Mapping[TopicPartition, int], isolation: IsolationLevel, deadline: Deadline
    ) -> dict[TopicPartition, ListedOffset]:
        offsets: dict[TopicPartition, ListedOffset] = {}
        for node_id, partitions in self._metadata.partitions_by_leader(timestamps, deadline).items():
            offsets |= _require_offsets(self.offsets_of_leader(node_id, api, partitions, timestamps, isolation, deadline))
        return require_all(timestamps, offsets, api)

    def offsets_of_leader(
        self,
        node_id: int,
        api: str,
        partitions_by_topic: Mapping[str, Sequence[int]],
        timestamps: Mapping[TopicPartition, int],
        isolation: IsolationLevel,
        deadline: Deadline,
    ) -> dict[TopicPartition, ListedOffset | MirrorError]:
        """Return the response of one leader, errors of single topic-partitions as values. Raises RetriableError."""
        connection = self._metadata.connection(node_id, CONTROL, deadline)
        fields = _list_offsets_fields(api, partitions_by_topic, timestamps.__getitem__, isolation)
        return self._listed(call(connection, api, deadline, **fields))

    def _listed(self, response: Any) -> dict[TopicPartition, ListedOffset | MirrorError]:
        results: dict[TopicPartition, ListedOffset | MirrorError] = {}
        for topic_partition, entry in _entries(response.topics):
            what = f"listing the offset of {topic_partition}"
            error = self._errors.error_of(entry.error_code, what, "ListOffsets", topic=topic_partition.topic)
            results[topic_partition] = error or ListedOffset(entry.offset, entry.timestamp, entry.leader_epoch)
        return results

    def epoch_ends(self, leader_epochs: Mapping[TopicPartition, int], deadline: Deadline) -> dict[TopicPartition, EpochEnd]:
        topic = request_class("OffsetForLeaderEpoch").OffsetForLeaderTopic
        ends: dict[TopicPartition, EpochEnd] = {}
        for node_id, partitions_by_topic in self._metadata.partitions_by_leader(leader_epochs, deadline).items():
            topics = [
                topic(
                    topic=name,
                    partitions=[
                        topic.OffsetForLeaderPartition(
                            partition=index, current_leader_epoch=-1, leader_epoch=leader_epochs[TopicPartition(name, index)]
                        )
                        for index in partitions
                    ],
                )
                for name, partitions in partitions_by_topic.items()
            ]
            connection = self._metadata.connection(node_id, CONTROL, deadline)
            response = call(connection, "OffsetForLeaderEpoch", deadline, replica_id=-1, topics=topics)
            for answered_topic in response.topics:
                for entry in answered_topic.partitions:
                    topic_partition = TopicPartition(answered_topic.topic, entry.partition)
                    what = f"asking for the leader epochs of {topic_partition}"
                    self._errors.raise_for(entry.error_code, what, "OffsetForLeaderEpoch", topic=topic_partition.topic)
                    ends[topic_partition] = EpochEnd(entry.leader_epoch, entry.end_offset)
        return require_all(leader_epochs, ends, "OffsetForLeaderEpoch")

    def describe_producers(
        self, topic_partitions: Sequence[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        producers: dict[TopicPartition, tuple[ProducerState, ...]] = {}
        for node_id, partitions_by_topic in self._metadata.partitions_by_leader(topic_partitions, deadline).items():
            connection = self._metadata.connection(node_id, CONTROL, deadline)
            fields = _describe_producers_fields(partitions_by_topic)
            producers |= self._described(call(connection, "DescribeProducers", deadline, **fields))
        return require_all(topic_partitions, producers, "DescribeProducers")

    def _described(self, response: Any) -> dict[TopicPartition, tuple[ProducerState, ...]]:
        producers: dict[TopicPartition, tuple[ProducerState, ...]] = {}
        for topic_partition, entry in _entries(response.topics):
            what = f"describing the producers of {topic_partition}"
            self._errors.raise_for(entry.error_code, what, "DescribeProducers", topic=topic_partition.topic)
            producers[topic_partition] = tuple(
                ProducerState(
                    state.producer_id,
                    state.producer_epoch,
                    state.current_txn_start_offset,
                    state.last_timestamp,
                    state.coordinator_epoch,
                    state.last_sequence,
                )
                for state in entry.active_producers
            )
        return producers

    def describe_logs(
        self, topic_partitions: Sequence[TopicPartition], deadline: Deadline
    ) -> dict[TopicPartition, LogDescription]:
        """Return start, end and producers of each log: all leaders are asked at once, which takes the time of one request.

        A broker serves a connection in turn, so the producers are described after the end was listed.
        """
        by_leader = self._metadata.partitions_by_leader(topic_partitions, deadline)
        begun = [self._begin_description(node_id, asked, deadline) for node_id, asked in by_leader.items()]
        starts: dict[TopicPartition, ListedOffset] = {}
        ends: dict[TopicPartition, ListedOffset] = {}
        producers: dict[TopicPartition, tuple[ProducerState, ...]] = {}
        for begun_starts, begun_ends, begun_producers in begun:
            starts |= _require_offsets(self._listed(begun_starts.receive(deadline)))
            ends |= _require_offsets(self._listed(begun_ends.receive(deadline)))
            producers |= self._described(begun_producers.receive(deadline))
        require_all(topic_partitions, starts, "ListOffsets")
        require_all(topic_partitions, ends, "ListOffsets")
        require_all(topic_partitions, producers, "DescribeProducers")
        return {key: LogDescription(starts[key].offset, ends[key].offset, producers[key]) for key in topic_partitions}

    def _begin_description(
        self, node_id: int, partitions_by_topic: Mapping[str, Sequence[int]], deadline: Deadline
    ) -> tuple[DecodedCall, DecodedCall, DecodedCall]:
        def begin(api: str, fields: Mapping[str, Any]) -> DecodedCall:
            return DecodedCall(lambda: self._metadata.connection(node_id, BEGUN, deadline), api, deadline, fields)

        return (
            begin("ListOffsets", _list_offsets_fields("ListOffsets", partitions_by_topic, lambda _: EARLIEST_TIMESTAMP)),
            begin("ListOffsets", _list_offsets_fields("ListOffsets", partitions_by_topic, lambda _: LATEST_TIMESTAMP)),
            begin("DescribeProducers", _describe_producers_fields(partitions_by_topic)),
        )


def _list_offsets_fields(
    api: str,
    partitions_by_topic: Mapping[str, Sequence[int]],
    timestamp_of: Callable[[TopicPartition], int],
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> dict[str, Any]:
    topic = request_class(api).ListOffsetsTopic
    return {
        "replica_id": -1,
        "isolation_level": 1 if isolation is IsolationLevel.READ_COMMITTED else 0,
        "topics": [
            topic(
                name=name,
                partitions=[
                    topic.ListOffsetsPartition(
                        partition_index=index, current_leader_epoch=-1, timestamp=timestamp_of(TopicPartition(name, index))
                    )
                    for index in partitions
                ],
            )
            for name, partitions in partitions_by_topic.items()
        ],
    }


def _describe_producers_fields(partitions_by_topic: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    topic = request_class("DescribeProducers").TopicRequest
    return {"topics": [topic(name=name, partition_indexes=partitions) for name, partitions in partitions_by_topic.items()]}


def _require_offsets(listed: Mapping[TopicPartition, ListedOffset | MirrorError]) -> dict[TopicPartition, ListedOffset]:
    """Return the offsets. Raises the first error."""
    offsets: dict[TopicPartition, ListedOffset] = {}
    for topic_partition, result in listed.items():
        if isinstance(result, MirrorError):
            raise result
        offsets[topic_partition] = result
    return offsets


def _entries(topics: Iterable[Any]) -> list[tuple[TopicPartition, Any]]:
    """Return the entries of a response that names its topics `name` and its partitions `partition_index`."""
    return [(TopicPartition(topic.name, entry.partition_index), entry) for topic in topics for entry in topic.partitions]


def require_all(requested: Iterable[_K], answered: dict[_K, _V], api: str) -> dict[_K, _V]:
    """Return `answered`. Raises RetriableError if it leaves out something that was requested."""
    for key in requested:
        if key not in answered:
            raise RetriableError("PROTOCOL", f"the answer to {api} leaves out {key}")
    return answered
