"""Executor, and wherever raw batches are read: planned ranges as raw Fetch responses with their headers indexed.

One Fetch per leader is on the wire while the caller works on the answer before it: positions follow from headers alone.
Sessionless fetches, so every request names all partitions that are not done; their order rotates, because a response is
filled from the front.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shallow_mirror.broker.cluster import Cluster
from shallow_mirror.broker.connection import Connection, ReceiveBuffer
from shallow_mirror.broker.error_codes import UNKNOWN_TOPIC_OR_PARTITION, error_name
from shallow_mirror.broker.fetch_exchange import (
    MAX_BATCH_BYTES,
    is_in_remote_storage,
    partition_error,
    receive_fetch,
    send_fetch,
    stop_error,
)
from shallow_mirror.broker.missing_topics import missing_topics
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError, Retriable
from shallow_mirror.types import IsolationLevel, TopicPartition
from shallow_mirror.wire.batch_index import BatchIndex, StopReason, index_batches
from shallow_mirror.wire.fetch import FetchedPartition, FetchPartition, TopicNames
from shallow_mirror.wire.legacy import convert_legacy
from shallow_mirror.wire.records import OPENED_FETCHES

OVER_FETCH = 1.1
OVER_FETCH_SLACK_BYTES = 65_536
"""A range's last fetch asks for its estimated rest times `OVER_FETCH`, plus the slack."""

LEAST_SHARE_BYTES = 1 << 20
"""A partition's part of an answer is at least this, and its share of `fetch_bytes`: where the first partition fills the
answer, what is produced next has one batch per request."""

EMPTY_ANSWERS_AT_END = 2
TRIES_BEFORE_GONE = 8
"""Between one and two seconds without a batch: then it is asked whether the topics are still there."""
"""Empty answers in a row, with the log known to reach beyond the range, that mean: no batch is left in it."""

_FRAME_SLACK_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class ReadRange:
    """[position, end) of a topic-partition; batches whose base offset lies in it are its own.

    With `topic_id`, and from Kafka 3.1 on, a topic that was created again is never read in its place.
    """

    topic_partition: TopicPartition
    position: int
    end: int
    bytes_per_offset: float
    topic_id: str = ""


@dataclass(frozen=True, slots=True)
class IndexedPartition:
    """Whole batches of one partition. `records` is writable and valid until the reader is resumed."""

    topic_partition: TopicPartition
    index: BatchIndex
    records: memoryview
    aborted: tuple[tuple[int, int], ...]
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    fetch_offset: int


FetchedResponse = tuple[IndexedPartition, ...]


@dataclass(slots=True)
class _Progress:
    range: ReadRange
    position: int
    empty_answers: int = 0

    @property
    def is_done(self) -> bool:
        return self.position >= self.range.end


class RangeReader:
    """Iterate once. Raises DataLoss, CorruptBatch, BatchRefused (too large to be opened), ConfigError, Retriable.

    Message sets of magic 0 and 1 come as batches of magic 2 with the same offsets.

    One receive buffer of `fetch_bytes`; it grows to the size of a single larger batch, `MAX_BATCH_BYTES` at the most. Readers
    that follow each other may share one `buffer`: a new one costs as much as reading a few megabytes.
    An iteration that is left early closes its connections, because an answer is still on the wire.
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
        buffer: ReceiveBuffer | None = None,
    ) -> None:
        self._cluster, self._isolation = cluster, isolation
        self._fetch_bytes, self._deadline, self._max_wait_ms = fetch_bytes, deadline, max_wait_ms
        self._progress = {one.topic_partition: _Progress(one, one.position) for one in ranges}
        self._buffer = receive_buffer(fetch_bytes) if buffer is None else buffer
        self._order = deque(self._progress)
        self._asked: dict[int, Sequence[TopicPartition]] = {}
        self._names: dict[int, TopicNames | None] = {}
        self._failure: MirrorError | None = None
        self._tries = 0

    def positions(self) -> dict[TopicPartition, int]:
        """Where each range stands: at its end or beyond once the iteration is over."""
        return {place: one.position for place, one in self._progress.items()}

    def __iter__(self) -> Iterator[FetchedResponse]:
        waiting: dict[int, Connection] = {}
        try:
            while True:
                self._send_where_idle(waiting)
                if not waiting:
                    if self._undone():
                        continue
                    return
                node_id = next(iter(waiting))
                connection = waiting[node_id]
                answered = self._receive(node_id, connection, waiting)
                if answered is None:
                    continue
                response = self._advance(answered, self._asked[node_id])
                if self._failure is None:
                    self._send_where_idle(waiting)
                if response:
                    yield response
                if self._failure is not None:
                    raise self._failure
        finally:
            for connection in waiting.values():
                connection.close()

    def _undone(self) -> list[TopicPartition]:
        return [place for place in self._order if not self._progress[place].is_done]

    def _send_where_idle(self, waiting: dict[int, Connection]) -> None:
        """A Fetch to every leader that has none on the wire and still owes something.

        What an earlier leader was asked for is left to its answer: two answers would bring the same batches.
        """
        on_the_wire = {place for node_id in waiting for place in self._asked[node_id]}
        idle = [place for place in self._undone() if place not in on_the_wire]
        if not idle:
            return
        self._deadline.require(f"batches of {idle[0]} from offset {self._progress[idle[0]].position}")
        failed: Retriable | None = None
        try:
            leaders = self._cluster.leaders(idle, self._deadline)
        except Retriable as error:
            return self._again(error)
        by_leader: dict[int, list[TopicPartition]] = {}
        for place in idle:
            by_leader.setdefault(leaders[place].leader, []).append(place)
        for node_id, places in by_leader.items():
            if node_id in waiting:
                continue
            try:
                waiting[node_id] = self._send(node_id, places)
            except Retriable as error:
                failed = error
        if failed is not None:
            self._again(failed)

    def _again(self, error: Retriable) -> None:
        self._cluster.forget_metadata()
        self._cluster.pause(self._tries, self._deadline)
        self._tries += 1
        if self._deadline.is_over():
            raise error
        if self._tries >= TRIES_BEFORE_GONE:
            self._require_topics(error)

    def _require_topics(self, error: Retriable) -> None:
        """Raises Retriable where a topic is not there: it was deleted, and nothing of it will ever come."""
        names = sorted({place.topic for place in self._undone()})
        gone = missing_topics(self._cluster, names, self._deadline).gone
        if gone:
            name = error_name(UNKNOWN_TOPIC_OR_PARTITION)
            raise Retriable(name, f"{self._cluster.where} has no topic {', '.join(gone)} any more") from error

    def _send(self, node_id: int, places: Sequence[TopicPartition]) -> Connection:
        connection = self._cluster.connection(node_id, "fetch", self._deadline)
        self._asked[node_id] = places
        self._names[node_id] = send_fetch(
            connection,
            [self._fetch_of(place, max(self._fetch_bytes // len(places), LEAST_SHARE_BYTES)) for place in places],
            isolation=self._isolation,
            max_wait_ms=self._max_wait_ms,
            max_bytes=self._fetch_bytes,
            deadline=self._deadline.sooner(self._cluster.config.request_timeout_ms),
        )
        return connection

    def _fetch_of(self, place: TopicPartition, share_bytes: int) -> FetchPartition:
        """Leader epochs are left out: positions were checked when the range was planned."""
        progress = self._progress[place]
        left = (progress.range.end - progress.position) * progress.range.bytes_per_offset
        wanted = min(share_bytes, int(left * OVER_FETCH) + OVER_FETCH_SLACK_BYTES)
        return FetchPartition(place, -1, progress.position, wanted, topic_id=progress.range.topic_id)

    def _receive(
        self, node_id: int, connection: Connection, waiting: dict[int, Connection]
    ) -> tuple[FetchedPartition, ...] | None:
        one = self._deadline.sooner(self._cluster.config.request_timeout_ms + self._max_wait_ms)
        try:
            response = receive_fetch(connection, self._buffer, one, self._names[node_id])
        except Retriable as error:
            self._again(error)
            return None
        finally:
            del waiting[node_id]
        if response.error_code:
            self._again(Retriable(error_name(response.error_code), "Fetch"))
            return None
        if response.throttle_time_ms:
            self._cluster.wait(response.throttle_time_ms, self._deadline)
            if not any(len(one.records) for one in response.partitions):  # empty whatever the log holds
                return None
        return response.partitions

    def _advance(self, answered: Sequence[FetchedPartition], asked: Sequence[TopicPartition]) -> FetchedResponse:
        """Index every partition, move positions, remember the first failure for after the good batches."""
        out: list[IndexedPartition] = []
        error: Retriable | None = None
        owed, has_records = set(asked), False
        for fetched in answered:
            if fetched.topic_partition not in owed:
                error = Retriable("PROTOCOL", f"a Fetch answer holds {fetched.topic_partition} unasked or twice")
                continue
            owed.remove(fetched.topic_partition)
            progress = self._progress[fetched.topic_partition]
            wrong = partition_error(
                self._cluster, fetched, progress.position, self._isolation, self._deadline, progress.range.topic_id
            )
            if isinstance(wrong, Retriable):
                error = wrong
                continue
            if wrong is not None:
                self._failure = wrong
                continue
            indexed = self._index(fetched, progress, is_sure=not has_records)
            has_records = has_records or len(fetched.records) > 0
            if indexed is not None:
                out.append(indexed)
        self._order.rotate(-1)
        if out:
            self._tries = 0
        if error is not None:
            self._cluster.forget_metadata()
        if error is not None and not out:
            self._again(error)
        return tuple(out)

    def _index(self, fetched: FetchedPartition, progress: _Progress, *, is_sure: bool) -> IndexedPartition | None:
        records, index, failure = self._whole_batches(fetched)
        fetch_offset = progress.position
        self._failure = failure or self._failure
        if not len(index):
            if is_sure:
                self._count_empty(fetched, progress)
            return None
        progress.empty_answers = 0
        progress.position = max(progress.position, _reached(index, progress.range.end))
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

    def _whole_batches(self, fetched: FetchedPartition) -> tuple[memoryview, BatchIndex, MirrorError | None]:
        """With what ends them, if that is no partial batch."""
        records, place = fetched.records, fetched.topic_partition
        index = index_batches(records)
        if index.stop is not None and index.stop.reason is StopReason.LEGACY_MAGIC:
            converted = convert_legacy(records, place, max_opened_bytes=OPENED_FETCHES * self._fetch_bytes)
            records, index = converted.records, index_batches(converted.records)
            if converted.failure is not None:
                return records, index, converted.failure
        return records, index, None if index.stop is None else stop_error(place, index.stop)

    def _count_empty(self, fetched: FetchedPartition, progress: _Progress) -> None:
        """Compaction may have removed the last batches of a range: then no batch will ever come.

        Limits are ignored up to the first partition of an answer that has a batch: those in front of it surely have none,
        unless they are in remote storage, where nothing is ever compacted.
        """
        is_committed = self._isolation is IsolationLevel.READ_COMMITTED
        reached = fetched.last_stable_offset if is_committed else fetched.high_watermark
        if len(fetched.records) or reached < progress.range.end:
            return
        progress.empty_answers += 1
        if progress.empty_answers < EMPTY_ANSWERS_AT_END:
            return
        if is_in_remote_storage(self._cluster, fetched.topic_partition, progress.position, self._deadline):
            progress.empty_answers = 0
        else:
            progress.position = progress.range.end


def receive_buffer(fetch_bytes: int) -> ReceiveBuffer:
    return ReceiveBuffer(fetch_bytes + _FRAME_SLACK_BYTES, MAX_BATCH_BYTES)


def _reached(index: BatchIndex, range_end: int) -> int:
    """Behind the last batch of the range; its end, where batches of the next range were fetched along with it."""
    base_offsets = index.headers["base_offset"]
    ours = index.last_offset[base_offsets < range_end]
    reached = int(ours[-1]) + 1 if len(ours) else 0
    return max(reached, range_end) if len(ours) < len(base_offsets) else reached
