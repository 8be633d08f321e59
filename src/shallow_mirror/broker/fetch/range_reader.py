"""Executor, and wherever raw batches are read: planned ranges as raw Fetch responses with their headers indexed.

One Fetch per broker that is read from is on the wire while the caller works on the answer before it: positions follow from
headers alone. Sessionless fetches, so every request names all partitions that are not done; their order rotates, because a
response is filled from the front.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.missing_topics import missing_topics
from shallow_mirror.broker.cluster.read_replicas import FetchPath, ReadSource
from shallow_mirror.broker.fetch.empty_ranges import REMOTE_STORAGE, TopicStorage, doubt_of_hole, topic_storage
from shallow_mirror.broker.fetch.fetch_client import (
    MAX_BATCH_BYTES,
    FetchForm,
    partition_error,
    receive_fetch,
    send_fetch,
    stop_error,
)
from shallow_mirror.broker.net.connection import Connection, ReceiveBuffer
from shallow_mirror.broker.net.error_codes import EMPTY_FETCH, LOG_ENDS_EARLY, UNKNOWN_TOPIC_OR_PARTITION, error_name
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError, RetriableError
from shallow_mirror.types import IsolationLevel, OffsetRange, TopicPartition
from shallow_mirror.wire.batches.batch_index import BatchIndex, StopReason, index_batches
from shallow_mirror.wire.protocol.fetch import FetchedPartition, FetchPartition
from shallow_mirror.wire.records.legacy_formats import convert_legacy
from shallow_mirror.wire.records.unpacked_batch import OPENED_FETCHES

OVER_FETCH = 1.1
OVER_FETCH_SLACK_BYTES = 65_536
"""A range's last fetch asks for its estimated rest times `OVER_FETCH`, plus the slack."""

LEAST_SHARE_BYTES = 1 << 20
"""A partition's part of an answer is at least this, and its share of `fetch_bytes`: where the first partition fills the
answer, what is produced next has one batch per request."""

EMPTY_ANSWERS_AT_END = 2
"""Empty answers of the leader in a row, with the log known to reach beyond the range: then it is asked whether compaction
emptied the range."""

EMPTY_ANSWERS_OF_FOLLOWER = 4
"""Empty answers of a follower in a row: it lags, or nothing is left in the range. Then the leader is asked alone."""

TRIES_BEFORE_GONE = 8
"""Between one and two seconds without a batch: then it is asked whether the topics are still there."""

PARTITION_PATIENCE_MS = 2_000.0
"""How long a partition may be unreadable, or its log end below its range, before a reader that may leave it unfinished does so. A
new leader may trail for moments. The other partitions of the slot wait for it so long, once; what is left is planned again after
a second."""

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
    """`trouble`: why nothing came lately, since `trouble_since` (seconds of the deadline's clock).

    `remote`: that the broker waits for its remote storage. `unfinished`: why the range was left at `position`.
    """

    range: ReadRange
    position: int
    empty_answers: int = 0
    empty_follower_answers: int = 0
    remote: RetriableError | None = None
    trouble: RetriableError | None = None
    trouble_since: float = 0.0
    tries: int = 0
    retry_at: float = 0.0
    unfinished: RetriableError | None = None

    @property
    def is_done(self) -> bool:
        return self.position >= self.range.end or self.unfinished is not None

    def fail(self, error: RetriableError, now: float) -> None:
        if self.trouble is None:
            self.trouble_since = now
        self.trouble = error

    def moved(self) -> None:
        self.trouble, self.remote, self.tries, self.retry_at = None, None, 0, 0.0
        self.empty_answers = self.empty_follower_answers = 0


class RangeReader:
    """Iterate once. Raises DataLossError, CorruptBatchError, BatchRefusedError (too large to be opened), ConfigError,
    RetriableError.

    Message sets of magic 0 and 1 come as batches of magic 2 with the same offsets.

    A partition that cannot be read holds up no other one. With `patience_ms` the iteration ends without those of which nothing
    came for so long, once all others are done; `unfinished` names them. Without, they are waited for until the deadline.

    One receive buffer of `fetch_bytes`; it grows to the size of a single larger batch, `MAX_BATCH_BYTES` at the most. Readers
    that follow each other may share one `buffer`: a new one costs as much as reading a few megabytes. A Fetch asks for less
    where the link to the broker is slow (fetch_pace.py), which readers of the same `cluster` learn from each other.
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
        patience_ms: float | None = None,
    ) -> None:
        self._cluster, self._isolation = cluster, isolation
        self._fetch_bytes, self._deadline, self._max_wait_ms = fetch_bytes, deadline, max_wait_ms
        self._progress = {one.topic_partition: _Progress(one, one.position) for one in ranges}
        self._buffer = receive_buffer(fetch_bytes) if buffer is None else buffer
        self._order = deque(self._progress)
        self._asked: dict[FetchPath, Mapping[TopicPartition, ReadSource]] = {}
        self._forms: dict[FetchPath, FetchForm] = {}
        self._storage: dict[str, TopicStorage] = {}
        self._failure: MirrorError | None = None
        self._tries = 0
        self._patience_ms = patience_ms
        self._end_by: Deadline | None = None
        self._is_too_late = False
        self.has_ended_early = False
        """Whether `end_by` ended the iteration in front of the end of a range."""

    def end_by(self, end: Deadline) -> None:
        """Wait for no answer any longer then: the iteration ends with what came before, wherever the ranges end."""
        self._end_by = end

    def positions(self) -> dict[TopicPartition, int]:
        """Where each range stands once the iteration is over: at its end or beyond, but for those that are unfinished."""
        return {place: one.position for place, one in self._progress.items()}

    def unfinished(self) -> dict[TopicPartition, RetriableError]:
        """Return why ranges were left at their positions; empty without `patience_ms`."""
        return {place: one.unfinished for place, one in self._progress.items() if one.unfinished is not None}

    def __iter__(self) -> Iterator[FetchedResponse]:
        waiting: dict[FetchPath, Connection] = {}
        try:
            while True:
                self._send_where_idle(waiting)
                self._leave_what_is_hopeless()
                if not self._undone():
                    return
                if self._is_over() or (self._is_too_late and not waiting):
                    self.has_ended_early = True
                    return
                if not waiting:
                    self._wait_for_the_next_try()
                    continue
                path = next(iter(waiting))
                connection = waiting[path]
                answered = self._receive(path, connection, waiting)
                if answered is None:
                    continue
                response = self._advance(answered, self._asked[path])
                if self._failure is None:
                    self._send_where_idle(waiting)
                if response:
                    yield response
                if self._failure is not None:
                    raise self._failure
        finally:
            for connection in waiting.values():
                connection.close()

    def _is_over(self) -> bool:
        return self._end_by is not None and self._end_by.is_over()

    def _time_left_s(self) -> float:
        return math.inf if self._end_by is None else self._end_by.remaining_ms() / 1000

    def _undone(self) -> list[TopicPartition]:
        return [place for place in self._order if not self._progress[place].is_done]

    def _send_where_idle(self, waiting: dict[FetchPath, Connection]) -> None:
        """A Fetch to every broker that has none on the wire and still owes something.

        What an earlier leader was asked for is left to its answer: two answers would bring the same batches.
        """
        on_the_wire = {place for path in waiting for place in self._asked[path]}
        idle = [place for place in self._undone() if place not in on_the_wire]
        if not idle:
            return
        if self._deadline.is_over():
            self._give_up(idle[0])
        now = self._deadline.clock()
        due = [place for place in idle if self._progress[place].retry_at <= now]
        if not due:
            return
        try:
            sources, leaderless = self._cluster.read_sources_there_are(due, self._deadline)
        except RetriableError as error:  # no broker answers: there is nothing to go on with
            return self._again(error)
        for place, without_leader in leaderless.items():
            self._fail([place], without_leader)
        by_path: dict[FetchPath, dict[TopicPartition, ReadSource]] = {}
        for place, source in sources.items():
            by_path.setdefault(source.path, {})[place] = source
        for path, asked in by_path.items():
            if path in waiting:
                continue
            if not self._cluster.fetch_pace(path).may_begin(self._time_left_s()):
                self._is_too_late = True
                continue
            began = self._deadline.clock()
            try:
                waiting[path] = self._send(path, asked)
            except RetriableError as error:
                self._cluster.read_replicas.failed(asked)
                self._fail(list(asked), error, self._deadline.clock() - began)

    def _give_up(self, place: TopicPartition) -> None:
        progress = self._progress[place]
        reason = progress.trouble or progress.remote
        if reason is not None:
            raise reason
        self._deadline.require(f"batches of {place} from offset {progress.position}")

    def _fail(self, places: Sequence[TopicPartition], error: RetriableError, took_s: float = 0.0) -> None:
        """Nothing comes of these for now, each is tried again after a pause of its own; other partitions go on meanwhile.

        The pause is at least twice what the try took: a broker that accepts no connection for seconds would hold up the others.
        """
        self._cluster.forget_metadata()
        now = self._deadline.clock()
        for place in places:
            progress = self._progress[place]
            progress.fail(error, now)
            pause_s = self._cluster.back_off_ms(progress.tries) / 1000 if progress.tries else 0.0  # it may only have moved
            progress.retry_at = now + max(pause_s, 2 * took_s)
            progress.tries += 1
        lasting = [place for place in places if self._progress[place].tries % TRIES_BEFORE_GONE == 0]
        if lasting:
            self._require_topics(lasting, error)

    def _leave_what_is_hopeless(self) -> None:
        """All at once, when nothing else is left to read and each had its time: partitions that can be read set the pace."""
        if self._patience_ms is None:
            return
        now, left = self._deadline.clock(), [self._progress[place] for place in self._undone()]
        if all(one.trouble is not None and now - one.trouble_since >= self._patience_ms / 1000 for one in left):
            for one in left:
                one.unfinished = one.trouble

    def _wait_for_the_next_try(self) -> None:
        now, undone = self._deadline.clock(), self._undone()
        if self._deadline.is_over():
            self._give_up(undone[0])
        at = min(self._progress[place].retry_at for place in undone)
        if at > now:
            self._cluster.wait((at - now) * 1000, self._deadline)

    def _again(self, error: RetriableError) -> None:
        """After a pause, where no broker can be asked."""
        self._cluster.forget_metadata()
        self._cluster.pause(self._tries, self._deadline)
        self._tries += 1
        if self._deadline.is_over():
            raise error
        if self._tries >= TRIES_BEFORE_GONE:
            self._require_topics(self._undone(), error)

    def _require_topics(self, places: Sequence[TopicPartition], error: RetriableError) -> None:
        """Raises RetriableError where a topic is not there: it was deleted, and nothing of it will ever come."""
        names = sorted({place.topic for place in places})
        gone = missing_topics(self._cluster, names, self._deadline).gone
        if gone:
            name = error_name(UNKNOWN_TOPIC_OR_PARTITION)
            raise RetriableError(name, f"{self._cluster.where} has no topic {', '.join(gone)} any more") from error

    def _send(self, path: FetchPath, asked: Mapping[TopicPartition, ReadSource]) -> Connection:
        connection = self._cluster.connection(path.node_id, path.purpose, self._deadline)
        self._asked[path] = asked
        pace = self._cluster.fetch_pace(path)
        size_bytes = pace.request_bytes(self._fetch_bytes, self._time_left_s())
        self._forms[path] = send_fetch(
            connection,
            [self._fetch_of(place, max(size_bytes // len(asked), LEAST_SHARE_BYTES)) for place in asked],
            isolation=self._isolation,
            max_wait_ms=self._max_wait_ms,
            max_bytes=size_bytes,
            deadline=self._deadline.sooner(self._cluster.config.request_timeout_ms),
            rack=self._cluster.config.client_rack,
            is_leader_only=path.is_leader_only,
        )
        pace.sent()
        return connection

    def _fetch_of(self, place: TopicPartition, share_bytes: int) -> FetchPartition:
        """Leader epochs are left out: positions were checked when the range was planned."""
        progress = self._progress[place]
        left = (progress.range.end - progress.position) * progress.range.bytes_per_offset
        wanted = min(share_bytes, int(left * OVER_FETCH) + OVER_FETCH_SLACK_BYTES)
        return FetchPartition(place, -1, progress.position, wanted, topic_id=progress.range.topic_id)

    def _receive(
        self, path: FetchPath, connection: Connection, waiting: dict[FetchPath, Connection]
    ) -> tuple[FetchedPartition, ...] | None:
        pace = self._cluster.fetch_pace(path)
        silence_ms = self._cluster.config.request_timeout_ms + self._max_wait_ms
        end = self._deadline if self._end_by is None else self._deadline.sooner(self._end_by.remaining_ms())
        try:
            response = receive_fetch(connection, self._buffer, end, self._forms[path], silence_ms=silence_ms, on_begin=pace.began)
        except RetriableError as error:
            if self._is_over():  # nothing is wrong with the broker: it is not waited for
                return None
            pace.failed()
            self._cluster.read_replicas.failed(self._asked[path])
            self._fail(list(self._asked[path]), error)
            return None
        finally:
            del waiting[path]
        pace.received(sum(len(fetched.records) for fetched in response.partitions))
        if response.error_code:
            self._cluster.read_replicas.failed(self._asked[path])
            self._fail(list(self._asked[path]), RetriableError(error_name(response.error_code), "Fetch"))
            return None
        if response.throttle_time_ms:
            self._cluster.wait(response.throttle_time_ms, self._deadline)
            if not any(len(one.records) for one in response.partitions):  # empty whatever the log holds
                return None
        return response.partitions

    def _advance(self, answered: Sequence[FetchedPartition], asked: Mapping[TopicPartition, ReadSource]) -> FetchedResponse:
        """Index every partition, move positions, remember the first failure for after the good batches."""
        out: list[IndexedPartition] = []
        owed, has_records = set(asked), False
        for fetched in answered:
            place = fetched.topic_partition
            if place not in owed:
                error = RetriableError("PROTOCOL", f"a Fetch answer holds {place} unasked or twice")
                self._fail(list(asked), error)
                continue
            owed.remove(place)
            progress, source = self._progress[place], asked[place]
            try:
                if self._cluster.read_replicas.is_redirected(fetched, source):
                    continue
            except RetriableError as refused:
                self._fail([place], refused)
                continue
            wrong = partition_error(
                self._cluster,
                fetched,
                progress.position,
                self._isolation,
                self._deadline,
                progress.range.topic_id,
                is_leader_only=source.path.is_leader_only,
            )
            if isinstance(wrong, RetriableError):
                self._fail([place], wrong)
                continue
            if wrong is not None:
                self._failure = wrong
                continue
            indexed = self._index(fetched, progress, source, is_sure=not has_records)
            has_records = has_records or len(fetched.records) > 0
            if indexed is not None:
                out.append(indexed)
        self._order.rotate(-1)
        if out:
            self._tries = 0
        return tuple(out)

    def _index(
        self, fetched: FetchedPartition, progress: _Progress, source: ReadSource, *, is_sure: bool
    ) -> IndexedPartition | None:
        records, index, failure = self._whole_batches(fetched)
        fetch_offset = progress.position
        if failure is not None and source.is_follower:
            # Another replica may hold what this one's disk has damaged: the good batches count, the leader is asked for the rest.
            self._cluster.read_replicas.ask_leader_alone(fetched.topic_partition, source.leader)
            failure = None
        if not len(index):
            self._failure = failure or self._failure
            if is_sure:
                self._count_empty(fetched, progress, source)
            return None
        progress.moved()
        progress.position = max(progress.position, _reached(index, progress.range.end))
        if not progress.is_done:  # what came along behind the range is not asked for
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

    def _count_empty(self, fetched: FetchedPartition, progress: _Progress, source: ReadSource) -> None:
        """Compaction may have removed the last batches of a range: then no batch will ever come.

        Limits are ignored up to the first partition of an answer that has a batch: those in front of it surely have none in
        what the broker could read at once. Only the leader's word counts: the log of a follower may be behind.
        """
        place = fetched.topic_partition
        if len(fetched.records):
            return
        if source.is_follower:
            progress.empty_follower_answers += 1
            if progress.empty_follower_answers >= EMPTY_ANSWERS_OF_FOLLOWER:
                progress.empty_follower_answers = 0
                self._cluster.read_replicas.ask_leader_alone(place, source.leader)
            return
        is_committed = self._isolation is IsolationLevel.READ_COMMITTED
        reached = fetched.last_stable_offset if is_committed else fetched.high_watermark
        if reached < progress.range.end:
            # Behind the plan the log was cut, or a new leader does not know yet how far it reaches.
            detail = f"the log of {place} ends at {reached}, below the planned end {progress.range.end}"
            progress.fail(RetriableError(LOG_ENDS_EARLY, detail), self._deadline.clock())
            return
        if progress.trouble is not None and progress.trouble.error_name != EMPTY_FETCH:
            progress.trouble = None
        progress.empty_answers += 1
        if progress.empty_answers < EMPTY_ANSWERS_AT_END:
            return
        doubt = self._doubt_of_hole(place, progress)
        if doubt is None:
            progress.position = progress.range.end
        elif doubt.error_name == REMOTE_STORAGE:  # it comes by itself: a partition that takes its time is not broken
            progress.remote = doubt
        else:
            self._fail([place], doubt)

    def _doubt_of_hole(self, place: TopicPartition, progress: _Progress) -> RetriableError | None:
        storage = self._storage.get(place.topic)
        if storage is None or not storage.is_compacted:  # a setting, or the right to see it, may come while we wait
            storage = self._storage[place.topic] = topic_storage(self._cluster, place.topic, self._deadline)
        return doubt_of_hole(self._cluster, place, OffsetRange(progress.position, progress.range.end), storage, self._deadline)


def receive_buffer(fetch_bytes: int) -> ReceiveBuffer:
    return ReceiveBuffer(fetch_bytes + _FRAME_SLACK_BYTES, MAX_BATCH_BYTES)


def _reached(index: BatchIndex, range_end: int) -> int:
    """Behind the last batch of the range; its end, where batches of the next range were fetched along with it."""
    base_offsets = index.headers["base_offset"]
    ours = index.last_offset[base_offsets < range_end]
    reached = int(ours[-1]) + 1 if len(ours) else 0
    return max(reached, range_end) if len(ours) < len(base_offsets) else reached
