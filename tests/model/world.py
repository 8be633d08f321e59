"""The whole model: processes, tasks, late requests, the two systems they write to; and the moves a scheduler may choose from.

Left alone, the world takes the default move until the mirror has copied everything. A schedule is a list of deviations from
that: a fault, a switch to the other process, a delayed request that arrives now.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from tests.model import effects
from tests.model.delta_log import Snapshot, land
from tests.model.driver import Ended, Run, TakeOver
from tests.model.effects import NO_RESPONSE, Effect
from tests.model.invariants import ViolationError, check_commit, check_done, check_quarantine, check_target, require
from tests.model.moves import FORGOTTEN_MARKERS, HELD_MARKERS, Delivery, Kind, Move, faults_of
from tests.model.programs import Library, Node
from tests.model.slot import SlotTask
from tests.model.source import MicroBatch, Scenario, SparkCheckpoint, plan, target_partition
from tests.model.target_cluster import FENCED, Markers, Phase, TargetCluster

MAX_STARTS = 12
MAX_STEPS = 1_500
WAITS_FOR_LEADERS = 14
"""So many pauses of the product a target partition is without a leader at the most: longer than it waits for one partition."""
MOST_RIVALS = 2
"""Processes that live at once."""


class Process(NamedTuple):
    number: int
    node: Node
    awaited: tuple[int, ...] = ()


class Task(NamedTuple):
    """`owner`: the process that waits for it; None for a zombie."""

    node: Node
    owner: int | None


class World:
    def __init__(self, library: Library, scenario: Scenario) -> None:
        self.library, self.scenario = library, scenario
        self.target = TargetCluster(scenario.topic_partitions, verifies=scenario.verifies)
        self.table: Snapshot | None = None
        self.quarantine: frozenset[tuple[int, int]] = frozenset()
        self.spark = SparkCheckpoint()
        self.processes: dict[int, Process] = {}
        self.tasks: dict[int, Task] = {}
        self.letters: tuple[Effect, ...] = ()
        self.current: int | None = None
        self.starts = self.task_count = self.waits = self.steps = self.waits_for_leaders = 0
        self.is_copied = self.is_confirmed = self.is_stuck = False
        self.confirming: int | None = None
        self.has_lost_logs = not scenario.keeps_logs

    def fork(self) -> World:
        copy = object.__new__(World)
        copy.__dict__.update(self.__dict__)
        copy.target = self.target.fork()
        copy.processes, copy.tasks = dict(self.processes), dict(self.tasks)
        return copy

    def key(self) -> int:
        """Equal for worlds with the same future (and for others with a probability of 2^-64)."""
        return hash(
            (
                self.target.key(),
                (self.table, self.quarantine),
                self.spark,
                tuple(self.processes.values()),
                tuple(self.tasks.items()),
                self.letters,
                (self.current, self.starts, self.waits, self.waits_for_leaders, self.confirming),
                (self.is_copied, self.is_confirmed, self.is_stuck, self.has_lost_logs),
            )
        )

    # --- what can be chosen

    def default(self) -> Move | None:
        """None: nothing is left to do."""
        if self.is_stuck:
            return None
        if self.current is not None:
            process = self.processes[self.current]
            waiting = [task for task in process.awaited if self.tasks[task].node.request is not None]
            return Move(Kind.TASK, waiting[0]) if waiting else Move(Kind.PERFORM, self.current)
        if not self.is_copied:
            return Move(Kind.START)
        if self.target.leaderless:
            return Move(Kind.ELECT_LEADERS)
        if self.letters:
            return Move(Kind.LETTER, 0)
        for task in self.tasks:
            return Move(Kind.ZOMBIE, task)
        for name in self.target.with_held_markers():
            return Move(Kind.RELEASE, name)
        for name in self.target.ongoing():
            return Move(Kind.TIME_OUT, name)
        return None if self.is_confirmed else Move(Kind.START)

    def deviations(self) -> list[Move]:
        """Everything else that may happen now. Only while the mirror is at work: then faults stop."""
        default = self.default()
        if default is None or default.kind not in (Kind.PERFORM, Kind.TASK, Kind.START):
            return []
        moves = [] if default.kind is Kind.START else self._faults_of(default)
        moves += [Move(Kind.SWITCH, number) for number in self.processes if number != self.current]
        if self.current is not None:
            moves.append(Move(Kind.CRASH, self.current))
            if len(self.processes) < MOST_RIVALS and self.scenario.has_zombies:
                moves.append(Move(Kind.START))
        for number, task in self.tasks.items():
            if task.owner is None:
                moves += [Move(Kind.ZOMBIE_STEP, number), Move(Kind.ZOMBIE, number)]
            elif task.node.request is not None and self.scenario.has_zombies:
                moves.append(Move(Kind.LOSE_TASK, number))
        moves += [Move(Kind.LETTER, at) for at in range(len(self.letters))]
        moves += [
            Move(Kind.TIME_OUT, name, markers=markers)
            for name in self.target.ongoing()
            for markers in (Markers.WRITTEN, *self._odd_markers(is_commit=False))
        ]
        for name in self.target.with_held_markers():
            moves.append(Move(Kind.RELEASE, name))
            if Markers.FORGOTTEN in self._odd_markers(self.target.txns[name].is_commit):
                moves.append(Move(Kind.FORGET, name))
        if self.target.receipts:
            moves.append(Move(Kind.EXPIRE))
        if any(log.start < log.last_stable_offset for log in self.target.logs.values()):
            moves.append(Move(Kind.TRUNCATE))
        if self.scenario.loses_leaders and not self.target.leaderless:
            moves += [Move(Kind.LOSE_LEADER, topic_partition) for topic_partition in self.scenario.topic_partitions]
        if self.target.leaderless:
            moves.append(Move(Kind.ELECT_LEADERS))
        if not self.processes and self.scenario.has_operator:
            moves += [Move(Kind.ABORT_PARTITION, where) for where in self.target.open_partitions()]
        if not self.processes and self.spark.ends is not None:
            moves += [Move(Kind.LOSE_CHECKPOINT), Move(Kind.REWIND_CHECKPOINT)]
        return moves

    def _faults_of(self, default: Move) -> list[Move]:
        request = (self.processes if default.kind is Kind.PERFORM else self.tasks)[default.who].node.request
        moves = [default._replace(delivery=delivery) for delivery in faults_of(request)]
        if isinstance(request, effects.InitProducerId) and self._is_ongoing(request.transactional_id):
            moves += [default._replace(markers=markers) for markers in self._odd_markers(is_commit=False)]
        if isinstance(request, effects.EndTxn) and self._is_ongoing(request.txn.transactional_id):
            moves += [default._replace(markers=markers) for markers in self._odd_markers(request.is_commit)]
        return moves

    def _is_ongoing(self, name: str) -> bool:
        txn = self.target.txns.get(name)
        return txn is not None and txn.phase is Phase.ONGOING

    def _odd_markers(self, is_commit: bool) -> tuple[Markers, ...]:
        forgets = self.scenario.forgets_commits if is_commit else self.scenario.forgets_aborts
        return HELD_MARKERS + FORGOTTEN_MARKERS if forgets else HELD_MARKERS

    # --- what happens then

    def take(self, move: Move) -> None:
        """One step. Raises Violation."""
        self.steps += 1
        require(self.steps < MAX_STEPS, "recovery does not end: too many steps without a fault")
        match move.kind:
            case Kind.PERFORM:
                self._perform(move)
            case Kind.TASK | Kind.ZOMBIE_STEP:
                self._step_task(move.who, move)
            case Kind.ZOMBIE:
                while move.who in self.tasks:
                    self._step_task(move.who, move)
            case Kind.START:
                self._start()
            case Kind.CRASH:
                self._bury(move.who)
            case Kind.SWITCH:
                self.current = move.who
            case Kind.LOSE_TASK:
                self._lose_task(move.who)
            case Kind.LETTER:
                letter = self.letters[move.who]
                self.letters = self.letters[: move.who] + self.letters[move.who + 1 :]
                self._apply(letter, move.markers)
            case _:
                self._surroundings(move)

    def _surroundings(self, move: Move) -> None:
        match move.kind:
            case Kind.TIME_OUT:
                self.target.time_out(move.who, move.markers)
            case Kind.RELEASE:
                self.target.release(move.who)
            case Kind.FORGET:
                self.target.release(move.who, is_forgotten=True)
            case Kind.LOSE_LEADER:
                self.target.lose_leader(move.who)
            case Kind.ELECT_LEADERS:
                self._elect_leaders()
            case Kind.ABORT_PARTITION:
                self.target.abort_partition(*move.who)
            case Kind.EXPIRE:
                self.target.receipts.clear()
            case Kind.TRUNCATE:
                self.has_lost_logs = True
                self.target.truncate()
            case Kind.LOSE_CHECKPOINT:
                self.spark = SparkCheckpoint(was_quiet=self.spark.was_quiet)
            case Kind.REWIND_CHECKPOINT:
                self.spark = SparkCheckpoint(ends=(0,) * len(self.scenario.logs), was_quiet=self.spark.was_quiet)
            case _:
                raise AssertionError(f"not a move of the surroundings: {move}")
        self._check_target()

    def _start(self) -> None:
        require(self.starts < MAX_STARTS, "recovery does not end: one start after another")
        number, self.starts = self.starts, self.starts + 1
        if not self.processes and self.is_copied:
            self.confirming = number
        self.processes[number] = Process(number, self.library.start(TakeOver(Run(self.scenario, number))))
        self.current = number

    def _bury(self, number: int) -> None:
        """Its tasks go on as zombies."""
        process = self.processes.pop(number)
        for task in process.awaited:
            if self.tasks[task].node.request is None or not self.scenario.has_zombies:
                del self.tasks[task]
            else:
                self.tasks[task] = self.tasks[task]._replace(owner=None)
        self.current = next(iter(self.processes), None)

    def _lose_task(self, number: int) -> None:
        """Spark takes it for dead and starts another attempt; the lost one goes on."""
        task = self.tasks[number]
        assert task.owner is not None
        program = task.node.program
        assert isinstance(program, SlotTask)
        retry = replace(program, attempt=program.attempt + 1)
        self.tasks[number] = task._replace(owner=None)
        self.task_count += 1
        self.tasks[self.task_count] = Task(self.library.start(retry), task.owner)
        process = self.processes[task.owner]
        awaited = tuple(self.task_count if slot == number else slot for slot in process.awaited)
        self.processes[task.owner] = process._replace(awaited=awaited)

    def _perform(self, move: Move) -> None:
        process = self.processes[move.who]
        request = process.node.request
        assert request is not None
        if isinstance(request, effects.RunTasks):
            if not process.awaited:
                self._launch(process, request)
                return
            response: Any = tuple(self.tasks.pop(task).node.outcome for task in process.awaited)
        else:
            response = self._respond(request, move)
        self._go_on(process.number, self.library.go_on(process.node, response))

    def _launch(self, process: Process, request: effects.RunTasks) -> None:
        self.waits = 0
        awaited = []
        for slot in sorted({planned_range.slot for planned_range in request.ranges}):
            ranges = tuple(planned_range for planned_range in request.ranges if planned_range.slot == slot)
            program = SlotTask(
                self.scenario,
                request.run,
                request.decision,
                slot,
                0,
                ranges,
                request.positions,
                request.id_numbers,
                request.held,
                request.prepared,
            )
            self.task_count += 1
            self.tasks[self.task_count] = Task(self.library.start(program), process.number)
            awaited.append(self.task_count)
        self.processes[process.number] = process._replace(awaited=tuple(awaited))

    def _go_on(self, number: int, node: Node) -> None:
        self.processes[number] = Process(number, node)
        if node.request is None:
            self._bury(number)
            self._ended(number, node.outcome)

    def _ended(self, number: int, ended: Ended) -> None:
        """Note that a run ended. One that was taken over and had nothing left to write may not have noticed."""
        assert self.table is not None
        is_owner = self.table.run_id == f"run-{number}"
        match ended.outcome:
            case "done" if is_owner and Run(self.scenario, number).is_retry and not self.is_copied:
                pass
            case "done" if is_owner:
                self.is_copied = True
                self.is_confirmed = number == self.confirming
                check_done(self.scenario, self.target, self.table, is_final=self.is_confirmed and not self.processes)
            case "done" | "FencedError" if not is_owner:
                pass
            case "RecoverNeededError" if is_owner and self.has_lost_logs and self._lacks_receipts():
                self.is_stuck = True
            case _:
                raise ViolationError(f"run {number} ended with {ended.outcome}: {ended.detail}")

    def _lacks_receipts(self) -> bool:
        """Whether a transaction that is to be resolved has none: it was aborted, or its receipt expired or is pending."""
        assert self.table is not None
        pending = {receipt for receipt, _ in self.target.pending.values()}
        return any(receipt not in self.target.receipts or receipt in pending for receipt in self.table.doubtful_receipts())

    def _step_task(self, number: int, move: Move) -> None:
        task = self.tasks[number]
        request = task.node.request
        assert request is not None
        node = self.library.go_on(task.node, self._respond(request, move))
        if node.request is None and task.owner is None:
            del self.tasks[number]
        else:
            self.tasks[number] = Task(node, task.owner)

    def _respond(self, request: Effect, move: Move) -> Any:
        match move.delivery:
            case Delivery.LOST:
                return NO_RESPONSE
            case Delivery.LATE:
                self.letters = (*self.letters, request)
                return NO_RESPONSE
            case Delivery.NOT_DURABLE:
                return FENCED
        response = self._apply(request, move.markers)
        return response if move.delivery is Delivery.OK else NO_RESPONSE

    def _apply(self, request: Effect, markers: Markers) -> Any:
        target = self.target
        match request:
            case effects.Look():
                return self.table
            case effects.Create(properties):
                self.table = self.table or Snapshot(0, properties)
                return None
            case effects.Commit():
                return self._commit(request)
            case effects.ListOffsets(topic_partitions, is_committed):
                return tuple(
                    target.list_offset(topic_partition, is_committed=is_committed) for topic_partition in topic_partitions
                )
            case effects.DescribeProducers(topic_partitions):
                return tuple(target.describe_producers(topic_partition) for topic_partition in topic_partitions)
            case effects.DescribeTxn(name):
                return target.describe(name)
            case effects.Fetch(topic_partition, offset):
                return target.fetch(topic_partition, offset)
            case effects.ReadReceipt():
                return target.read_receipt(request)
            case effects.Plan(run, positions):
                self.spark, planned = plan(self.spark, self.scenario, run, dict(positions))
                if isinstance(planned, MicroBatch) and self._is_left_out(planned):
                    self._elect_leaders()  # there is nothing else to copy
                return planned
            case effects.CommitMicroBatch(batch_id):
                self.spark = self.spark._replace(committed_id=batch_id)
                return None
            case effects.SetAside(batches):
                self.quarantine |= set(batches)
                return None
            case effects.Wait():
                return self._wait()
        return self._write(request, markers)

    def _write(self, request: Effect, markers: Markers) -> Any:
        target = self.target
        match request:
            case effects.InitProducerId(name):
                response: Any = target.init_producer_id(name, markers)
                self._check_target()
                return response
            case effects.AddToTxn(txn, topic_partitions):
                return target.add_to_txn(txn, topic_partitions)
            case effects.Produce():
                return target.produce(request)
            case effects.WriteReceipt():
                return target.write_receipt(request)
            case effects.EndTxn(txn, is_commit):
                response = target.end_txn(txn, is_commit, markers)
                self._check_target()
                return response
        raise AssertionError(f"nobody answers {request}")

    def _commit(self, commit: effects.Commit) -> bool:
        before = self.table
        assert before is not None
        after = land(before, commit, is_spark=self.scenario.is_spark_writer)
        if after is None:
            return False
        if after is not before:
            check_commit(self.scenario, self.target, before, after, commit)
            check_quarantine(after, self.quarantine)
            self.table = after
            self._check_target()
        return True

    def _wait(self) -> None:
        """Who waits lets the world go on: markers come at last, and what is open too long is aborted."""
        self.waits += 1
        self.waits_for_leaders += bool(self.target.leaderless)
        if self.waits_for_leaders == WAITS_FOR_LEADERS:
            self._elect_leaders()
        if self.waits == 2:
            for name in self.target.with_held_markers():
                self.target.release(name)
        if self.waits == 4:
            self.waits = 0
            for name in self.target.ongoing():
                self.target.time_out(name, Markers.WRITTEN)
        self._check_target()

    def _elect_leaders(self) -> None:
        """Coordinators have tried to write the markers all the time."""
        self.waits_for_leaders = 0
        self.target.elect_leaders()
        for name in self.target.with_held_markers():
            self.target.release(name)

    def _is_left_out(self, planned: MicroBatch) -> bool:
        topic_partitions = [target_partition(planned_range.source.partition).topic_partition for planned_range in planned.ranges]
        return all(topic_partition in self.target.leaderless for topic_partition in topic_partitions)

    def _check_target(self) -> None:
        if not self.scenario.keeps_receipts:
            self.target.receipts.clear()
        if not self.scenario.keeps_logs:
            self.target.truncate()
        check_target(self.scenario, self.target, self.table)


def run_on(world: World) -> None:
    """Without further faults, until nothing is left to do. Raises Violation."""
    while (move := world.default()) is not None:
        world.take(move)
