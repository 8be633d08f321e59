"""The target partition: three replicas, of which two have to be in sync, and the connections to their brokers.

A leader answers one request of a connection after another (`acks=all`: once the high watermark has passed the batch). What was
sent over a connection may be delivered after its writer is dead, until `connections.max.idle.ms`; a broker that restarts loses its
connections. A deposed leader answers on, with an old high watermark, until it learns of the new one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from tests.model.preserved.replicas import FOREIGN, NO_SEQUENCE, Batch, Replica, Request

REPLICAS = 3
MIN_IN_SYNC = 2

NO_ERROR, NOT_LEADER, TIMED_OUT, TOO_FEW, TOO_FEW_AFTER_APPEND, OUT_OF_ORDER = 0, 6, 7, 19, 20, 45
DISCONNECTED = -1

_SLOW = 0.3
"""The share of connections whose requests arrive late."""


class ViolationError(Exception):
    """What must never happen did."""


class Connection:
    """To one broker. `waits`: base offset and end of the batch whose acknowledgement is due. `closes_at`: None while its writer lives.

    `trusts_log`: something was sent over it because the log was new, or held the producer's batch.
    """

    __slots__ = ("broker", "closes_at", "is_broken", "is_slow", "requests", "responses", "trusts_log", "waits")

    def __init__(self, broker: int) -> None:
        self.broker = broker
        self.requests: deque[Request] = deque()
        self.responses: deque[tuple[int, int]] = deque()
        self.waits: tuple[int, int] | None = None
        self.closes_at: int | None = None
        self.is_broken = self.is_slow = False
        self.trusts_log = False


class TargetPartition:
    """`origin`: where its log begins. `shifted`: how many own batches were appended behind a foreign one, not at their offsets.

    `refused`: the share of requests that the leader refuses although they are in order.
    """

    def __init__(self, origin: int, chance: Callable[[], float], refused: float) -> None:
        self.replicas = [Replica(number, origin) for number in range(REPLICAS)]
        self.leader = 0
        self.replicas[0].is_leading = True
        self.in_sync = {0, 1, 2}
        self._fetched_ends = [origin] * REPLICAS
        self.connections: list[Connection] = []
        self._has_foreign_batch = False
        self.refusals = 0
        self.shifted = 0
        self._chance = chance
        self._refused = refused

    @property
    def is_busy(self) -> bool:
        """Return whether requests are on their way."""
        return any(connection.requests for connection in self.connections)

    def connect(self, broker: int) -> Connection:
        connection = Connection(broker)
        connection.is_slow = self._chance() < _SLOW
        self.connections.append(connection)
        return connection

    def seed(self, request: Request) -> None:
        """Append a batch to all replicas."""
        self.replicas[0].append(request)
        self.settle()

    def serve(self, connection: Connection) -> None:
        """Let the broker do the next thing for a connection; one that is slow has mostly nothing to do."""
        if connection.is_slow and self._chance() < 0.9:
            return
        replica = self.replicas[connection.broker]
        if connection.waits is not None:
            base, end = connection.waits
            if not replica.is_leading:
                response = NOT_LEADER
            elif replica.high_watermark >= end:
                response = NO_ERROR
            elif self._chance() < 0.2:
                response = TIMED_OUT
            else:
                return
            connection.waits = None
            connection.responses.append((response, base))
        elif connection.requests:
            error, base, end = self._produce(replica, connection.requests.popleft())
            if error:
                self.refusals += 1
                connection.responses.append((error, base))
            else:
                connection.waits = base, end

    def _produce(self, replica: Replica, request: Request) -> tuple[int, int, int]:
        """Return an error, 0 where there is none, base offset and end."""
        if not replica.is_leading:
            return NOT_LEADER, -1, -1
        chance = self._chance()
        if chance < self._refused or (replica.number == self.leader and len(self.in_sync) < MIN_IN_SYNC):
            return TOO_FEW, -1, -1
        duplicate = replica.duplicate_of(request)
        if duplicate is not None:
            return NO_ERROR, duplicate, duplicate + request.records
        if not replica.is_in_order(request):
            return OUT_OF_ORDER, -1, -1
        batch = replica.append(request)
        if replica.number == self.leader:
            self._require_in_place(batch)
            self._advance()
        if chance > 0.97:
            return TOO_FEW_AFTER_APPEND, batch.base, -1
        return NO_ERROR, batch.base, batch.base + batch.records

    def _require_in_place(self, batch: Batch) -> None:
        """Raise ViolationError unless the log holds each record of the source at its own offset, or a foreign batch in front."""
        if batch.base != batch.wanted:
            if self.foreign_at is None:
                raise ViolationError(f"shifted: the batch of offset {batch.wanted} was appended at {batch.base}")
            self.shifted += 1

    @property
    def foreign_at(self) -> int | None:
        """Return the offset of the first foreign batch; None where there is none, or a leader without it was elected."""
        if not self._has_foreign_batch:
            return None
        return next((batch.base for batch in self.replicas[self.leader].log if batch.producer_id == FOREIGN), None)

    def write_foreign(self, time_ms: int) -> None:
        leader = self.replicas[self.leader]
        self._has_foreign_batch = True
        leader.append(Request(-1, 1, FOREIGN, NO_SEQUENCE, time_ms))
        self._advance()

    def fetch(self, number: int) -> bool:
        """Let a follower fetch from the leader; return whether anything changed. It learns the high watermark of before."""
        leader, follower = self.replicas[self.leader], self.replicas[number]
        if follower.is_leading:
            return False
        high_watermark = min(leader.end, max(leader.start, leader.high_watermark))
        is_alike = follower.end == leader.end and follower.start == leader.start and follower.log[-1:] == leader.log[-1:]
        if is_alike and follower.high_watermark == high_watermark and self._fetched_ends[number] == follower.end:
            if number not in self.in_sync:
                self.in_sync.add(number)
                self._advance()
            return False
        if not is_alike:
            follower.copy(leader)
        follower.high_watermark = high_watermark
        self._fetched_ends[number] = follower.end
        self.in_sync.add(number)
        self._advance()
        return True

    def _advance(self) -> None:
        leader = self.replicas[self.leader]
        if leader.high_watermark == leader.end or len(self.in_sync) < MIN_IN_SYNC:
            return  # below min.insync.replicas nothing is committed (KIP-966)
        end = leader.end
        for number in self.in_sync:
            if number != self.leader and self._fetched_ends[number] < end:
                end = self._fetched_ends[number]
        if end > leader.high_watermark:
            leader.high_watermark = end

    def drop_out(self, number: int) -> None:
        """Let a follower fall out of the set in sync."""
        if number != self.leader and len(self.in_sync) > 1:
            self.in_sync.discard(number)
            self._advance()

    def fail_over(self, number: int) -> bool:
        """Let a replica in sync lead. The leader of before does not know of it."""
        if number == self.leader or number not in self.in_sync:
            return False
        self.in_sync.discard(self.leader)
        self.leader = number
        leader = self.replicas[number]
        leader.is_leading, leader.leads_from = True, leader.end
        self._fetched_ends = [-1] * REPLICAS
        return True

    def restart(self, number: int) -> None:
        """Restart a broker: its connections are gone, and so is what it remembers of an emptied log."""
        for connection in self.connections:
            if connection.broker == number:
                connection.requests.clear()
                connection.waits = None
                connection.is_broken = True
        replica = self.replicas[number]
        replica.is_leading = number == self.leader
        replica.reload()

    def empty(self) -> None:
        """Remove all records, by retention or DeleteRecords."""
        leader = self.replicas[self.leader]
        if leader.high_watermark == leader.end:
            leader.start = leader.end

    def settle(self) -> None:
        """Let every broker know the leader, and every follower catch up."""
        followers = [replica for replica in self.replicas if replica.number != self.leader]
        for replica in followers:
            replica.is_leading = False
        # Again, so that followers learn the high watermark as well.
        while any(self.fetch(replica.number) for replica in followers):
            pass

    def close_connections(self, now_ms: int) -> None:
        """Close those whose writer has been dead for so long."""
        self.connections = [
            connection for connection in self.connections if connection.closes_at is None or connection.closes_at > now_ms
        ]
