"""Everywhere: planned ranges as raw Fetch responses with their headers indexed.

One Fetch per broker that is read from is on the wire while the caller works on the response before it: positions follow from
headers alone. Fetches are sessionless, so every request names all partitions that are not done; their order rotates, because
a response is filled from the front.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.read_replicas import LANES, FetchPath, ReadSource
from shallow_mirror.broker.fetch.empty_ranges import EmptyAnswers
from shallow_mirror.broker.fetch.fetch_client import (
    MAX_BATCH_BYTES,
    FetchForm,
    partition_error,
    receive_fetch,
    send_fetch,
)
from shallow_mirror.broker.fetch.indexed_partition import FetchedResponse, IndexedPartition, position_after, whole_batches
from shallow_mirror.broker.fetch.range_progress import RangeProgress, ReadRange
from shallow_mirror.broker.fetch.range_retries import RangeRetries
from shallow_mirror.broker.fetch.response_buffers import ResponseBuffers
from shallow_mirror.broker.net.connection import Connection, ReceiveBuffer
from shallow_mirror.broker.net.error_codes import error_name
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError, RetriableError
from shallow_mirror.types import IsolationLevel, TopicPartition
from shallow_mirror.wire.protocol import FetchedPartition, FetchPartition
from shallow_mirror.wire.records import OPENED_FETCHES

OVER_FETCH = 1.1
OVER_FETCH_SLACK_BYTES = 65_536
"""A range's last Fetch requests its estimated rest times `OVER_FETCH`, plus the slack; from a broker that is far away, one batch
more instead."""

LEAST_SHARE_BYTES = 1 << 20
"""A partition's part of a response is at least this, and its share of `fetch_bytes`: where the first partition fills the
response, what is produced next has one batch per request."""

PARTITION_PATIENCE_MS = 2_000.0
"""How long a partition may be unreadable, or its log end below its range, before a reader that may leave it unfinished does so. A
new leader may trail for moments. The other partitions of the slot wait for it so long, once; what is left is planned again after
a second."""

_LOOK_MS = 10_000.0
"""How long the cause of an error of one partition is looked for: the others wait so long."""

SMALL_BATCH_BYTES = 64 << 10
"""Batches that are smaller than this on average: what a Produce request costs counts more than its bytes, and it holds one batch
of each partition of a response."""

BUFFER_SLACK_BYTES = 1 << 20
"""A buffer may hold so much more than `fetch_bytes`: what is around the records, and a step of its growth."""


class _SentFetch(NamedTuple):
    """The last Fetch of a path. `size_bytes`: how much it requested."""

    sources: Mapping[TopicPartition, ReadSource]
    form: FetchForm
    size_bytes: int


class RangeReader:
    """An iterable of responses, for one iteration.

    Raises DataLossError, CorruptBatchError, BatchRefusedError (too large to be opened), ConfigError, RetriableError. Message
    sets of magic 0 and 1 are converted to batches of magic 2 with the same offsets.

    A partition that cannot be read does not delay others. With `patience_ms` the iteration ends without those that were
    unreadable for so long, once all others are done; `unfinished` names them. Without, they are waited for until the deadline.

    Responses of `fetch_bytes` are received into `buffers` in turn, into a single one if none are given: a response stays valid
    until the iteration was resumed as often as `responses` says, or as there are buffers. With two buffers for each of them,
    small batches that come over both connections to a broker are yielded as one response. A buffer grows to the size of a
    single larger batch, `MAX_BATCH_BYTES` at the most. Readers that follow each other may share them: a new one costs as much
    as reading a few megabytes. A Fetch asks for less if the link to the broker is slow (fetch_pace.py), which readers of the
    same `cluster` learn from each other. An iteration that is left early closes its connections, because a response is still
    on the wire.

    If a range is open, a response without batches is yielded as an empty one: an iteration never ends by itself then.
    """

    def __init__(
        self,
        cluster: Cluster,
        ranges: Sequence[ReadRange],
        *,
        isolation: IsolationLevel,
        fetch_bytes: int,
        deadline: Deadline,
        max_wait_ms: int = 500,
        buffers: Sequence[ReceiveBuffer] = (),
        responses: int | None = None,
        patience_ms: float | None = None,
    ) -> None:
        self._cluster = cluster
        self._isolation = isolation
        self._fetch_bytes = fetch_bytes
        self._deadline = deadline
        self._max_wait_ms = max_wait_ms
        self._retries = RangeRetries(cluster, ranges, deadline, patience_ms)
        self._progress = self._retries.progress
        self._is_following = any(read_range.is_open for read_range in ranges)
        receive_buffers = buffers or [receive_buffer(fetch_bytes)]
        self._buffers = ResponseBuffers(receive_buffers, responses or len(receive_buffers))
        self._sent: dict[FetchPath, _SentFetch] = {}
        self._full: set[FetchPath] = set()
        """Whose last response was about as large as requested: there is more to read."""
        self._joins_lanes = False
        """Whether batches are so small that the responses of both lanes are yielded together."""
        self._empty_answers = EmptyAnswers(cluster, isolation, deadline)
        self._failure: MirrorError | None = None
        self._end_by: Deadline | None = None
        self._is_too_late = False
        self.has_ended_early = False
        """Whether `end_by` ended the iteration before the end of a range."""

    def end_by(self, end: Deadline) -> None:
        """Stop waiting for responses at `end`: the iteration ends with the responses so far, wherever the ranges end."""
        self._end_by = end

    def positions(self) -> dict[TopicPartition, int]:
        """Return the position of each range after the iteration: at its end or beyond, except for unfinished ones."""
        return {topic_partition: progress.position for topic_partition, progress in self._progress.items()}

    def unfinished(self) -> dict[TopicPartition, RetriableError]:
        """Return why ranges were left at their positions; empty without `patience_ms`."""
        return {
            topic_partition: progress.unfinished
            for topic_partition, progress in self._progress.items()
            if progress.unfinished is not None
        }

    def __iter__(self) -> Iterator[FetchedResponse]:
        waiting: dict[FetchPath, Connection] = {}
        try:
            while True:
                self._send_where_idle(waiting)
                self._retries.leave_unreadable()
                if not self._retries.partitions_left():
                    return
                if self._is_over() or (self._is_too_late and not waiting):
                    self.has_ended_early = True
                    return
                if not waiting:
                    self._retries.wait_for_next()
                    continue
                path = next(iter(waiting))
                response = self._response(path, waiting)
                if response is None:
                    continue
                if response and self._is_joined(path, response, waiting):
                    response += self._response(path.other_lane, waiting) or ()
                if response:
                    yield response
                    self._buffers.resumed()
                elif self._is_following:
                    yield ()
                if self._failure is not None:
                    raise self._failure
        finally:
            for connection in waiting.values():
                connection.close()

    def _response(self, path: FetchPath, waiting: dict[FetchPath, Connection]) -> FetchedResponse | None:
        """Receive one response, and send the next request before its batches are used; None: there was none."""
        answered = self._receive(path, waiting[path], waiting)
        if answered is None:
            return None
        response = self._advance(answered, self._sent[path].sources)
        if response:
            self._buffers.take()
        if self._failure is None:
            self._send_where_idle(waiting)
        return response

    def _is_joined(self, path: FetchPath, response: FetchedResponse, waiting: Mapping[FetchPath, Connection]) -> bool:
        """Return whether the response of the other lane joins this one, so that Produce requests hold batches of both.

        It is waited for if both are full: they were requested at about the same time.
        """
        other = waiting.get(path.other_lane)
        if other is None or self._failure is not None or not self._joins_lanes:
            return False
        # A lane that was done with its partitions may have been given the next request of this one: a response names each once.
        if any(fetched.topic_partition in self._sent[path.other_lane].sources for fetched in response):
            return False
        is_backlog = path in self._full and path.other_lane in self._full
        wait_s = min(self._cluster.fetch_pace(path).round_trip_s, self._time_left_s()) if is_backlog else 0.0
        return other.wait_readable(min(wait_s * 1000, self._deadline.remaining_ms()))

    def _is_over(self) -> bool:
        return self._end_by is not None and self._end_by.is_over()

    def _time_left_s(self) -> float:
        return math.inf if self._end_by is None else self._end_by.remaining_ms() / 1000

    def _send_where_idle(self, waiting: dict[FetchPath, Connection]) -> None:
        """Send a Fetch to every broker that has none on the wire and leads something unfinished."""
        # What an earlier leader was asked for is left to its response: two responses would bring the same batches.
        on_the_wire = {topic_partition for path in waiting for topic_partition in self._sent[path].sources}
        idle = [topic_partition for topic_partition in self._retries.partitions_left() if topic_partition not in on_the_wire]
        if not idle:
            return
        if self._deadline.is_over():
            self._retries.give_up(idle[0])
        now = self._deadline.clock()
        due = [topic_partition for topic_partition in idle if self._progress[topic_partition].retry_at <= now]
        if not due:
            return
        try:
            sources, leaderless = self._cluster.read_sources_and_errors(due, self._deadline)
        # No broker answers: no partition can be read.
        except RetriableError as error:
            return self._retries.pause(error)
        for topic_partition, leader_error in leaderless.items():
            self._retries.fail([topic_partition], leader_error)
        by_path: dict[FetchPath, dict[TopicPartition, ReadSource]] = {}
        for topic_partition, source in sources.items():
            by_path.setdefault(source.path, {})[topic_partition] = source
        for path, path_sources in self._in_lanes(by_path, waiting):
            if not self._cluster.fetch_pace(path).may_begin(self._time_left_s()):
                self._is_too_late = True
                continue
            began = self._deadline.clock()
            try:
                # Two lanes share the bytes of a response that is yielded with batches of both.
                lanes = len(LANES) if self._joins_lanes and path.other_lane in waiting else 1
                waiting[path] = self._send(path, path_sources, self._fetch_bytes // lanes)
            except RetriableError as error:
                self._cluster.read_replicas.failed(path_sources)
                self._retries.fail(list(path_sources), error, self._deadline.clock() - began)

    def _in_lanes(
        self, by_path: Mapping[FetchPath, dict[TopicPartition, ReadSource]], waiting: Collection[FetchPath]
    ) -> Iterator[tuple[FetchPath, dict[TopicPartition, ReadSource]]]:
        """Yield the request for each connection that has nothing on the wire.

        A broker that is far away is sent two requests, each for some of the partitions: while one response arrives, the other
        request is on its way. Its partitions are divided whenever neither connection has a request on the wire.
        """
        for path, sources in by_path.items():
            lanes, is_far = [path._replace(lane=lane) for lane in LANES], self._cluster.fetch_pace(path).is_far
            free = [lane for lane in lanes if lane not in waiting]
            if len(free) == len(lanes) and is_far and len(sources) > 1:
                keys = list(sources)
                for lane, chosen in zip(lanes, (keys[::2], keys[1::2]), strict=True):
                    yield lane, {key: sources[key] for key in chosen}
            elif len(free) == len(lanes) or (free and is_far):
                yield free[0], sources

    def _send(self, path: FetchPath, sources: Mapping[TopicPartition, ReadSource], most_bytes: int) -> Connection:
        connection = self._cluster.connection(path.node_id, path.purpose, self._deadline)
        pace = self._cluster.fetch_pace(path)
        size_bytes = pace.request_bytes(most_bytes, self._time_left_s())
        form = send_fetch(
            connection,
            [
                self._fetch_of(topic_partition, max(size_bytes // len(sources), LEAST_SHARE_BYTES), is_far=pace.is_far)
                for topic_partition in sources
            ],
            isolation=self._isolation,
            max_wait_ms=self._max_wait_ms,
            max_bytes=size_bytes,
            deadline=self._deadline.sooner(self._cluster.config.request_timeout_ms),
            rack=self._cluster.config.client_rack,
            is_leader_only=path.is_leader_only,
        )
        self._sent[path] = _SentFetch(sources, form, size_bytes)
        pace.sent()
        return connection

    def _fetch_of(self, topic_partition: TopicPartition, share_bytes: int, *, is_far: bool) -> FetchPartition:
        # Without leader epochs: positions were checked when the range was planned.
        progress = self._progress[topic_partition]
        left = (progress.range.end - progress.position) * progress.range.bytes_per_offset
        # The last batch of a range may reach beyond its end. One that is not returned whole costs a round trip.
        slack = max(OVER_FETCH_SLACK_BYTES, progress.largest_batch_bytes if is_far else 0)
        wanted = min(share_bytes, int(left * OVER_FETCH) + slack)
        return FetchPartition(topic_partition, -1, progress.position, wanted, topic_id=progress.range.topic_id)

    def _receive(
        self, path: FetchPath, connection: Connection, waiting: dict[FetchPath, Connection]
    ) -> tuple[FetchedPartition, ...] | None:
        pace, sent = self._cluster.fetch_pace(path), self._sent[path]
        silence_ms = self._cluster.config.request_timeout_ms + self._max_wait_ms
        end = self._deadline if self._end_by is None else self._deadline.sooner(self._end_by.remaining_ms())
        try:
            response = receive_fetch(connection, self._buffers.next(), end, sent.form, silence_ms=silence_ms, on_begin=pace.began)
        except RetriableError as error:
            # Nothing is wrong with the broker: it is not waited for any longer.
            if self._is_over():
                return None
            pace.failed()
            self._cluster.read_replicas.failed(sent.sources)
            self._retries.fail(list(sent.sources), error)
            return None
        finally:
            del waiting[path]
        received_bytes = sum(len(fetched.records) for fetched in response.partitions)
        pace.received(received_bytes)
        if received_bytes * 2 >= sent.size_bytes:
            self._full.add(path)
        else:
            self._full.discard(path)
        if response.error_code:
            self._cluster.read_replicas.failed(sent.sources)
            self._retries.fail(list(sent.sources), RetriableError(error_name(response.error_code), "Fetch"))
            return None
        if response.throttle_time_ms:
            self._cluster.wait(response.throttle_time_ms, self._deadline)
            if not any(len(fetched.records) for fetched in response.partitions):
                # A throttled response is empty whatever the log holds: no sign of a hole.
                return None
        return response.partitions

    def _advance(self, partitions: Sequence[FetchedPartition], sources: Mapping[TopicPartition, ReadSource]) -> FetchedResponse:
        """Index every partition, move positions, keep the first failure until the good batches are used."""
        indexed_partitions: list[IndexedPartition] = []
        expected, has_records = set(sources), False
        for fetched in partitions:
            topic_partition = fetched.topic_partition
            if topic_partition not in expected:
                error = RetriableError("PROTOCOL", f"a Fetch answer holds {topic_partition} unasked or twice")
                self._retries.fail(list(sources), error)
                continue
            expected.remove(topic_partition)
            progress, source = self._progress[topic_partition], sources[topic_partition]
            try:
                if self._cluster.read_replicas.is_redirected(fetched, source):
                    continue
                fetch_error = partition_error(
                    self._cluster,
                    fetched,
                    progress.position,
                    self._isolation,
                    self._deadline.sooner(_LOOK_MS),
                    progress.range.topic_id,
                    is_leader_only=source.path.is_leader_only,
                )
            except RetriableError as error:
                fetch_error = error
            if isinstance(fetch_error, RetriableError):
                self._retries.fail([topic_partition], fetch_error)
                continue
            if fetch_error is not None:
                self._failure = fetch_error
                continue
            indexed = self._index(fetched, progress, source, is_sure=not has_records)
            has_records = has_records or len(fetched.records) > 0
            if indexed is not None:
                indexed_partitions.append(indexed)
        self._retries.on_response(has_batches=bool(indexed_partitions))
        if indexed_partitions:
            batches = sum(len(partition.index) for partition in indexed_partitions)
            is_small = sum(len(partition.records) for partition in indexed_partitions) < batches * SMALL_BATCH_BYTES
            self._joins_lanes = is_small and self._buffers.can_join
        return tuple(indexed_partitions)

    def _index(
        self, fetched: FetchedPartition, progress: RangeProgress, source: ReadSource, *, is_sure: bool
    ) -> IndexedPartition | None:
        records, index, failure = whole_batches(fetched, OPENED_FETCHES * self._fetch_bytes, progress.range.end)
        fetch_offset = progress.position
        if failure is not None and source.is_follower:
            # The log of the leader may be undamaged: the good batches count, the rest is read from the leader.
            self._cluster.read_replicas.ask_leader_alone(fetched.topic_partition, source.leader)
            failure = None
        if not len(index):
            self._failure = failure or self._failure
            if is_sure:
                unproven = self._empty_answers.count(fetched, progress, source)
                if unproven is not None:
                    self._retries.fail([fetched.topic_partition], unproven)
            return None
        progress.note_batches(int(index.size_bytes.max()))
        progress.position = max(progress.position, position_after(index, progress.range.end))
        # Damage behind the end of the range is of no concern to it.
        if not progress.is_done:
            self._failure = failure or self._failure
        return IndexedPartition(
            fetched.topic_partition,
            index,
            records,
            fetched.aborted,
            fetched.log_start_offset,
            fetched.last_stable_offset,
            fetched.high_watermark,
            fetch_offset,
        )


def receive_buffer(fetch_bytes: int) -> ReceiveBuffer:
    return ReceiveBuffer(fetch_bytes + BUFFER_SLACK_BYTES, MAX_BATCH_BYTES)
