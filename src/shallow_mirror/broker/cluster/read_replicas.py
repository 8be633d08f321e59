"""Everywhere: which replica each partition is read from (KIP-392): its leader, the follower that it named, or the leader alone.

The rules are those of Java's consumer: a named follower is read until its lease (`metadata.max.age.ms`) is over, it answers
anything but records, it cannot be reached, or the partition has another leader. One rule is stricter. After a follower
failed, the leader is asked in the way that it has to answer itself (Fetch v10), for as long: a leader that goes on naming a
follower which this client cannot reach, or which lags, would keep the partition from being read for ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from shallow_mirror.broker.cluster.cluster_metadata import PartitionMetadata
from shallow_mirror.broker.net.error_codes import error_name
from shallow_mirror.errors import RetriableError
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.protocol.fetch import NO_REPLICA, FetchedPartition

_REPLICA_NOT_AVAILABLE = 9


class FetchPath(NamedTuple):
    """A broker and how it is asked; partitions of the same one go into one request. `is_leader_only`: so that it has to answer
    with the log that it leads."""

    node_id: int
    is_leader_only: bool = False

    @property
    def purpose(self) -> str:
        """Name the connection: requests of both kinds may be on the wire at once, and each is answered by itself."""
        return "fetch from leader" if self.is_leader_only else "fetch"


class ReadSource(NamedTuple):
    """Who is asked for a partition, and who led it then."""

    path: FetchPath
    leader: PartitionMetadata

    @property
    def is_follower(self) -> bool:
        return self.path.node_id != self.leader.leader


class _Lease(NamedTuple):
    """`node_id` None: the leader alone. It ends with `until` (seconds), or when the partition has another leader."""

    node_id: int | None
    leader: tuple[int, int]
    until: float


class ReadReplicas:
    """Not thread-safe. Holds one lease for each partition that was read from another replica than usual."""

    def __init__(self, lease_ms: int, clock: Callable[[], float]) -> None:
        self._lease_s, self._clock = lease_ms / 1000, clock
        self._leases: dict[TopicPartition, _Lease] = {}
        self._paths: dict[int, FetchPath] = {}

    def source_of(self, place: TopicPartition, leader: PartitionMetadata) -> ReadSource:
        """Return whom to ask now. `leader` is what the metadata says now."""
        lease = self._leases.get(place)
        if lease is not None and (lease.leader != (leader.leader, leader.leader_epoch) or self._clock() >= lease.until):
            del self._leases[place]
            lease = None
        if lease is None:
            path = self._paths.get(leader.leader) or self._paths.setdefault(leader.leader, FetchPath(leader.leader))
            return ReadSource(path, leader)
        if lease.node_id is None:
            return ReadSource(FetchPath(leader.leader, is_leader_only=True), leader)
        return ReadSource(FetchPath(lease.node_id), leader)

    def is_redirected(self, fetched: FetchedPartition, asked: ReadSource) -> bool:
        """Say whether the leader named a follower instead of reading: that answer says nothing of the log.

        Raises RetriableError for every answer of a follower that is not read from its log, whatever the error, and for a name
        that nobody can follow: the leader is asked alone then. A follower that lacks the offset may lag (KIP-392): only the
        leader can say that data was lost.
        """
        place, preferred = fetched.topic_partition, fetched.preferred_replica
        if asked.is_follower and (fetched.error_code or fetched.diverging is not None or preferred != NO_REPLICA):
            self.ask_leader_alone(place, asked.leader)
            name = error_name(fetched.error_code or _REPLICA_NOT_AVAILABLE)
            raise RetriableError(name, f"Fetch of {place} from replica {asked.path.node_id}; its leader is asked instead")
        if fetched.error_code or preferred == NO_REPLICA:
            return False
        if asked.path.is_leader_only or preferred == asked.path.node_id:
            self.ask_leader_alone(place, asked.leader)
            detail = f"Fetch of {place}: its leader {asked.path.node_id} names replica {preferred} instead of answering"
            raise RetriableError(error_name(_REPLICA_NOT_AVAILABLE), detail)
        self._leases[place] = self._lease(preferred, asked.leader)
        return True

    def failed(self, sources: Mapping[TopicPartition, ReadSource]) -> None:
        """Note that a request was not answered: what was asked of followers is asked of the leaders alone."""
        for place, asked in sources.items():
            if asked.is_follower:
                self.ask_leader_alone(place, asked.leader)

    def ask_leader_alone(self, place: TopicPartition, leader: PartitionMetadata) -> None:
        """Read the partition from its leader for a lease's time, whomever that names."""
        self._leases[place] = self._lease(None, leader)

    def _lease(self, node_id: int | None, leader: PartitionMetadata) -> _Lease:
        return _Lease(node_id, (leader.leader, leader.leader_epoch), self._clock() + self._lease_s)
