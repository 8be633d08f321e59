"""Everywhere: the Produce requests to one leader: many in flight, small ones in one write."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import islice, takewhile
from typing import NamedTuple

from shallow_mirror.broker.cluster.send_pace import SLOWEST_BYTES_PER_S, Flight, SendPace, SendWindow
from shallow_mirror.broker.net.connection import Connection
from shallow_mirror.broker.net.transport import Part
from shallow_mirror.broker.produce.produce_errors import produce_error
from shallow_mirror.broker.produce.request_packing import PackedRequest
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import (
    RetriableError,
)
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.protocol import ProduceFrames, WireError, parse_produce_response

SMALL_BYTES = 64 << 10
"""Requests up to this size share a write."""


Continuing = Mapping[TopicPartition, Collection[int]]
"""Positions in the queue of a partition that belong to the batch in front of them: nothing stops there."""


class InFlightLimits(NamedTuple):
    """How much may be in flight to one leader, and how long one response may take."""

    requests: int
    size_bytes: int
    response_ms: float
    deadline: Deadline


class Submission:
    """The outcome of the queues of one call. `base_offsets`: by partition, in the order of its queue, as far as acknowledged."""

    def __init__(self, continuing: Continuing, base_offsets: dict[TopicPartition, list[int]] | None = None) -> None:
        self.continuing = continuing
        self.base_offsets = {} if base_offsets is None else base_offsets
        self.in_flight = 0
        """Requests that were handed to a connection and are not acknowledged."""
        self.is_cut_short = False
        """Whether a limit stopped it: batches of a queue were not sent."""


class _InFlight(NamedTuple):
    request: PackedRequest
    frames: ProduceFrames
    submission: Submission


@dataclass(frozen=True, slots=True)
class Leader:
    """One leader: its connection, the window of its path, and a set to note partitions in whose times it has overwritten."""

    connection: Connection
    window: SendWindow
    frames_of: Callable[[tuple[TopicPartition, ...]], ProduceFrames]
    stamped: set[TopicPartition]
    limits: InFlightLimits


class LeaderPipeline:
    """Sends the requests of one submission after another to one leader, in order, and reads the responses.

    A submission is begun once all requests of the one before it were sent, acknowledged or not. Small requests share a write,
    which costs more than its content: when there is room for one, it waits for room for several. The broker has the others to
    work on meanwhile.
    """

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._connection = leader.connection
        self._limits = leader.limits
        self._frames_of = cache(leader.frames_of)
        self._requests: Iterator[PackedRequest] = iter(())
        self._submission = Submission({})
        self._in_flight: deque[_InFlight] = deque()
        self._in_flight_bytes = 0
        self._unsent_ids: list[int] = []
        self._unsent: list[Part] = []
        self._unsent_bytes = 0
        self._sent_count = self._acknowledged_count = self._acknowledged_bytes = 0
        self._flights: deque[tuple[int, Flight]] = deque()
        """Of each write: how many requests were sent with it, and the time."""
        self._most_bytes = leader.window.size_bytes(leader.limits.size_bytes)
        """May be in flight, as far as the path is known."""
        self.failed: Submission | None = None
        """Whose response was an error."""

    @property
    def is_idle(self) -> bool:
        return not self._in_flight

    def begin(self, submission: Submission, requests: Iterator[PackedRequest]) -> None:
        self._submission, self._requests = submission, requests

    def send_next(self) -> bool:
        """Build the next request, and write it at the latest when the pipeline is full. False: there is none left."""
        request = self._next_request()
        if request is None:
            self._write()
            return False
        frames, correlation_id = self._frames_of(request.topic_partitions), self._connection.next_correlation_id()
        self._unsent_ids.append(correlation_id)
        self._unsent += frames.build(correlation_id, request.batches)
        self._unsent_bytes += request.size_bytes
        self._in_flight.append(_InFlight(request, frames, self._submission))
        self._in_flight_bytes += request.size_bytes
        self._submission.in_flight += 1
        if self._unsent_bytes > SMALL_BYTES:
            self._write()
        return True

    def finish(self, submission: Submission) -> None:
        """Wait until everything of a submission that was sent is acknowledged."""
        # Those in front of it were submitted before, and those behind it follow: the first in flight is the oldest.
        while self._in_flight and submission.in_flight:
            self._acknowledge()

    def finish_all(self) -> None:
        while self._in_flight:
            self._acknowledge()

    def _next_request(self) -> PackedRequest | None:
        """Return the next request once there is room for it."""
        request = next(self._requests, None)
        if request is not None:
            self._make_room(request.size_bytes)
        return request

    def _make_room(self, size: int) -> None:
        if self._is_full(1, size):
            self._write()
            is_small = size <= SMALL_BYTES
            requests, wanted = (max(1, self._limits.requests // 2), max(size, SMALL_BYTES)) if is_small else (1, size)
            while self._in_flight and self._is_full(requests, wanted):
                self._acknowledge()

    def _patience(self) -> Deadline:
        return self._limits.deadline.sooner(self._limits.response_ms)

    def close(self) -> None:
        """Close the connection: the responses that are still to come are not wanted."""
        self._connection.close()
        self._leader.window.forget()

    def _is_full(self, requests: int, size_bytes: int) -> bool:
        return len(self._in_flight) + requests > self._limits.requests or self._in_flight_bytes + size_bytes > self._most_bytes

    def _write(self) -> None:
        if self._unsent_ids:
            ids, parts = self._unsent_ids, self._unsent
            self._unsent_ids, self._unsent, self._unsent_bytes = [], [], 0
            self._sent_count += len(ids)
            self._flights.append((self._sent_count, self._leader.window.begin()))
            self._connection.send_several(ids, parts, self._patience())

    def _acknowledge(self) -> int:
        """Wait for the next response; return how many bytes it acknowledges, with those that have come together with it."""
        oldest = self._in_flight[0]
        try:
            acknowledged = self._acknowledge_received(oldest)
            if not acknowledged:
                self._acknowledge_one(oldest, self._connection.receive(self._patience()))
                acknowledged = [oldest]
        except BaseException:
            self.failed = oldest.submission
            raise
        size_bytes = sum(sent.request.size_bytes for sent in acknowledged)
        for _ in acknowledged:
            self._in_flight.popleft()
        oldest.submission.in_flight -= len(acknowledged)
        self._in_flight_bytes -= size_bytes
        self._acknowledged_bytes += size_bytes
        self._acknowledged_count += len(acknowledged)
        flight = None
        while self._flights and self._flights[0][0] <= self._acknowledged_count:
            _, flight = self._flights.popleft()
        if flight is not None:
            self._leader.window.acknowledge(self._acknowledged_bytes, flight)
            self._acknowledged_bytes = 0
            self._most_bytes = self._leader.window.size_bytes(self._limits.size_bytes)
        return size_bytes

    def _acknowledge_received(self, oldest: _InFlight) -> list[_InFlight]:
        """Note the acknowledgements of responses that were received already; return their requests, or none.

        Those to small requests come many at a time. Parsed together, each costs a fraction. A response that may differ from
        the others, such as an error, is left to be parsed alone.
        """
        _, frames, submission = oldest
        received = self._connection.received_alike(frames.success_bytes, len(self._in_flight))
        if not len(received):
            return []
        may_be_alike = islice(self._in_flight, len(received))
        alike = list(takewhile(lambda sent: sent.frames is frames and sent.submission is submission, may_be_alike))
        appended = frames.parse_all_appended(received[: len(alike)])
        if appended is None:
            return []
        self._connection.take_received(len(alike), frames.success_bytes)
        topic_partitions = oldest.request.topic_partitions
        for topic_partition, base_offsets in zip(topic_partitions, appended.base_offsets, strict=True):
            submission.base_offsets[topic_partition] += base_offsets
        self._leader.stamped.update(topic_partitions[i] for i in appended.stamped)
        return alike

    def _acknowledge_one(self, sent: _InFlight, frame: memoryview) -> None:
        request, frames, submission = sent
        appended = frames.parse_appended(frame)
        if appended is None:
            self._acknowledge_partitions(request, submission, frame)
            return
        for topic_partition, base_offset in zip(request.topic_partitions, appended.base_offsets, strict=True):
            submission.base_offsets[topic_partition].append(base_offset)
        self._leader.stamped.update(request.topic_partitions[i] for i in appended.stamped)

    def _acknowledge_partitions(self, request: PackedRequest, submission: Submission, frame: memoryview) -> None:
        """Note the acknowledgements of a response with errors or messages. Raises the first error."""
        try:
            response = parse_produce_response(frame)
        except WireError as error:
            raise RetriableError("PROTOCOL", f"unreadable Produce answer: {error}") from error
        answered = {partition.topic_partition: partition for partition in response.partitions}
        if answered.keys() != set(request.topic_partitions):
            raise RetriableError("PROTOCOL", f"{self._connection.transport.peer} answered for other partitions than were sent")
        # Successes before errors: the caller learns from the base offsets what was appended although the transaction is lost.
        for topic_partition, partition in answered.items():
            if not partition.error_code:
                submission.base_offsets[topic_partition].append(partition.base_offset)
                if partition.is_stamped:
                    self._leader.stamped.add(topic_partition)
        for topic_partition in request.topic_partitions:
            partition = answered[topic_partition]
            if partition.error_code:
                # The messages of the records of a batch are mostly alike.
                messages = dict.fromkeys([partition.error_message, *(message for _, message in partition.record_errors)])
                text = "; ".join(message for message in messages if message)
                raise produce_error(topic_partition, request.position, partition.error_code, text)


class PacedLeaderPipeline(LeaderPipeline):
    """Sends no more than will be acknowledged before the limit of `pace`, as far as its speed so far tells."""

    def __init__(self, leader: Leader, pace: SendPace) -> None:
        super().__init__(leader)
        self._pace = pace
        self._is_stopped = False
        self._ended: set[TopicPartition] = set()

    def _next_request(self) -> PackedRequest | None:
        """Return the next request; behind the limit only the rest of a batch of which a part was sent."""
        for request in self._requests:
            if not self._is_stopped and self._is_in_time(request):
                self._pace.sent()
                return request
            # A source batch that was split is recorded whole or not at all: its other parts have to follow.
            self._is_stopped = True
            remainder = self._continuing_part(request)
            if remainder is None or len(remainder.batches) < len(request.batches):
                self._submission.is_cut_short = True
            if remainder is not None:
                self._make_room(remainder.size_bytes)
                return remainder
        return None

    def _is_in_time(self, request: PackedRequest) -> bool:
        """Wait until the request may be sent; False if it would be acknowledged too late."""
        # Room first: waiting for it takes time, after which less may be sent.
        self._make_room(request.size_bytes)
        while self._in_flight:
            if self._in_flight_bytes + request.size_bytes <= self._pace.most_in_flight():
                return True
            self._write()
            self._acknowledge()
        return self._pace.may_begin(request.size_bytes)

    def _continuing_part(self, request: PackedRequest) -> PackedRequest | None:
        """Return the batches of a request that continue a sent one; None: there are none."""
        kept = []
        for i, topic_partition in enumerate(request.topic_partitions):
            if topic_partition not in self._ended and request.position in self._submission.continuing.get(topic_partition, ()):
                kept.append(i)
            else:
                # Nothing is sent behind a batch that was not: the queue would have a hole on the target.
                self._ended.add(topic_partition)
        if not kept:
            return None
        topic_partitions, batches = tuple(request.topic_partitions[i] for i in kept), [request.batches[i] for i in kept]
        return PackedRequest(topic_partitions, request.position, batches, sum(map(len, batches)))

    def _patience(self) -> Deadline:
        """Return how long the leader may take, with the time that the slowest link needs for the bytes in flight."""
        return self._limits.deadline.sooner(self._limits.response_ms + self._in_flight_bytes / SLOWEST_BYTES_PER_S * 1000)

    def _write(self) -> None:
        if self._in_flight:
            request = self._in_flight[0].request
            try:
                super()._write()
            except RetriableError as error:
                self._explain_slow_link(request, error)
                raise

    def _acknowledge(self) -> int:
        request = self._in_flight[0].request
        try:
            size_bytes = super()._acknowledge()
        except RetriableError as error:
            self._explain_slow_link(request, error)
            raise
        self._pace.acknowledged(size_bytes)
        if not self._in_flight:
            self._pace.drained()
        return size_bytes

    def _explain_slow_link(self, request: PackedRequest, error: RetriableError) -> None:
        """Raise an error with a remedy if time ran out before anything was acknowledged: a retry would end the same way."""
        is_late = error.error_name == "DEADLINE" or isinstance(error.__cause__, TimeoutError)
        if self._pace.has_answered or not is_late:
            return
        self._pace.drained()
        several = f" and {len(request.topic_partitions) - 1} other partitions" if len(request.topic_partitions) > 1 else ""
        raise RetriableError(
            error.error_name,
            f"{request.topic_partitions[0]}{several}: {self._connection.transport.peer} did not acknowledge the first "
            f"request, of {request.size_bytes:,} bytes, in {self._pace.busy_s:.0f} s ({error}). Look at that broker and at "
            "the network to it; where the link is too slow for one such batch, raise request.timeout.ms of the target's "
            "client and write.transaction_timeout_ms",
        ) from error
