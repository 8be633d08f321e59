"""A task that writes: the steps of `PreservedWriter`, with the product's `check_log` as the decision whether and how it writes.

A task makes tries. Each asks the leader for the start of the log, for its end, and for its producers, one after another; other
things happen in between. Then it checks the headers that the map does not account for, and sends batches from the log's end on,
several at once, cut as it likes. After any error it closes its connection and begins another try; what it has sent may still arrive.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from tests.model.preserved.replicas import NO_SEQUENCE, Replica, Request
from tests.model.preserved.target import DISCONNECTED, NO_ERROR, OUT_OF_ORDER, Connection, ViolationError

from shallow_mirror.broker import ProducerState
from shallow_mirror.errors import PreservedLogDamagedError, RetriableError, TargetDataLossError
from shallow_mirror.sinks.kafka.preserved.log_guard import TargetLog, check_log
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.batches import SEQUENCE_MODULUS

if TYPE_CHECKING:
    from tests.model.preserved.world import World

TOPIC_PARTITION = TopicPartition("copy", 0)

_START, _END, _PRODUCERS, _SENDING = range(4)
_IN_FLIGHT = 4
_MOST_RECORDS = 4


class Task:
    """Of the owner of this number. `position`, `recorded_end`: of the map when it began. `quiet_since_ms`: as its owner knows it.

    `reached`: up to where it knows the source's records to be on the target. `has_retried`: an earlier try may have requests on
    their way.
    """

    def __init__(self, world: World, owner: int, quiet_since_ms: int, deadline_ms: int) -> None:
        self.owner = owner
        self.position = world.position
        self.recorded_end = world.recorded_end
        self.quiet_since_ms = quiet_since_ms
        self.deadline_ms = deadline_ms
        self.producer_id = world.producer_of(owner)
        self.log_origin = world.log_origin()
        self._trusted_origin = self.log_origin if world.rules.bounds_origin else 0
        self.has_retried = False
        self._begin(world)

    def _begin(self, world: World) -> None:
        self._stage = _START
        self._connection: Connection | None = None
        self._unanswered: deque[tuple[int, int]] = deque()
        self._is_alone = self._is_due = False
        self._was_remembered = self._has_looked = False
        self._broker = world.some_leader()
        self._start = self._end = 0
        self.reached = self._next = self._sequence = self.position

    def step(self, world: World) -> None:
        """Do the next thing. It may end the task: see `World`."""
        if self._stage != _SENDING:
            self._learn(world)
            return
        connection = self._connection
        if connection is not None and (connection.responses or connection.is_broken):
            error, base = connection.responses.popleft() if connection.responses else (DISCONNECTED, -1)
            self._take_response(world, error, base)
        elif self._may_send(world):
            self._send(world)
        elif not self._unanswered or not world.rules.records_answered:
            world.record(self)

    def _learn(self, world: World) -> None:
        replica = world.target.replicas[self._broker]
        if not replica.is_leading:
            self._broker, self._stage = world.target.leader, _START  # error 6: it asks again
        elif self._stage == _START:
            self._start, self._stage = replica.start, _END
        elif self._stage == _END:
            if replica.high_watermark < replica.leads_from:
                return  # OFFSET_NOT_AVAILABLE: it asks again
            self._end, self._stage = replica.high_watermark, _PRODUCERS
        else:
            self._check(world, replica)

    def _check(self, world: World, replica: Replica) -> None:
        known = replica.producers.get(self.producer_id)
        state = known and ProducerState(self.producer_id, 0, -1, known.time_ms, -1, known.batches[-1][1])
        try:
            is_alone = check_log(
                TOPIC_PARTITION,
                TargetLog(self._start, self._end, state),
                recorded_end=self.recorded_end,
                quiet_for_ms=world.now_ms - self.quiet_since_ms,
                times=world.times,
                now_ms=world.now_ms,
                origin=self.log_origin,
            )
        except RetriableError:
            world.wait(self)
            return
        except (PreservedLogDamagedError, TargetDataLossError) as error:
            if world.rules.looks_twice and not self._has_looked:
                self._has_looked, self._stage, self._broker = True, _START, world.target.leader
            elif isinstance(error, PreservedLogDamagedError):
                world.report_damage(self, error.detail)
            else:
                world.report_loss()
            return
        if world.rules.checks_headers:
            first = max(self.position, self._start)
            for batch in reversed(replica.log):
                if batch.base + batch.records <= first:
                    break
                if batch.base < self._end and (
                    batch.producer_id != self.producer_id or batch.sequence != batch.base % SEQUENCE_MODULUS
                ):
                    world.report_damage(self, "the header of a batch")
                    return
        self._was_remembered = not is_alone
        self._is_alone = is_alone and world.rules.sends_first_alone
        if state is None and world.target.foreign_at is not None and self._start > world.target.foreign_at:
            world.has_lost_evidence = True
        self._next = self._sequence = self._end if world.rules.begins_at_log_end else self.position
        self.reached = min(self._next, world.source_end)
        if not world.rules.counts_from_offset and state is not None:
            self._sequence = state.last_sequence + 1
        self._stage = _SENDING

    def _may_send(self, world: World) -> bool:
        return (
            not self._is_due and self._next < world.source_end and len(self._unanswered) < (1 if self._is_alone else _IN_FLIGHT)
        )

    def _send(self, world: World) -> None:
        chance = world.chance()
        if chance < 0.04:
            # The commit interval is over. Where the first batch was not sent, none may be.
            if self._is_alone and not world.rules.stops_when_cut_short and self._next + 1 < world.source_end:
                self._next, self._is_alone = self._next + 1, False
                self._sequence += 1
            else:
                self._is_due = True
                return
        count = min(world.cut or 1 + int(world.chance() * _MOST_RECORDS), world.source_end - self._next)
        sequence = self._sequence % SEQUENCE_MODULUS if world.rules.is_conditional else NO_SEQUENCE
        self._post(world, Request(self._next, count, self.producer_id, sequence, world.time_of_batch()))
        self._next += count
        self._sequence += count

    def _post(self, world: World, request: Request) -> None:
        if self._connection is None:
            self._connection = world.target.connect(self._broker)
        if self._was_remembered or request.wanted == world.origin or not self._is_alone:
            self._connection.trusts_log = True
        self._connection.requests.append(request)
        self._unanswered.append((request.wanted, request.records))

    def _take_response(self, world: World, error: int, base: int) -> None:
        if error == NO_ERROR:
            wanted, count = self._unanswered.popleft()
            if base != wanted and world.rules.compares_base_offsets:
                world.report_damage(self, "a base offset")
            else:
                self.reached = wanted + count
                self._is_alone = False
            return
        self.close(world.now_ms)
        if world.rules.asks_again or error == OUT_OF_ORDER:
            self.retry(world)
            return
        self.producer_id = world.new_producer_id()
        self._connection, unanswered, self._unanswered = None, self._unanswered, deque()
        self._broker = world.some_leader()
        for wanted, count in unanswered:
            time_ms = world.time_of_batch()
            self._post(world, Request(wanted, count, self.producer_id, wanted % SEQUENCE_MODULUS, time_ms))

    def retry(self, world: World) -> None:
        self.has_retried = True
        self.quiet_since_ms = world.now_ms
        self._begin(world)

    def close(self, at_ms: int) -> None:
        """Close the connection, if any: what was sent over it may arrive until brokers close it."""
        if self._connection is not None:
            self._connection.closes_at = at_ms

    @property
    def trusts_log(self) -> bool:
        """Whether it counts on the log: it was new, or ended where it was continued; it held the producer's batch, or holds it by now."""
        if self._stage != _SENDING:
            return self._stage != _START
        if not self._is_alone or self._next == self._trusted_origin:
            return True
        return self._connection is not None and bool(self._connection.responses)

    @property
    def sent(self) -> int:
        """Return up to where it has sent batches, acknowledged or not."""
        return self._next

    def require_recordable(self, world: World) -> None:
        """Raise ViolationError where the map would have what is not on the target."""
        target = world.target
        if world.position > target.replicas[target.leader].end:
            raise ViolationError(f"recorded {world.position}, the target ends at {target.replicas[target.leader].end}")
        if target.foreign_at is not None and world.position > target.foreign_at and not world.has_lost_evidence:
            raise ViolationError(f"recorded {world.position}, behind a foreign record at {target.foreign_at}")
