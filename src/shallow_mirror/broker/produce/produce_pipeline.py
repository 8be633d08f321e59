"""Everywhere: queues of raw batches to all leaders at once: several Produce requests in flight, many partitions in each.

A broker serves a connection strictly in turn, so full requests and a few in flight are what makes it fast; bytes in
flight are bounded because beyond what socket buffers hold, sending turns into thousands of short writes. Leaders work at
the same time: each has its own requests in flight. Nothing is ever sent twice: after any error the transaction has to be
aborted.

With a limit (`until`) it stops sending when the limit has passed, keeps no more in flight than will be acknowledged by then
at the speed seen so far, and returns what was acknowledged: the front of each queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from functools import partial
from types import MappingProxyType

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.send_pace import SendPace
from shallow_mirror.broker.produce.leader_pipeline import (
    Continuing,
    InFlightLimits,
    LeaderPipeline,
    LeaderWork,
    PacedLeaderPipeline,
)
from shallow_mirror.broker.produce.request_packing import Queues, pack
from shallow_mirror.deadline import Deadline
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.protocol.produce import ProduceFrames, RawBatch

REQUEST_BYTES = 1 << 20
"""A request is closed when it holds this much, or one batch per partition."""


_ACKS_ALL = -1


_NOTHING_CONTINUES: Continuing = MappingProxyType({})


class ProducePipeline:
    """Produce requests to all leaders: to each `in_flight_requests` and `in_flight_bytes` at the most.

    One batch larger than that is sent alone.

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
        self._cluster = cluster
        self._transactional_id = transactional_id
        self._in_flight_requests = in_flight_requests
        self._in_flight_bytes = in_flight_bytes
        self._deadline = deadline
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
        base_offsets: dict[TopicPartition, list[int]] | None = None,
        continuing: Continuing = _NOTHING_CONTINUES,
    ) -> dict[TopicPartition, list[int]]:
        """Append every queue in order; return the base offset of each batch. Blocks until all is acknowledged by the ISR.

        Where `until` stops it, there are fewer base offsets than batches: of the first ones of each queue, none of which is
        followed by a batch that continues it. Nothing else of the queues is on the target.
        A caller that gives `base_offsets` also learns from it what was acknowledged before an error.
        Raises ProduceRefusedError (definite), ProducerEpochFencedError, or RetriableError; after any of them some batches may be
        appended and the transaction must be aborted.
        """
        base_offsets = {} if base_offsets is None else base_offsets
        base_offsets.update({topic_partition: [] for topic_partition in queues})
        by_leader: dict[int, dict[TopicPartition, Sequence[RawBatch]]] = {}
        for topic_partition, partition in self._cluster.leaders(queues, self._deadline).items():
            by_leader.setdefault(partition.leader, {})[topic_partition] = queues[topic_partition]
        pipelines = [
            self._pipeline(node_id, leader_queues, base_offsets, continuing) for node_id, leader_queues in by_leader.items()
        ]
        try:
            # One request to each leader in turn, so that all of them work at the same time.
            sending = deque(pipelines)
            while sending:
                if sending[0].send_next():
                    sending.rotate(-1)
                else:
                    sending.popleft()
            for pipeline in pipelines:
                pipeline.drain()
        except BaseException:
            # Nothing may be sent twice: the responses that are still to come would be to a transaction that is aborted.
            for pipeline in pipelines:
                pipeline.close()
            self._cluster.forget_metadata()
            raise
        return base_offsets

    def _pipeline(
        self, node_id: int, queues: Queues, base_offsets: dict[TopicPartition, list[int]], continuing: Continuing
    ) -> LeaderPipeline:
        connection = self._cluster.connection(node_id, "produce", self._deadline)
        timeout_ms = self._cluster.config.request_timeout_ms
        broker_ms = max(1, int(min(self._deadline.remaining_ms(), timeout_ms)))
        frames_of = partial(ProduceFrames, connection.client_id, self._transactional_id, _ACKS_ALL, broker_ms)
        limits = InFlightLimits(
            requests=self._in_flight_requests,
            size_bytes=self._in_flight_bytes,
            # Twice what the broker may wait for its followers: a leader that takes no bytes any more is noticed as well.
            response_ms=timeout_ms * 2,
            deadline=self._deadline,
        )
        if self._until is None:
            requests = pack(queues, lambda: REQUEST_BYTES)
            return LeaderPipeline(LeaderWork(connection, requests, frames_of, base_offsets, self.stamped, limits))
        pace = self._paces.setdefault(node_id, SendPace(self._until, self._deadline))
        requests = pack(queues, partial(pace.request_bytes, REQUEST_BYTES))
        work = LeaderWork(connection, requests, frames_of, base_offsets, self.stamped, limits)
        return PacedLeaderPipeline(work, pace, continuing)
