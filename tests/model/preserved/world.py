"""One schedule, drawn from a seed: owners of the map, their tasks, the target, time, and what goes wrong.

What is assumed of the environment, and by what the product or an operator makes sure of it:

- Brokers take `connections.max.idle.ms` at the most to close a connection of a dead writer; a task ends at its deadline, and the
  owner of before starts no new one (it checks its ownership first). Both together are `quiet_ms`.
- `producer.id.expiration.ms` is at least twice that (`read_guard_times`).
- A leader that is deposed and does not know it answers, but not twice after the writer has asked for the leader anew.
- In a long pause (more than ten minutes) every broker learns who leads, and followers catch up.
- A log is not emptied from when a task asks about it until the last of its requests can arrive, if the task found it new, or at
  the end of what it held before a mirror continued it, or with the producer's newest batch in it, or has written to it. A log whose newest records are kept for `quiet_ms` after that gives it.
  Retention counts by the times of records, so copies of records that are about to expire do not. `may_empty_any_time` leaves it out.

What has to hold: after every append, what the leader's log has at offset o is the source's offset o, data or hole (unless a
foreign writer wrote in front of it). The map has nothing that the target has not. Damage is reported only where a foreign writer
wrote, and a loss of records never. Nothing at or behind the first foreign record is recorded, as long as its batch is in the log
or the producer is remembered. Once faults stop, a writer completes the log, or reports the damage.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from enum import Enum, auto

from tests.model.preserved.replicas import Request
from tests.model.preserved.rules import PRODUCT, Rules
from tests.model.preserved.target import REPLICAS, TargetPartition, ViolationError
from tests.model.preserved.task import Task

from shallow_mirror.sinks.kafka.preserved import GuardTimes
from shallow_mirror.wire.batches import SEQUENCE_MODULUS

_SECOND, _MINUTE, _HOUR = 1_000, 60_000, 3_600_000
TASK_MS, IDLE_MS = 15 * _MINUTE, 10 * _MINUTE
EXPIRATION_MS, SHORT_EXPIRATION_MS = 24 * _HOUR, 20 * _MINUTE
_BEGIN_MS = 1_700_000_000_000
_YEAR_MS = 365 * 24 * _HOUR
_OFFSETS = (3, 6, 12)
_STEPS = 70
_SHARE_OF_HARMS, _SHARE_OF_FOREIGN_WRITERS = 0.5, 0.2
_REFUSED = (0.02, 0.1, 0.4)
_LONG_PAUSE_MS = 10 * _MINUTE
_FIRST_PRODUCER = 77
_APPLICATION = 5
"""The idempotent producer of what a log held before a mirror continued it."""
_SHARE_OF_UNMIRRORED = 0.2
_EMPTIED = 2
_ORIGINS = (0, 0, 7, SEQUENCE_MODULUS - 5)


class Focus(Enum):
    """What goes wrong most: anything; a log without records, whose producer is lost; time that passes; changes
    of the leader; a foreign writer; anything in a log that is continued."""

    ANYTHING = auto()
    FORGOTTEN = auto()
    EXPIRING = auto()
    LEADERS = auto()
    FOREIGN = auto()
    CONTINUED = auto()


_FOCUSES = (
    *[Focus.ANYTHING] * 6,
    Focus.FORGOTTEN,
    Focus.FORGOTTEN,
    Focus.EXPIRING,
    Focus.LEADERS,
    Focus.LEADERS,
    Focus.FOREIGN,
    Focus.CONTINUED,
)


class World:
    """`position`: of the map, up to where the source's offsets are accounted for. `recorded_end`: of what it has on the target.

    `focus`: drawn where it is None. `unclean_ms`: when a request of another writer, or one without a response, may have been on its way the last time. `cut`: how
    many records a batch has; 0: any number.
    """

    def __init__(
        self,
        seed: int,
        rules: Rules = PRODUCT,
        *,
        focus: Focus | None = None,
        may_empty_any_time: bool = False,
        note: Callable[[str], None] | None = None,
    ) -> None:
        self.chance = random.Random(seed).random
        self.rules = rules
        self._note = note
        self._may_empty_any_time = may_empty_any_time
        self.now_ms = _BEGIN_MS
        self._focus = focus or _FOCUSES[int(self.chance() * len(_FOCUSES))]
        origins = _ORIGINS[2:] if self._focus in (Focus.FORGOTTEN, Focus.CONTINUED) else _ORIGINS
        self.origin = origins[int(self.chance() * len(origins))]
        self.source_end = self.origin + _OFFSETS[int(self.chance() * 3)]
        self._records_age_ms = (0, EXPIRATION_MS // 2 - 1, _YEAR_MS)[int(self.chance() * 3)]
        self._expiration_ms = EXPIRATION_MS if rules.requires_long_expiration else SHORT_EXPIRATION_MS
        quiet_ms = TASK_MS + IDLE_MS if rules.waits_quiet else 0
        self.times = GuardTimes(expiration_ms=self._expiration_ms, quiet_ms=quiet_ms)
        self.target = TargetPartition(self.origin, self.chance, refused=_REFUSED[int(self.chance() * 3)])
        self.position = self.origin
        self.recorded_end = 0
        self._producer_ids = _FIRST_PRODUCER
        self.owner = 0
        self.unclean_ms = self.now_ms
        self.tasks: list[Task] = []
        self.cut = 0
        self.killed = 0
        self.damage: str | None = None
        self.has_lost_evidence = False
        self.is_refused = False
        if self._focus is Focus.CONTINUED:
            self._seed_a_batch(_APPLICATION, sequence=int(self.chance() * 3))
            self._continue_log()
        elif self.origin:
            self._seed_a_batch(_FIRST_PRODUCER, sequence=(self.origin - 1) % SEQUENCE_MODULUS)
            self.unclean_ms -= TASK_MS + IDLE_MS

    def _seed_a_batch(self, producer_id: int, sequence: int) -> None:
        """Let the log hold a batch that the map knows, of now or a day ago, or none any more."""
        kind = _EMPTIED if self._focus is Focus.FORGOTTEN else int(self.chance() * 3)
        sent_ms = self.now_ms - (kind > 0) * self._expiration_ms
        last = self.origin - 1
        for replica in self.target.replicas:
            replica.start = replica.end = replica.high_watermark = replica.leads_from = last
        self.target.seed(Request(last, 1, producer_id, sequence, sent_ms))
        if kind == _EMPTIED:
            for replica in self.target.replicas:
                replica.start = replica.end
                replica.reload()
        self.recorded_end = self.origin

    def _continue_log(self) -> None:
        """Agree on a producer id for a log that holds what the source holds, or a record behind it that was never mirrored.

        Then it is refused; without a comparison it would be continued behind that record.
        """
        if self.chance() < _SHARE_OF_UNMIRRORED:
            self.target.write_foreign(self.now_ms)
            self.target.settle()
            self.is_refused = self.rules.compares_existing
            self.position = self.recorded_end = self.origin + 1

    @property
    def is_continued(self) -> bool:
        """Return whether the log held something before the mirror, and was continued."""
        return self._focus is Focus.CONTINUED and not self.is_refused

    # --- what tasks ask for ---

    def log_origin(self) -> int:
        """Return where the first batch of the shared producer belongs: the map has it, for every owner."""
        if not self.rules.bounds_origin:
            return self.position
        return self.origin if self._focus is Focus.CONTINUED else 0

    def producer_of(self, owner: int) -> int:
        if self._focus is Focus.CONTINUED and not self.rules.takes_new_producer:
            return _APPLICATION
        return _FIRST_PRODUCER if self.rules.agrees_on_producer else _FIRST_PRODUCER + owner

    def new_producer_id(self) -> int:
        self._producer_ids += 1
        return self._producer_ids

    def some_leader(self) -> int:
        """Return whom a writer takes for the leader: old metadata name one that is deposed."""
        leading = [replica.number for replica in self.target.replicas if replica.is_leading]
        return leading[int(self.chance() * len(leading))]

    def time_of_batch(self) -> int:
        """Return the max timestamp that a batch is sent with."""
        is_old = self._records_age_ms >= self._expiration_ms // 2
        return self.now_ms if is_old and self.rules.keeps_alive else self.now_ms - self._records_age_ms

    def wait(self, task: Task) -> None:
        """End a task that may not write now. Its partition is left out, other ones go on."""
        self._end(task)

    def report_loss(self) -> None:
        """Take a report that the target lost records. Here it never does."""
        raise ViolationError("a loss of records was reported that did not happen")

    def report_damage(self, task: Task, detail: str) -> None:
        if self.target.foreign_at is None:
            raise ViolationError(f"damage was reported that did not happen: {detail}")
        self.damage = detail
        self._end(task)

    def record(self, task: Task) -> None:
        """Decide what a task wrote, if its owner still owns the map."""
        if task.owner == self.owner:
            reached = task.reached if self.rules.records_answered else task.sent
            if reached > self.position:
                self.position = self.recorded_end = reached
                task.require_recordable(self)
        self._end(task)

    def _end(self, task: Task) -> None:
        self.tasks.remove(task)
        task.close(self.now_ms)
        if task.has_retried and task.owner == self.owner:
            self.unclean_ms = self.now_ms

    # --- what happens ---

    def run(self) -> None:
        """Play a schedule. Raises ViolationError."""
        if self.is_refused:
            return
        chance, target, harms = self.chance, self.target, self._harms()
        steps = 0.25 + 0.25 * chance()
        serves = steps + 0.1 + 0.25 * chance()
        fetches = serves + 0.06 + 0.12 * chance()
        for _ in range(_STEPS):
            draw = chance()
            if draw < steps:
                if self.tasks:
                    self.tasks[int(chance() * len(self.tasks))].step(self)
                    if self.damage is not None:
                        break
                elif self.position == self.source_end and not target.is_busy:
                    break
                else:
                    self._start_task()
            elif draw < serves:
                if target.connections:
                    target.serve(target.connections[int(chance() * len(target.connections))])
            elif draw < fetches:
                target.fetch(self._follower(chance()))
            elif draw < fetches + 0.04:
                self._start_task()
            else:
                harm = harms[int(chance() * len(harms))]
                harm()
                if self._note:
                    self._note(f"{harm.__name__}: {self}")
        if self.damage is None:
            self._complete()
        elif self._note:
            self._note(f"damage reported: {self.damage}")

    def _harms(self) -> Sequence[Callable[[], object]]:
        """Return some of what can go wrong, and none of the rest: rare things then come together more often."""
        every = (
            self._kill_task,
            self._kill_task,
            self._replace_task,
            self._take_over,
            self._pass_some_time,
            self._pass_some_time,
            self._fail_over,
            self._depose,
            self._restart,
            self._drop_out,
            self._expire,
            self._empty,
            self._reload,
        )
        match self._focus:
            case Focus.FORGOTTEN:
                return [self._kill_task, self._replace_task, self._empty, self._empty, self._reload, self._reload]
            case Focus.EXPIRING:
                return [self._kill_task, self._expire, self._expire, self._pass_some_time, self._pass_some_time]
            case Focus.LEADERS:
                return [self._kill_task, self._fail_over, self._fail_over, self._restart, self._drop_out, self._depose]
            case Focus.FOREIGN:
                return [self._kill_task, self._take_over, self._write_foreign]
            case Focus.CONTINUED if self.chance() < _SHARE_OF_HARMS:
                return [self._take_over, self._fail_over, self._fail_over, self._fail_over, self._drop_out, self._depose]
        harms: list[Callable[[], object]] = [harm for harm in every if self.chance() < _SHARE_OF_HARMS]
        if self.chance() < _SHARE_OF_FOREIGN_WRITERS:
            harms.append(self._write_foreign)
        return harms or [self._kill_task]

    def _some_broker(self) -> int:
        return int(self.chance() * REPLICAS)

    def _fail_over(self) -> None:
        self.target.fail_over(self._some_broker())

    def _depose(self) -> None:
        """Let a broker learn who leads."""
        number = self._some_broker()
        if number != self.target.leader:
            self.target.replicas[number].is_leading = False

    def _restart(self) -> None:
        self.target.restart(self._some_broker())

    def _drop_out(self) -> None:
        self.target.drop_out(self._some_broker())

    def _expire(self) -> None:
        for replica in self.target.replicas:
            if self.chance() < 0.7:
                replica.expire(self.now_ms, self._expiration_ms)

    def _empty(self) -> None:
        if self._may_empty_any_time or not self._is_log_trusted():
            self.target.empty()

    def _reload(self) -> None:
        """Let a broker move its log to another disk: its connections stay."""
        number = self.target.leader if self.chance() < 0.5 else self._some_broker()
        self.target.replicas[number].reload()

    def _write_foreign(self) -> None:
        self.target.write_foreign(self.now_ms)

    def _pass_some_time(self) -> None:
        self._pass(self._some_time())

    def _replace_task(self) -> None:
        """Kill a task; Spark makes another attempt of it at once."""
        unclean_ms, task = self.unclean_ms, self._kill_task()
        if task is not None and task.owner == self.owner:
            if not self.rules.notes_lost_task:
                self.unclean_ms = unclean_ms
            self._start_task()

    def _is_log_trusted(self) -> bool:
        return any(task.trusts_log for task in self.tasks) or any(
            connection.trusts_log and (connection.requests or connection.waits) for connection in self.target.connections
        )

    def _follower(self, draw: float) -> int:
        return (self.target.leader + 1 + int(draw * (REPLICAS - 1))) % REPLICAS

    def _start_task(self) -> None:
        if self.position < self.source_end and all(task.owner != self.owner for task in self.tasks):
            self.tasks.append(Task(self, self.owner, self.unclean_ms, self.now_ms + TASK_MS))

    def _kill_task(self) -> Task | None:
        if not self.tasks:
            return None
        task = self.tasks.pop(int(self.chance() * len(self.tasks)))
        task.close(self.now_ms)
        self.killed += 1
        if task.owner == self.owner:
            self.unclean_ms = self.now_ms
        return task

    def _take_over(self) -> None:
        """Let another run own the map; the task of the one before goes on until its deadline."""
        self.owner += 1
        self.unclean_ms = self.now_ms

    def _some_time(self) -> int:
        closing = [connection.closes_at + IDLE_MS for connection in self.target.connections if connection.closes_at is not None]
        if closing and self.chance() < 0.3:
            return max(_SECOND, min(closing) - self.now_ms - 1)
        choices = (_SECOND, _MINUTE, 9 * _MINUTE, 14 * _MINUTE, 26 * _MINUTE, 11 * _HOUR, 13 * _HOUR, 25 * _HOUR)
        return choices[int(self.chance() * len(choices))]

    def _pass(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        for task in [task for task in self.tasks if task.deadline_ms <= self.now_ms]:
            self.tasks.remove(task)
            task.close(task.deadline_ms)
            if task.owner == self.owner:
                self.unclean_ms = max(self.unclean_ms, task.deadline_ms)
        self.target.close_connections(self.now_ms - IDLE_MS)
        if duration_ms > _LONG_PAUSE_MS:
            self.target.settle()

    def _complete(self) -> None:
        """Stop all faults, and let one owner finish. Raises ViolationError where it cannot, or passes over a foreign record."""
        for task in self.tasks:
            task.close(self.now_ms)
        self.tasks = []
        self.target.settle()
        self._pass(TASK_MS + IDLE_MS)
        self._take_over()
        self.cut = self.source_end
        for _ in range(40):
            self._pass(TASK_MS + IDLE_MS)  # after a refusal a log whose producer is forgotten is left for so long
            self._start_task()
            while self.tasks:
                self.tasks[0].step(self)
                for connection in self.target.connections:
                    if connection.closes_at is None:
                        connection.is_slow = False
                        self.target.serve(connection)
                        if connection.waits is not None:
                            self.target.settle()
            if self.damage is not None or self.position == self.source_end:
                return
        raise ViolationError(f"stuck: the source ends at {self.source_end}, the map at {self.position}")

    def __str__(self) -> str:
        logs = "; ".join(
            f"{'leader ' if replica.number == self.target.leader else ''}{'leading ' if replica.is_leading else ''}"
            f"[{replica.start}, {replica.end}) watermark {replica.high_watermark} producers {sorted(replica.producers)}"
            for replica in self.target.replicas
        )
        return f"at {(self.now_ms - _BEGIN_MS) / 60_000:.1f} min, position {self.position}, {len(self.tasks)} tasks: {logs}"
