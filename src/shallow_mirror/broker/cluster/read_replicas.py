"""Everywhere: which replica each partition is read from (KIP-392): its leader, the follower that it named, or the leader alone.

The rules are those of Java's consumer: a named follower is read until its lease (`metadata.max.age.ms`) is over, it answers
anything but records, it cannot be reached, or the partition has another leader. One rule is stricter. After a follower
failed, the leader is sent Fetch v10, which it has to answer itself, for as long: a leader that keeps naming a follower which
this client cannot reach, or which lags, would prevent the partition from being read at all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from shallow_mirror.broker.cluster.cluster_metadata import PartitionMetadata
from shallow_mirror.broker.net.error_codes import error_name
from shallow_mirror.errors import RetriableError
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.protocol import NO_REPLICA, FetchedPartition

_REPLICA_NOT_AVAILABLE = 9


LANES = (0, 1)
"""Of a broker that is far away: connections with a request on each of them."""


class FetchPath(NamedTuple):
    """A broker and the kind of Fetch; partitions with the same path go into one request.

    `is_leader_only`: Fetch v10, which a leader answers with the log that it leads. `lane`: of a broker that is far away, which
    has a request on each of two connections, so that one response travels while the next request does.
    """

    node_id: int
    is_leader_only: bool = False
    lane: int = 0

    @property
    def other_lane(self) -> FetchPath:
        return self._replace(lane=1 - self.lane)

    @property
    def purpose(self) -> str:
        """Name the connection: requests of both kinds may be on the wire at once, and each is answered on its own."""
        name = "fetch from leader" if self.is_leader_only else "fetch"
        return f"{name} {self.lane}" if self.lane else name


class ReadSource(NamedTuple):
    """The replica that a partition is read from, and its leader at that time."""

    path: FetchPath
    leader: PartitionMetadata

    @property
    def is_follower(self) -> bool:
        return self.path.node_id != self.leader.leader


class _Lease(NamedTuple):
    """A replica to read from. `node_id` None: the leader alone. Ends at `until` (seconds), or with another leader."""

    node_id: int | None
    leader: tuple[int, int]
    until: float


class ReadReplicas:
    """Leases of partitions that are not read in the usual way from their leader. Not thread-safe."""

    def __init__(self, lease_ms: int, clock: Callable[[], float]) -> None:
        self._lease_s, self._clock = lease_ms / 1000, clock
        self._leases: dict[TopicPartition, _Lease] = {}
        self._paths: dict[int, FetchPath] = {}

    def source_of(self, topic_partition: TopicPartition, leader: PartitionMetadata) -> ReadSource:
        """Return which replica to read now. `leader`: of the current metadata."""
        lease = self._leases.get(topic_partition)
        if lease is not None and (lease.leader != (leader.leader, leader.leader_epoch) or self._clock() >= lease.until):
            del self._leases[topic_partition]
            lease = None
        if lease is None:
            path = self._paths.get(leader.leader) or self._paths.setdefault(leader.leader, FetchPath(leader.leader))
            return ReadSource(path, leader)
        if lease.node_id is None:
            return ReadSource(FetchPath(leader.leader, is_leader_only=True), leader)
        return ReadSource(FetchPath(lease.node_id), leader)

    def is_redirected(self, fetched: FetchedPartition, source: ReadSource) -> bool:
        """Return whether the leader named a follower instead of reading: such a response says nothing of the log.

        Raises RetriableError for every response of a follower that is not read from its log, whatever the error, and if a
        leader names a replica that makes no sense: the leader alone is read then.
        """
        topic_partition, preferred = fetched.topic_partition, fetched.preferred_replica
        if source.is_follower and (fetched.error_code or fetched.diverging is not None or preferred != NO_REPLICA):
            self.ask_leader_alone(topic_partition, source.leader)
            # Also OFFSET_OUT_OF_RANGE: the follower may lag (KIP-392), only the leader can say that data was lost.
            name = error_name(fetched.error_code or _REPLICA_NOT_AVAILABLE)
            raise RetriableError(
                name, f"Fetch of {topic_partition} from replica {source.path.node_id}; its leader is asked instead"
            )
        if fetched.error_code or preferred == NO_REPLICA:
            return False
        if source.path.is_leader_only or preferred == source.path.node_id:
            self.ask_leader_alone(topic_partition, source.leader)
            detail = (
                f"Fetch of {topic_partition}: its leader {source.path.node_id} names replica {preferred} instead of answering"
            )
            raise RetriableError(error_name(_REPLICA_NOT_AVAILABLE), detail)
        self._leases[topic_partition] = self._lease(preferred, source.leader)
        return True

    def failed(self, sources: Mapping[TopicPartition, ReadSource]) -> None:
        """Note that a request was not answered: its partitions that followers served are read from the leaders alone."""
        for topic_partition, source in sources.items():
            if source.is_follower:
                self.ask_leader_alone(topic_partition, source.leader)

    def ask_leader_alone(self, topic_partition: TopicPartition, leader: PartitionMetadata) -> None:
        """Read the partition from its leader for the time of a lease, whatever replica that names."""
        self._leases[topic_partition] = self._lease(None, leader)

    def _lease(self, node_id: int | None, leader: PartitionMetadata) -> _Lease:
        return _Lease(node_id, (leader.leader, leader.leader_epoch), self._clock() + self._lease_s)
