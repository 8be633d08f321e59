"""Everywhere: one Fetch to a replica, its answer, and what the errors of an answer mean to whoever reads raw batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.fetch.empty_ranges import remote_failure
from shallow_mirror.broker.net.connection import Connection, ReceiveBuffer
from shallow_mirror.broker.net.error_codes import TOPIC_AUTHORIZATION_FAILED, ErrorClass, error_class, error_name, refusal
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import (
    BatchRefusedError,
    ConfigError,
    CorruptBatchError,
    DataLossError,
    LogTruncatedError,
    MirrorError,
    RetriableError,
    TopicAccessError,
    TopicRecreatedError,
)
from shallow_mirror.types import IsolationLevel, TopicPartition
from shallow_mirror.wire.batches import IndexStop, StopReason
from shallow_mirror.wire.protocol import (
    FetchedPartition,
    FetchPartition,
    FetchResponse,
    TopicNames,
    WireError,
    build_fetch_request,
    build_leader_fetch_request,
    parse_fetch_response,
    parse_leader_fetch_response,
    topic_names,
)

MAX_BATCH_BYTES = 104_857_600
"""Largest answer accepted: socket.request.max.bytes of brokers bounds what anybody could have produced."""

_OFFSET_OUT_OF_RANGE = 1
_UNKNOWN_SERVER_ERROR = -1
_UNREADABLE_AT_THE_BROKER = frozenset({_UNKNOWN_SERVER_ERROR, 2})
_OTHER_TOPIC_ID = frozenset({100, 103})


@dataclass(frozen=True, slots=True)
class FetchForm:
    """How a Fetch was sent, which is how its response is parsed. `names` None: topics by name."""

    names: TopicNames | None = None
    is_leader_only: bool = False


def send_fetch(
    connection: Connection,
    partitions: Sequence[FetchPartition],
    *,
    isolation: IsolationLevel,
    max_wait_ms: int,
    max_bytes: int,
    deadline: Deadline,
    rack: str = "",
    is_leader_only: bool = False,
) -> FetchForm:
    """Send a Fetch, by topic ids if the broker and all partitions have them. Return the arguments for parsing the response.

    `is_leader_only`: the leader must not name a replica instead of answering; topics go by name then, and no rack is sent.
    Raises RetriableError; the connection is then closed.
    """
    if is_leader_only and connection.has_leader_fetch:
        correlation_id = connection.next_correlation_id()
        request = build_leader_fetch_request(
            correlation_id,
            connection.client_id,
            partitions,
            isolation=isolation,
            max_wait_ms=max_wait_ms,
            min_bytes=1,
            max_bytes=max_bytes,
        )
        connection.send(correlation_id, [request], deadline)
        return FetchForm(is_leader_only=True)
    names = topic_names(partitions) if connection.fetches_by_topic_id else None
    correlation_id = connection.next_correlation_id()
    request = build_fetch_request(
        correlation_id,
        connection.client_id,
        partitions,
        isolation=isolation,
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        names=names,
        rack="" if is_leader_only else rack,
    )
    connection.send(correlation_id, [request], deadline)
    return FetchForm(names)


def receive_fetch(
    connection: Connection,
    buffer: ReceiveBuffer,
    deadline: Deadline,
    form: FetchForm,
    *,
    silence_ms: float,
    on_begin: Callable[[], None] = lambda: None,
) -> FetchResponse:
    """Return the response to the oldest Fetch; its records are views of `buffer`. Closes and raises RetriableError.

    On a slow link a response may take until `deadline` as long as no silence lasts for `silence_ms`.
    """
    frame = connection.receive(deadline, buffer, silence_ms=silence_ms, on_begin=on_begin)
    try:
        return parse_leader_fetch_response(frame) if form.is_leader_only else parse_fetch_response(frame, form.names)
    except WireError as error:
        connection.close()
        raise RetriableError("PROTOCOL", f"unreadable Fetch answer: {error}") from error


def partition_error(
    cluster: Cluster,
    fetched: FetchedPartition,
    position: int,
    isolation: IsolationLevel,
    deadline: Deadline,
    topic_id: str = "",
    *,
    is_leader_only: bool = False,
) -> MirrorError | None:
    """Return the error of one partition of a response; None for a good one.

    DataLossError, CorruptBatchError, ConfigError or RetriableError. Requests the log's ends if the position is outside of
    them, and the topic's id if another topic may have its name, and then may itself raise RetriableError.
    """
    topic_partition, code = fetched.topic_partition, fetched.error_code
    if code == _OFFSET_OUT_OF_RANGE:
        return _out_of_range(cluster, topic_partition, position, isolation, deadline)
    # A request by name (is_leader_only) reads whatever topic has the name, so the id is checked behind every response. The ids of
    # a name never return: one that is there now was there when the leader read.
    if code in _OTHER_TOPIC_ID or (is_leader_only and not code and topic_id):
        topic = cluster.metadata([topic_partition.topic], deadline).topics.get(topic_partition.topic)
        if topic is not None and topic.error_code == 0 and topic.topic_id != topic_id:
            return TopicRecreatedError(topic_partition, position, topic_id, topic.topic_id)
    if code == _UNKNOWN_SERVER_ERROR and (remote := remote_failure(cluster, topic_partition, position, deadline)) is not None:
        return RetriableError(error_name(code), f"Fetch of {topic_partition} at {position}: {remote}")
    if code in _UNREADABLE_AT_THE_BROKER:
        return CorruptBatchError(topic_partition, position, 0, f"{cluster.where} answered {error_name(code)} to Fetch")
    if code and error_class(code) is ErrorClass.DEFINITE:
        text = f"Fetch of {topic_partition}: {cluster.where} answered {refusal(code, 'Fetch', topic=topic_partition.topic)}"
        return TopicAccessError(text, [topic_partition.topic]) if code == TOPIC_AUTHORIZATION_FAILED else ConfigError(text)
    if code:
        return RetriableError(error_name(code), f"Fetch of {topic_partition}")
    if fetched.diverging is not None:
        return DataLossError(
            topic_partition, position, fetched.log_start_offset, "the source's log was truncated below this offset"
        )
    return None


def _out_of_range(
    cluster: Cluster, topic_partition: TopicPartition, position: int, isolation: IsolationLevel, deadline: Deadline
) -> DataLossError:
    earliest = cluster.list_offsets({topic_partition: -2}, isolation, deadline)[topic_partition].offset
    latest = cluster.list_offsets({topic_partition: -1}, isolation, deadline)[topic_partition].offset
    if position < earliest:
        return DataLossError(topic_partition, position, earliest, "retention or DeleteRecords removed it before it was copied")
    causes = "this offset was never written, the log was truncated, or the topic was deleted and created again"
    detail = f"the log ends at {latest}: {causes}"
    return LogTruncatedError(topic_partition, position, detail, log_end=latest)


def stop_error(topic_partition: TopicPartition, stop: IndexStop) -> MirrorError:
    """Return the error of bytes that are no batch of magic 2: BatchRefusedError for older formats, else CorruptBatchError."""
    if stop.reason is StopReason.LEGACY_MAGIC:
        return BatchRefusedError(
            topic_partition,
            stop.base_offset,
            f"its record format ({stop.detail}) is older than Kafka 0.11",
            "Only the mirror converts old formats: start behind them, or exclude the topic",
        )
    return CorruptBatchError(topic_partition, stop.base_offset, stop.pos, f"{stop.reason.value}: {stop.detail}")
