"""Everywhere: `BatchConsumer`: record batches as a poll loop, without Spark and without opening them.

Every broker that is read from has at most one Fetch on the wire, for those of its partitions that no other request names.
A poll takes the first response that is there, from whichever broker, and sends that broker the next Fetch before it returns:
positions follow from headers alone. Responses that were not taken wait in their sockets, so one receive buffer serves all
brokers.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self

import numpy as np

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.clients.client_validation import client_config, number_problems, raise_problems
from shallow_mirror.broker.clients.fetched_batches import FetchedBatches, FetchedPart
from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.cluster_metadata import TopicMetadata
from shallow_mirror.broker.cluster.read_replicas import FetchPath, ReadSource
from shallow_mirror.broker.fetch.fetch_client import (
    MAX_BATCH_BYTES,
    FetchForm,
    partition_error,
    receive_fetch,
    send_fetch,
    stop_error,
)
from shallow_mirror.broker.net.connection import Connection, ReceiveBuffer
from shallow_mirror.broker.net.error_codes import error_name
from shallow_mirror.broker.net.transport import first_readable
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import BatchRefusedError, ConfigError, MirrorError, RetriableError
from shallow_mirror.types import BatchLimits, IsolationLevel, LogAppendTimePolicy, TopicPartition
from shallow_mirror.wire.batches import Verdict, admit, index_batches
from shallow_mirror.wire.protocol import FetchedPartition, FetchPartition

MAX_WAIT_MS = 500
"""A leader without data answers after this long, as fetch.max.wait.ms of Java's consumer."""

PARTITION_BYTES = 1 << 20
"""A partition's share of a response is at least this much, as max.partition.fetch.bytes of Java's consumer. Without shares
one partition would fill whole responses, and a producer, which sends one batch per partition in a request, would be slow."""

_TIMESTAMPS = {"earliest": -2, "latest": -1}
_NO_END = (1 << 63) - 1
_VISIBLE = (Verdict.RAW, Verdict.REBUILD)


@dataclass(frozen=True, slots=True)
class _Asked:
    """A Fetch on the wire. `expires`: when its broker counts as unreachable."""

    connection: Connection
    form: FetchForm
    sources: Mapping[TopicPartition, ReadSource]
    expires: Deadline


class BatchConsumer:
    """Reads raw record batches of assigned topic-partitions; without groups and committed offsets (KIP-712, pollBatch).

    `client` holds librdkafka-named properties, or is a `ClientConfig`. Under READ_COMMITTED, the default, only batches with
    records that a read_committed consumer sees are handed out. READ_UNCOMMITTED hands out all that the log holds, control
    batches included. Not thread-safe. Raises ConfigError with every wrong setting.
    """

    def __init__(
        self,
        client: ClientConfig | Mapping[str, object],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._cluster = Cluster(client_config(client), clock=clock, sleep=sleep)
        self._isolation = isolation
        self._clock = clock
        self._sleep = sleep
        self._limits = BatchLimits(
            max_message_bytes=MAX_BATCH_BYTES, isolation_level=isolation, log_append_time=LogAppendTimePolicy.PRODUCER
        )
        self._positions: dict[TopicPartition, int] = {}
        self._topic_ids: dict[str, str] = {}
        self._order: deque[TopicPartition] = deque()
        self._asked: dict[FetchPath, _Asked] = {}
        self._buffer = ReceiveBuffer(0, MAX_BATCH_BYTES)
        self._lent: FetchedBatches | None = None
        self._failure: MirrorError | None = None

    def assign(self, offsets: Mapping[TopicPartition, int | Literal["earliest", "latest"]]) -> None:
        """Assign these topic-partitions, in place of all others, with the offsets to begin at.

        `latest` is the last stable offset under READ_COMMITTED, else the high watermark. An offset inside a batch hands out
        that whole batch. Raises ConfigError for topic-partitions that do not exist, RetriableError when the cluster does not
        answer in time; the assignment before is then kept. An offset outside of the log shows at the next poll, as
        DataLossError, and so does a topic that is deleted and created again (with brokers before Kafka 3.1 it does not show).
        """
        raise_problems(
            [
                f"assign: {offset!r} of {topic_partition} is neither an offset nor earliest nor latest"
                for topic_partition, offset in offsets.items()
                if offset not in _TIMESTAMPS and not (isinstance(offset, int) and offset >= 0)
            ]
        )
        deadline = Deadline.after_ms(self._cluster.config.request_timeout_ms, self._clock)
        topics: Mapping[str, TopicMetadata] = {}
        if offsets:
            self._cluster.require_partitions(offsets, deadline)
            topics = self._cluster.metadata(sorted({topic_partition.topic for topic_partition in offsets}), deadline).topics
        timestamps = {
            topic_partition: _TIMESTAMPS[offset] for topic_partition, offset in offsets.items() if isinstance(offset, str)
        }
        listed = self._cluster.list_offsets(timestamps, self._isolation, deadline) if timestamps else {}
        self._forget_asked()
        self._failure = None
        self._topic_ids = {name: topic.topic_id for name, topic in topics.items()}
        self._positions = {
            topic_partition: listed[topic_partition].offset if isinstance(offset, str) else offset
            for topic_partition, offset in offsets.items()
        }
        self._order = deque(self._positions)

    def position(self, topic_partition: TopicPartition) -> int:
        """Return the offset of the next batch: behind everything handed out or left out. Raises KeyError if not assigned."""
        return self._positions[topic_partition]

    def poll_batches(self, max_bytes: int, timeout_ms: float) -> FetchedBatches:
        """Return the batches of one response: about `max_bytes`, but a single batch of any size; empty after `timeout_ms`.

        The batches of the last poll become invalid, because their buffer is reused. Raises BatchesInFlightError while a
        producer still needs them; then nothing changed. The request may have been sent by the previous poll, with its
        `max_bytes`; `timeout_ms` bounds the wait for data, not for connections (`request.timeout.ms`), nor a response that has
        begun: over a slow link it may take longer, as long as `request.timeout.ms` never passes without a part of it.

        Raises RetriableError (poll again), DataLossError, CorruptBatchError, BatchRefusedError (formats before Kafka 0.11). All
        of these are raised after the good batches in front of them were handed out, and leave the position as it is.
        """
        raise_problems(number_problems("max_bytes", max_bytes, 1), number_problems("timeout_ms", timeout_ms, 0))
        if not self._positions:
            raise ConfigError("poll_batches: nothing is assigned; call assign() first")
        self._take_back()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        wait = Deadline.after_ms(timeout_ms, self._clock)
        error: RetriableError | None = None
        tries = 0
        while True:
            not_asked = self._ask_where_idle(max_bytes)
            error = not_asked or error
            try:
                parts = self._accept_next(wait)
            except RetriableError as caught:
                parts, error = None, caught
            else:
                error = error if parts is None else not_asked
            if parts:
                self._ask_where_idle(max_bytes)
                self._lent = FetchedBatches(parts)
                return self._lent
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if wait.is_over():
                if error is not None:
                    raise error
                return FetchedBatches(())
            if error is not None:
                self._cluster.forget_metadata()
            if not self._asked:
                self._cluster.pause(tries, wait)
                tries += 1

    def close(self) -> None:
        """Close the connections. Batches of the last poll keep their bytes."""
        self._forget_asked()
        self._positions = {}
        self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _take_back(self) -> None:
        if self._lent is not None:
            self._lent.loan.end()
            self._lent = None
        # Slices or arrays that the caller made look through the buffer: their bytes must not change.
        if self._buffer.is_viewed():
            self._buffer = ReceiveBuffer(0, MAX_BATCH_BYTES)

    def _forget_asked(self) -> None:
        for asked in self._asked.values():
            asked.connection.close()
        self._asked.clear()

    def _ask_where_idle(self, max_bytes: int) -> RetriableError | None:
        """Send a Fetch to every broker that has none on the wire; return the last error of those that failed."""
        on_the_wire = {topic_partition for asked in self._asked.values() for topic_partition in asked.sources}
        idle = [topic_partition for topic_partition in self._order if topic_partition not in on_the_wire]
        if not idle:
            return None
        deadline = Deadline.after_ms(self._cluster.config.request_timeout_ms, self._clock)
        try:
            sources, leaderless = self._cluster.read_sources_and_errors(idle, deadline)
        except RetriableError as error:
            return error
        failed = next(iter(leaderless.values()), None)
        by_path: dict[FetchPath, dict[TopicPartition, ReadSource]] = {}
        for topic_partition, source in sources.items():
            by_path.setdefault(source.path, {})[topic_partition] = source
        for path, path_sources in by_path.items():
            if path in self._asked:
                continue
            try:
                self._asked[path] = self._ask(path, path_sources, max_bytes, deadline)
            except RetriableError as error:
                self._cluster.read_replicas.failed(path_sources)
                failed = error
        return failed

    def _ask(self, path: FetchPath, sources: Mapping[TopicPartition, ReadSource], max_bytes: int, deadline: Deadline) -> _Asked:
        connection = self._cluster.connection(path.node_id, path.purpose, deadline)
        share = min(max_bytes, max(max_bytes // len(sources), PARTITION_BYTES))
        form = send_fetch(
            connection,
            [FetchPartition(key, -1, self._positions[key], share, topic_id=self._id_of(key)) for key in sources],
            isolation=self._isolation,
            max_wait_ms=MAX_WAIT_MS,
            max_bytes=max_bytes,
            deadline=deadline,
            rack=self._cluster.config.client_rack,
            is_leader_only=path.is_leader_only,
        )
        expires = Deadline.after_ms(MAX_WAIT_MS + self._cluster.config.request_timeout_ms, self._clock)
        return _Asked(connection, form, sources, expires)

    def _accept_next(self, wait: Deadline) -> tuple[FetchedPart, ...] | None:
        """Return the next response's batches; None when `wait` is over or nothing is on the wire. Raises RetriableError."""
        if not self._asked:
            return None
        by_transport = {id(asked.connection.transport): path for path, asked in self._asked.items()}
        ready = first_readable([asked.connection.transport for asked in self._asked.values()], wait)
        if ready is None:
            self._give_up_expired()
            return None
        asked = self._asked.pop(by_transport[id(ready)])
        timeout_ms = self._cluster.config.request_timeout_ms
        try:
            response = receive_fetch(
                asked.connection, self._buffer, Deadline(math.inf, self._clock), asked.form, silence_ms=timeout_ms
            )
        except RetriableError:
            self._cluster.read_replicas.failed(asked.sources)
            raise
        if response.throttle_time_ms:
            self._sleep(min(response.throttle_time_ms, wait.remaining_ms()) / 1000)
        if response.error_code:
            self._cluster.read_replicas.failed(asked.sources)
            raise RetriableError(error_name(response.error_code), "Fetch")
        if not {fetched.topic_partition for fetched in response.partitions} <= asked.sources.keys():
            asked.connection.close()
            raise RetriableError(
                "PROTOCOL", f"{asked.connection.transport.peer} answered for other partitions than were asked for"
            )
        parts, error = [], None
        deadline = Deadline.after_ms(timeout_ms, self._clock)
        for fetched in response.partitions:
            try:
                part = self._part(fetched, asked.sources[fetched.topic_partition], deadline)
            except RetriableError as caught:
                part, error = None, caught
                # Also where the poll has batches of other partitions, and does not raise it: the leader may have moved.
                self._cluster.forget_metadata()
            if part is not None and len(part.chosen):
                parts.append(part)
        self._order.rotate(-1)
        if error is not None and not parts:
            raise error
        return tuple(parts)

    def _give_up_expired(self) -> None:
        for path, asked in list(self._asked.items()):
            if asked.expires.is_over():
                del self._asked[path]
                self._cluster.read_replicas.failed(asked.sources)
                asked.connection.close()
                raise RetriableError("REQUEST_TIMED_OUT", f"{asked.connection.transport.peer} did not answer Fetch")

    def _id_of(self, topic_partition: TopicPartition) -> str:
        return self._topic_ids.get(topic_partition.topic, "")

    def _part(self, fetched: FetchedPartition, source: ReadSource, deadline: Deadline) -> FetchedPart | None:
        """Move the position of one partition; keep an error for the poll after the good batches in front of it."""
        topic_partition = fetched.topic_partition
        position = self._positions[topic_partition]
        if self._cluster.read_replicas.is_redirected(fetched, source):
            return None
        topic_id = self._id_of(topic_partition)
        fetch_error = partition_error(self._cluster, fetched, position, self._isolation, deadline, topic_id)
        if isinstance(fetch_error, RetriableError):
            raise fetch_error
        if fetch_error is not None:
            self._failure = fetch_error
            return None
        index = index_batches(fetched.records)
        if index.stop is not None and source.is_follower:
            # The log of the leader may be undamaged.
            self._cluster.read_replicas.ask_leader_alone(topic_partition, source.leader)
        elif index.stop is not None:
            self._failure = stop_error(topic_partition, index.stop)
        admission = admit(
            index,
            fetched.records,
            topic_partition=topic_partition,
            position=position,
            range_end=_NO_END,
            aborted=fetched.aborted,
            limits=self._limits,
        )
        end = len(index)
        if admission.refusals:
            first = admission.refusals[0]
            end = first.index
            self._failure = BatchRefusedError(topic_partition, first.base_offset, first.rule, first.remedy)
        behind = int(index.last_offset[:end].max(initial=position - 1)) + 1
        self._positions[topic_partition] = max(position, behind)
        verdicts = admission.verdicts[:end]
        is_committed = self._isolation is IsolationLevel.READ_COMMITTED
        is_handed_out = np.isin(verdicts, _VISIBLE) if is_committed else verdicts != Verdict.DROP_BELOW
        return FetchedPart(topic_partition, index, fetched.records, np.flatnonzero(is_handed_out))
