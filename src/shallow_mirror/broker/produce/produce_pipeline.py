"""Everywhere: queues of raw batches to all leaders at once: many Produce requests in flight, many partitions in each.

A broker serves a connection strictly in turn, so it always needs something to work on, and where it is far away as much as
the path carries in a round trip (send_pace.py). More than that would lie in socket buffers, and sending would turn into
thousands of short writes. Leaders work at the same time: each has its own requests in flight. Nothing is ever sent twice: after
any error the transaction has to be aborted. Therefore brokers need not remember more than the last batch of a partition, and the
five requests that idempotent producers keep in flight are no limit here.

With a limit (`until`) it stops sending when the limit has passed, keeps no more in flight than will be acknowledged by then
at the speed seen so far, and returns what was acknowledged: the front of each queue.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from types import MappingProxyType

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.send_pace import SendPace
from shallow_mirror.broker.net.begun_call import BEGUN
from shallow_mirror.broker.produce.leader_pipeline import (
    Continuing,
    InFlightLimits,
    Leader,
    LeaderPipeline,
    PacedLeaderPipeline,
    Submission,
)
from shallow_mirror.broker.produce.request_packing import Queues, pack
from shallow_mirror.deadline import Deadline
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.protocol import ProduceFrames, RawBatch

REQUEST_BYTES = 1 << 20
"""A request is closed when it holds this much, or one batch per partition."""


_ACKS_ALL = -1


PRODUCE = "produce"
"""The purpose of the connections of a pipeline."""

_NOTHING_CONTINUES: Continuing = MappingProxyType({})


class ProducePipeline:
    """Produce requests to all leaders: to each `in_flight_requests` and `in_flight_bytes` at the most.

    One batch larger than that is sent alone.

    `purpose`: of the connections. Two pipelines that are used at the same time need two: responses come in the order of requests.

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
        purpose: str = PRODUCE,
    ) -> None:
        self._cluster = cluster
        self._purpose = purpose
        self._transactional_id = transactional_id
        self._in_flight_requests = in_flight_requests
        self._in_flight_bytes = in_flight_bytes
        self._deadline = deadline
        self.stamped: set[TopicPartition] = set()
        """Partitions of which the broker has overwritten the times of a batch: message.timestamp.type=LogAppendTime."""
        self._until = until
        self._paces: dict[int, SendPace] = {}
        self._pipelines: dict[int, LeaderPipeline] = {}
        self._leader_of: dict[TopicPartition, int] = {}
        self.failed: Submission | None = None
        """The submission whose response was an error; None where the error was another."""

    def busy_s(self) -> float:
        """Return for how many seconds something was in flight, to the leader that took longest; 0 without a limit."""
        return max((pace.busy_s for pace in self._paces.values()), default=0.0)

    def produce_all(
        self,
        queues: Queues,
        base_offsets: dict[TopicPartition, list[int]] | None = None,
        continuing: Continuing = _NOTHING_CONTINUES,
    ) -> dict[TopicPartition, list[int]]:
        """Append every queue in order; return the base offset of each batch. Blocks until all is acknowledged by the ISR.

        If `until` stops it, there are fewer base offsets than batches: of the first ones of each queue, none of which is
        followed by a batch that continues it. Nothing else of the queues is on the target. A caller that gives `base_offsets`
        also learns from it the acknowledged batches after an error. Raises ProduceRefusedError (definite),
        ProducerEpochFencedError, or RetriableError; after any of them some batches may be appended and the transaction must be
        aborted.
        """
        submission = Submission(continuing, base_offsets)
        self.submit(queues, submission)
        self.finish(submission)
        return submission.base_offsets

    def submit(self, queues: Queues, submission: Submission) -> None:
        """Send every queue in order behind earlier submissions. Returns before all of it is acknowledged: `finish`.

        The bytes have to stay as they are until then. Raises as `produce_all`, also for earlier submissions: `failed`.
        """
        submission.base_offsets.update({topic_partition: [] for topic_partition in queues})
        with self._closed_after_errors():
            sending = deque(self._begin(submission, queues))
            # One request to each leader in turn, so that all of them work at the same time.
            while sending:
                if sending[0].send_next():
                    sending.rotate(-1)
                else:
                    sending.popleft()

    def purpose_at(self, node_id: int | None) -> str:
        """Return the purpose of a connection for a further request of the transaction, sent behind all that was submitted.

        `node_id`: of the broker it goes to; None: not known.

        A broker asks the transaction's coordinator whether a partition was added to it (KIP-890). If a second such question of
        the same transaction comes before the first was sent, the first one fails (AddPartitionsToTxnManager, Kafka 4.3). It
        serves a connection in turn, so behind Produce requests no question is waiting any more.
        """
        pipeline = None if node_id is None else self._pipelines.get(node_id)
        return BEGUN if pipeline is None or pipeline.is_idle else self._purpose

    def unanswered_nodes(self) -> list[int]:
        """Return the node ids of the brokers whose acknowledgements are still on their way."""
        return [node_id for node_id, pipeline in self._pipelines.items() if not pipeline.is_idle]

    def finish(self, submission: Submission) -> None:
        """Wait until all sent batches of a submission, and of those before it, are acknowledged. Raises as `submit`."""
        with self._closed_after_errors():
            for pipeline in self._pipelines.values():
                pipeline.finish(submission)

    @contextlib.contextmanager
    def _closed_after_errors(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            # Nothing may be sent twice: the responses that are still to come would be to a transaction that is aborted.
            for pipeline in self._pipelines.values():
                self.failed = pipeline.failed or self.failed
                pipeline.close()
            self._pipelines.clear()
            self._leader_of.clear()
            self._cluster.forget_metadata()
            raise

    def _begin(self, submission: Submission, queues: Queues) -> list[LeaderPipeline]:
        """Hand the queues to the pipelines of their leaders; return those."""
        by_leader: dict[int, dict[TopicPartition, Sequence[RawBatch]]] = {}
        for topic_partition, partition in self._cluster.leaders(queues, self._deadline).items():
            by_leader.setdefault(partition.leader, {})[topic_partition] = queues[topic_partition]
            earlier = self._leader_of.get(topic_partition, partition.leader)
            if earlier != partition.leader:
                # The new leader must not see a batch before the earlier one has appended those in front of it.
                self._pipelines[earlier].finish_all()
            self._leader_of[topic_partition] = partition.leader
        pipelines = []
        for node_id, leader_queues in by_leader.items():
            pipeline = self._pipelines.get(node_id)
            if pipeline is None or pipeline.is_idle:
                # A connection that was idle may have been closed by the broker: that shows when it is asked for again.
                pipeline = self._pipelines[node_id] = self._pipeline(node_id)
            pace = self._paces.get(node_id)
            requests = pack(
                leader_queues, (lambda: REQUEST_BYTES) if pace is None else partial(pace.request_bytes, REQUEST_BYTES)
            )
            pipeline.begin(submission, requests)
            pipelines.append(pipeline)
        return pipelines

    def _pipeline(self, node_id: int) -> LeaderPipeline:
        connection = self._cluster.connection(node_id, self._purpose, self._deadline)
        if connection.outstanding:
            # Of a pipeline that was given up without an error of its own: its responses would be taken for those to come.
            connection.close()
            connection = self._cluster.connection(node_id, self._purpose, self._deadline)
        timeout_ms = self._cluster.config.request_timeout_ms
        broker_ms = max(1, int(min(self._deadline.remaining_ms(), timeout_ms)))
        window = self._cluster.send_window(node_id)
        limits = InFlightLimits(
            requests=self._in_flight_requests,
            size_bytes=self._in_flight_bytes,
            # Twice what the broker may wait for its followers: a leader that takes no bytes any more is noticed as well.
            response_ms=timeout_ms * 2,
            deadline=self._deadline,
        )
        frames_of = partial(ProduceFrames, connection.client_id, self._transactional_id, _ACKS_ALL, broker_ms)
        leader = Leader(connection, window, frames_of, self.stamped, limits)
        if self._until is None:
            return LeaderPipeline(leader)
        if node_id not in self._paces:
            self._paces[node_id] = SendPace(self._until, self._deadline, window.bytes_per_s())
        return PacedLeaderPipeline(leader, self._paces[node_id])
