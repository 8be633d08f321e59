"""Executor, and wherever raw batches are written: several Produce requests in flight, many partitions in each.

A broker serves a connection strictly in turn, so full requests and a few in flight are what makes it fast; bytes in
flight are bounded because beyond what socket buffers hold, sending turns into thousands of short writes. Leaders work at
the same time: each has its own requests in flight. Nothing is ever sent twice: after any error the transaction has to be
aborted.

A window with a limit (`until`) stops sending when the limit has passed, keeps no more in flight than will be acknowledged by
then at the speed seen so far, and answers for what was acknowledged: the front of each queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from types import MappingProxyType
from typing import NamedTuple

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.send_pace import SLOWEST_BYTES_PER_S, SendPace
from shallow_mirror.broker.net.connection import Connection
from shallow_mirror.broker.net.error_codes import (
    TOPIC_AUTHORIZATION_FAILED,
    ErrorClass,
    error_class,
    error_name,
    is_forbidden,
    refusal,
)
from shallow_mirror.broker.net.transport import Part
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import (
    BatchRefusedError,
    ConfigError,
    CorruptBatchError,
    MirrorError,
    ProducerEpochFencedError,
    RetriableError,
    TopicAccessError,
)
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.batches.crc import verify_crc
from shallow_mirror.wire.protocol.primitives import WireError
from shallow_mirror.wire.protocol.produce import ProduceFrames, RawBatch, parse_produce_response

REQUEST_BYTES = 1 << 20
"""A request is closed when it holds this much, or one batch per partition."""

SMALL_BYTES = 64 << 10
"""Requests up to this size share a write."""

_ACKS_ALL = -1


class ProduceRefusedError(MirrorError):
    """The target refuses one batch for good. Batches before and behind it may have been appended."""

    def __init__(self, topic_partition: TopicPartition, index_in_queue: int, error_code: int, message: str) -> None:
        self.topic_partition, self.index_in_queue = topic_partition, index_in_queue
        self.error_code, self.message = error_code, message
        self.error_name = error_name(error_code)
        super().__init__(f"{topic_partition}: batch {index_in_queue} of the request refused: {self.error_name}: {message}")

    def __reduce__(self) -> tuple[type[ProduceRefusedError], tuple[TopicPartition, int, int, str]]:
        return type(self), (self.topic_partition, self.index_in_queue, self.error_code, self.message)


class _Request(NamedTuple):
    """The batches at `position` of the queues of `places`."""

    places: tuple[TopicPartition, ...]
    position: int
    batches: Sequence[RawBatch]
    size_bytes: int


Queues = Mapping[TopicPartition, Sequence[RawBatch]]
"""What is to be sent to each partition, in order."""

Continuing = Mapping[TopicPartition, Collection[int]]
"""Positions in the queue of a partition that belong to the batch in front of them: nothing stops there."""

_NOTHING_CONTINUES: Continuing = MappingProxyType({})


class ProduceWindow:
    """To each leader `in_flight_requests` and `in_flight_bytes` at the most (one batch larger than that travels alone).

    `until`: when sending has to stop; None: never. Each leader is sent one request at least, however late it is: a transaction
    that holds one batch is progress, an empty one is none.
    """

    def __init__(
        self,
        cluster: Cluster,
        transactional_id: str | None,
        *,
        in_flight_requests: int,
        in_flight_bytes: int,
        deadline: Deadline,
        until: Deadline | None = None,
    ) -> None:
        self._cluster, self._transactional_id = cluster, transactional_id
        self._in_flight_requests, self._in_flight_bytes, self._deadline = in_flight_requests, in_flight_bytes, deadline
        self.stamped: set[TopicPartition] = set()
        """Partitions of which the broker has overwritten the times of a batch: message.timestamp.type=LogAppendTime."""
        self._until = until
        self._paces: dict[int, SendPace] = {}

    def busy_s(self) -> float:
        """Return for how many seconds something was in flight, to the leader that took longest; 0 without a limit."""
        return max((pace.busy_s for pace in self._paces.values()), default=0.0)

    def produce_all(
        self,
        queues: Queues,
        placed: dict[TopicPartition, list[int]] | None = None,
        continuing: Continuing = _NOTHING_CONTINUES,
    ) -> dict[TopicPartition, list[int]]:
        """Append every queue in order; returns the base offset of each batch. Blocks until all is acknowledged by the ISR.

        Where `until` stops it, there are fewer base offsets than batches: of the first ones of each queue, none of which is
        followed by a batch that continues it. Nothing else of the queues is on the target.
        A caller that gives `placed` also learns from it what was acknowledged before an error.
        Raises ProduceRefusedError (definite), ProducerEpochFencedError, or RetriableError; after any of them some batches may be
        appended and the transaction must be aborted.
        """
        placed = {} if placed is None else placed
        placed.update({place: [] for place in queues})
        by_leader: dict[int, dict[TopicPartition, Sequence[RawBatch]]] = {}
        for place, partition in self._cluster.leaders(queues, self._deadline).items():
            by_leader.setdefault(partition.leader, {})[place] = queues[place]
        pipelines = [self._pipeline(node_id, members, placed, continuing) for node_id, members in by_leader.items()]
        try:
            under_way = deque(pipelines)
            while under_way:
                if under_way[0].send_next():
                    under_way.rotate(-1)
                else:
                    under_way.popleft()
            for pipeline in pipelines:
                pipeline.drain()
        except BaseException:
            for pipeline in pipelines:
                pipeline.close()
            self._cluster.forget_metadata()
            raise
        return placed

    def _pipeline(
        self, node_id: int, queues: Queues, placed: dict[TopicPartition, list[int]], continuing: Continuing
    ) -> _Pipeline:
        connection = self._cluster.connection(node_id, "produce", self._deadline)
        timeout_ms = self._cluster.config.request_timeout_ms
        broker_ms = max(1, int(min(self._deadline.remaining_ms(), timeout_ms)))
        frames_of = partial(ProduceFrames, connection.client_id, self._transactional_id, _ACKS_ALL, broker_ms)
        bounds = _Bounds(
            requests=self._in_flight_requests,
            size_bytes=self._in_flight_bytes,
            # Twice what the broker may wait for its followers: a leader that takes no bytes any more is noticed as well.
            answer_ms=timeout_ms * 2,
            deadline=self._deadline,
        )
        if self._until is None:
            return _Pipeline(connection, _pack(queues, lambda: REQUEST_BYTES), frames_of, placed, self.stamped, bounds)
        pace = self._paces.setdefault(node_id, SendPace(self._until, self._deadline))
        requests = _pack(queues, partial(pace.request_bytes, REQUEST_BYTES))
        return _PacedPipeline(connection, requests, frames_of, placed, self.stamped, bounds, pace=pace, continuing=continuing)


class _Bounds(NamedTuple):
    """Of what is in flight to one leader, and of the wait for one answer."""

    requests: int
    size_bytes: int
    answer_ms: float
    deadline: Deadline


class _Pipeline:
    """The requests to one leader, in order. Small ones share a write, which costs more than what it carries: where there is
    room for one, that for several is waited for. The broker has the others to work on meanwhile."""

    def __init__(
        self,
        connection: Connection,
        requests: Iterator[_Request],
        frames_of: Callable[[tuple[TopicPartition, ...]], ProduceFrames],
        placed: dict[TopicPartition, list[int]],
        stamped: set[TopicPartition],
        bounds: _Bounds,
    ) -> None:
        self._connection, self._requests, self._placed, self._bounds = connection, requests, placed, bounds
        self._stamped = stamped
        self._frames_of = cache(frames_of)
        self._several = max(1, bounds.requests // 2)
        self._in_flight: deque[tuple[_Request, ProduceFrames]] = deque()
        self._bytes = 0
        self._unsent_ids: list[int] = []
        self._unsent: list[Part] = []
        self._unsent_bytes = 0

    def send_next(self) -> bool:
        """At the latest when the window is full, or when there is none left, which is False."""
        request, patience = self._next_request(), self._patience()
        if request is None:
            self._write(patience)
            return False
        size = request.size_bytes
        self._make_room(size, patience)
        frames, correlation_id = self._frames_of(request.places), self._connection.next_correlation_id()
        self._unsent_ids.append(correlation_id)
        self._unsent += frames.build(correlation_id, request.batches)
        self._unsent_bytes += size
        self._in_flight.append((request, frames))
        self._bytes += size
        if self._unsent_bytes > SMALL_BYTES:
            self._write(patience)
        return True

    def _make_room(self, size: int, patience: Deadline) -> None:
        if self._is_full(1, size):
            self._write(patience)
            wanted = self._several if size <= SMALL_BYTES else 1
            while self._in_flight and self._is_full(wanted, size):
                self._acknowledge(patience)

    def drain(self) -> None:
        while self._in_flight:
            self._acknowledge(self._patience())

    def _next_request(self) -> _Request | None:
        return next(self._requests, None)

    def _patience(self) -> Deadline:
        return self._bounds.deadline.sooner(self._bounds.answer_ms)

    def close(self) -> None:
        self._connection.close()

    def _is_full(self, requests: int, size_bytes: int) -> bool:
        return len(self._in_flight) + requests > self._bounds.requests or self._bytes + size_bytes > self._bounds.size_bytes

    def _write(self, patience: Deadline) -> None:
        if self._unsent_ids:
            ids, parts = self._unsent_ids, self._unsent
            self._unsent_ids, self._unsent, self._unsent_bytes = [], [], 0
            self._connection.send_several(ids, parts, patience)

    def _acknowledge(self, patience: Deadline) -> None:
        request, frames = self._in_flight.popleft()
        self._bytes -= request.size_bytes
        frame = self._connection.receive(patience)
        answer = frames.plain_answer(frame)
        if answer is None:
            return _acknowledge_one_by_one(self._connection, request, frame, self._placed, self._stamped)
        for place, base_offset in zip(request.places, answer.base_offsets, strict=True):
            self._placed[place].append(base_offset)
        self._stamped.update(request.places[at] for at in answer.stamped)


class _PacedPipeline(_Pipeline):
    """Sends no more than will be acknowledged before the limit of `pace`, as far as its speed so far tells."""

    def __init__(
        self,
        connection: Connection,
        requests: Iterator[_Request],
        frames_of: Callable[[tuple[TopicPartition, ...]], ProduceFrames],
        placed: dict[TopicPartition, list[int]],
        stamped: set[TopicPartition],
        bounds: _Bounds,
        *,
        pace: SendPace,
        continuing: Continuing,
    ) -> None:
        super().__init__(connection, requests, frames_of, placed, stamped, bounds)
        self._pace, self._continuing = pace, continuing
        self._is_stopped = False
        self._ended: set[TopicPartition] = set()

    def _next_request(self) -> _Request | None:
        """Behind the limit only what continues a source batch of which a part was sent: it is recorded whole or not at all."""
        for request in self._requests:
            if not self._is_stopped and self._is_in_time(request):
                self._pace.sent()
                return request
            self._is_stopped = True
            started = self._started(request)
            if started is not None:
                return started
        return None

    def _is_in_time(self, request: _Request) -> bool:
        """Waits for room first, which takes its time, and for acknowledgements where more in flight would be too much."""
        self._make_room(request.size_bytes, self._patience())
        while self._in_flight:
            if self._bytes + request.size_bytes <= self._pace.most_in_flight():
                return True
            self._write(self._patience())
            self._acknowledge(self._patience())
        return self._pace.may_begin(request.size_bytes)

    def _started(self, request: _Request) -> _Request | None:
        """Of a partition nothing goes behind a batch that was not sent: its queue would have a hole."""
        kept = []
        for at, place in enumerate(request.places):
            if place not in self._ended and request.position in self._continuing.get(place, ()):
                kept.append(at)
            else:
                self._ended.add(place)
        if not kept:
            return None
        places, batches = tuple(request.places[at] for at in kept), [request.batches[at] for at in kept]
        return _Request(places, request.position, batches, sum(map(len, batches)))

    def drain(self) -> None:
        super().drain()
        self._pace.drained()

    def _patience(self) -> Deadline:
        """A slow link is no dead leader: what is in flight may take as long as the slowest link needs for it."""
        return self._bounds.deadline.sooner(self._bounds.answer_ms + self._bytes / SLOWEST_BYTES_PER_S * 1000)

    def _write(self, patience: Deadline) -> None:
        """With what is to be written counted in."""
        if self._in_flight:
            with self._explained(self._in_flight[0][0]):
                super()._write(self._patience())

    def _acknowledge(self, patience: Deadline) -> None:
        request, patience = self._in_flight[0][0], self._patience()
        with self._explained(request):
            super()._acknowledge(patience)
        self._pace.acknowledged(request.size_bytes)

    @contextmanager
    def _explained(self, request: _Request) -> Iterator[None]:
        """Where time ran out before anything was acknowledged, another try of the same would end in the same way."""
        try:
            yield
        except RetriableError as error:
            is_late = error.error_name == "DEADLINE" or isinstance(error.__cause__, TimeoutError)
            if self._pace.has_answered or not is_late:
                raise
            self._pace.drained()
            several = f" and {len(request.places) - 1} other partitions" if len(request.places) > 1 else ""
            raise RetriableError(
                error.error_name,
                f"{request.places[0]}{several}: {self._connection.transport.peer} did not acknowledge the first request, of "
                f"{request.size_bytes:,} bytes, in {self._pace.busy_s:.0f} s ({error}). Look at that broker and at the network "
                "to it; where the link is too slow for one such batch, raise request.timeout.ms of the target's client and "
                "write.transaction_timeout_ms",
            ) from error


def _acknowledge_one_by_one(
    connection: Connection,
    request: _Request,
    frame: memoryview,
    placed: dict[TopicPartition, list[int]],
    stamped: set[TopicPartition],
) -> None:
    try:
        response = parse_produce_response(frame)
    except WireError as error:
        raise RetriableError("PROTOCOL", f"unreadable Produce answer: {error}") from error
    answered = {one.topic_partition: one for one in response.partitions}
    if answered.keys() != set(request.places):
        raise RetriableError("PROTOCOL", f"{connection.transport.peer} answered for other partitions than were sent")
    for place, one in answered.items():
        if not one.error_code:
            placed[place].append(one.base_offset)
            if one.is_stamped:
                stamped.add(place)
    for place in request.places:
        one = answered[place]
        if one.error_code:
            details = dict.fromkeys([one.error_message, *(message for _, message in one.record_errors)])  # each record's is alike
            raise _produce_error(place, request.position, one.error_code, "; ".join(text for text in details if text))


def _pack(queues: Queues, most_bytes: Callable[[], int]) -> Iterator[_Request]:
    """Round-robin over the partitions: the n-th batches of all of them before any (n+1)-th.

    `most_bytes` is asked before each request; a batch larger than that is one by itself.
    """
    first = 0
    for end in sorted({len(queue) for queue in queues.values()}):
        places = tuple(place for place, queue in queues.items() if len(queue) >= end)
        lanes = [queues[place] for place in places]
        for position in range(first, end):
            batches = [lane[position] for lane in lanes]
            sizes = list(map(len, batches))
            if sum(sizes) <= most_bytes():
                yield _Request(places, position, batches, sum(sizes))
            else:
                yield from _split(_Request(places, position, batches, sum(sizes)), sizes, most_bytes)
        first = end


def _split(whole: _Request, sizes: Sequence[int], most_bytes: Callable[[], int]) -> Iterator[_Request]:
    """Each holds one batch, or as many as fit."""
    first = size = 0
    for at, batch_bytes in enumerate(sizes):
        if at > first and size + batch_bytes > most_bytes():
            yield _Request(whole.places[first:at], whole.position, whole.batches[first:at], size)
            first, size = at, 0
        size += batch_bytes
    yield _Request(whole.places[first:], whole.position, whole.batches[first:], size)


def _produce_error(place: TopicPartition, position: int, code: int, message: str) -> MirrorError:
    kind = error_class(code)
    if kind is ErrorClass.FENCED:
        return ProducerEpochFencedError(error_name(code), f"Produce to {place}: {message}")
    if is_forbidden(code):
        text = f"Produce to {place}: the target answered {refusal(code, 'Produce', topic=place.topic)}"
        return TopicAccessError(text, [place.topic]) if code == TOPIC_AUTHORIZATION_FAILED else ConfigError(text)
    if kind is ErrorClass.DEFINITE:
        return ProduceRefusedError(place, position, code, message)
    return RetriableError(error_name(code), f"Produce to {place}: {message}")


def explain_refusal(
    refused: ProduceRefusedError, sent: memoryview, source: TopicPartition, base_offset: int, pos: int
) -> CorruptBatchError | BatchRefusedError:
    """The target's answer in the source's terms: which batch, and whether it was damaged before the target saw it.

    `sent` is the whole batch, before or after it was restamped: a patched CRC fails where the one before it did.
    """
    if not verify_crc(sent):
        return CorruptBatchError(source, base_offset, pos, "its CRC does not match its payload")
    rule = f"the target answered {refused.error_name} for {refused.topic_partition}: {refused.message}"
    return BatchRefusedError(source, base_offset, rule, _REMEDIES.get(refused.error_name, _ANY_REMEDY))


_ANY_REMEDY = "Look at the settings of the target topic, then start again"
_REMEDIES = {
    "MESSAGE_TOO_LARGE": "Raise max.message.bytes of the target topic and start again",
    "RECORD_LIST_TOO_LARGE": "Raise segment.bytes of the target topic and start again",
    "INVALID_TIMESTAMP": "Set message.timestamp.before.max.ms and message.timestamp.after.max.ms of the target topic to "
    "9223372036854775807 and start again",
    "INVALID_RECORD": "The target topic may be compacted while the source holds records without a key: give it the source's "
    "cleanup.policy and start again",
}
