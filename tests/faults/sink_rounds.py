"""Rounds of faults for two queries with DataFrame sinks, on a strict cluster in memory: `make faults FAULTS="sink --rounds 200"`.

Each round plans a micro-batch of one query, as Spark does in its log of offsets, injects a fault, and runs the query until the
micro-batch has returned. Then the committed records of the whole topic are compared with the micro-batches that returned.
"""

from __future__ import annotations

import argparse
import logging
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.fakes.coordinators import TxnState
from tests.fakes.strict_broker import StrictCluster
from tests.faults.sink_numbers import PARTITIONS, differences, partition_of, slot_of, value_of
from tests.faults.steps import SLOTS
from tests.support.inline_frames import InlineFrame, QuerySession, Row, committed, sink_to

from shallow_mirror import ConfigError, FencedError, WrittenRecords
from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import worker_clients
from shallow_mirror.sinks import observe_nothing

TASK_STEPS = ["task.initialised", "task.added", "task.produced", "task.receipt"]
DRIVER_STEPS = ["TakeDecision", "RunSlots", "RefuseHangingTxns", "Decide", "EndTxn", "AwaitVisible", "Settled"]
_MOST_ROWS = 12


class KilledError(BaseException):
    """The end of the process: nothing is cleaned up."""


@dataclass(slots=True)
class KillAt:
    """Observer: kill when `point` is passed for the `passes`-th time."""

    point: str
    passes: int = 1

    def __call__(self, point: str) -> None:
        if point == self.point:
            self.passes -= 1
            if self.passes <= 0:
                raise KilledError(point)


@dataclass(slots=True)
class Query:
    """A query with its checkpoint. `done`: its micro-batches that returned."""

    name: str
    target: StrictCluster
    tables: Path
    id: str
    batch_id: int = 0
    planned: range = range(0)
    done: list[range] = field(default_factory=list)
    offsets: dict[int, str] = field(default_factory=dict)
    follows: str | None = None
    runs: int = 0

    def plan(self, count: int) -> None:
        start = self.done[-1].stop if self.done else 0
        self.planned = range(start, start + count)
        self.offsets[self.batch_id] = f"[{self.planned.stop}]"

    def run(
        self, observer: Callable[[str], None] = observe_nothing, before_slot: Callable[[int], None] = lambda _slot: None
    ) -> InlineFrame:
        """Run the planned micro-batch in a new process. Return its DataFrame."""
        self.runs += 1
        session = QuerySession(self.id, self.offsets)
        session.runs = self.runs
        rows = InlineFrame(*self._slots(), columns=("value", "partition"), session=session, before_slot=before_slot)
        with sink_to(self.target, self.tables, observer, name=self.name, follows=self.follows) as sink:
            sink(rows, self.batch_id)
        return rows

    def note_done(self) -> None:
        """Write the commit of the micro-batch to the checkpoint."""
        self.done.append(self.planned)
        self.batch_id += 1

    def begin_again(self) -> None:
        """Follow the lost query with a new one, behind the micro-batch that the table names."""
        recorded = WrittenRecords.open(str(self.tables), name=self.name).newest()["source_offsets"][0].as_py()
        if int(recorded.strip("[]")) == self.planned.stop:
            self.done.append(self.planned)
        assert int(recorded.strip("[]")) == self.done[-1].stop

    def _slots(self) -> list[list[Row]]:
        return [
            [
                {"value": value_of(self.name, number).encode(), "partition": partition_of(number)}
                for number in self.planned
                if slot_of(number) == slot
            ]
            for slot in range(SLOTS)
        ]


class Rounds:
    """Two queries that write to one topic, and the faults. Every choice is that of `rng`."""

    def __init__(self, target: StrictCluster, folder: Path, rng: random.Random) -> None:
        self._target, self._rng = target, rng
        self._queries = [Query(name, target, folder / name, f"{name}-0") for name in ("one", "two")]
        self.faults: dict[str, Callable[[Query], None]] = {
            "kill": self._kill,
            "kills in a row": self._kill_again_and_again,
            "kill, and the decided transaction of a slot times out": self._kill_and_time_out,
            "kill before Spark notes the micro-batch": self._replay_written,
            "broker restarts under the tasks": self._restart_broker,
            "the other query writes between decision and tasks": self._run_other_meanwhile,
            "a second run takes over": self._take_over,
            "older checkpoint": self._restore_older_checkpoint,
            "lost checkpoint": self._lose_checkpoint,
        }
        for query in self._queries:
            self._finish(query)

    def round(self, fault: str) -> list[str]:
        """Return what differs after a micro-batch with this fault."""
        query = self._rng.choice(self._queries)
        query.plan(self._rng.randint(1, _MOST_ROWS))
        self.faults[fault](query)
        self._finish(query)
        return self.compare()

    def compare(self) -> list[str]:
        partitions = [[bytes(record.value or b"").decode() for record in records] for records in committed(self._target)]
        return [text for query in self._queries for text in differences(query.name, query.done, partitions)]

    @property
    def record_count(self) -> int:
        return sum(len(micro_batch) for query in self._queries for micro_batch in query.done)

    def _finish(self, query: Query) -> None:
        """Run the query until its micro-batch has returned, a new one if nothing is planned."""
        if query.batch_id not in query.offsets:
            query.plan(self._rng.randint(1, _MOST_ROWS))
        query.run()
        query.note_done()

    def _kill(self, query: Query) -> None:
        self._kill_at(query, self._rng.choice([*TASK_STEPS, *DRIVER_STEPS]), self._rng.randint(1, 2))

    def _kill_again_and_again(self, query: Query) -> None:
        for _ in range(3):
            self._kill(query)

    def _kill_at(self, query: Query, point: str, passes: int = 1) -> None:
        # If the point is passed less often, the micro-batch returns, and Spark does not note it.
        with suppress(KilledError):
            query.run(KillAt(point, passes))

    def _kill_and_time_out(self, query: Query) -> None:
        query.plan(_MOST_ROWS)  # both slots have rows
        self._kill_at(query, self._rng.choice(["Decide", "EndTxn"]))
        ids = [f"{query.name}-{slot}" for slot in range(SLOTS)]
        is_open = [name for name in ids if self._target.transactions.txns[name].state is TxnState.ONGOING]
        if is_open:  # the kill may come behind the end of the last one
            self._target.time_out(self._rng.choice(is_open))

    def _replay_written(self, query: Query) -> None:
        query.run()
        assert query.run().evaluations == 0

    def _restart_broker(self, query: Query) -> None:
        def restart(slot: int) -> None:
            if slot == SLOTS - 1 and left:
                left.pop()
                self._target.stop_node(1)
                self._target.start_node(1)

        left = [1]
        query.run(before_slot=restart)

    def _run_other_meanwhile(self, query: Query) -> None:
        (other,) = (each for each in self._queries if each is not query)

        def run_other(slot: int) -> None:
            # In front of the first transaction: behind it the other one would wait for its end, to be visible.
            if slot == 0:
                self._finish(other)

        query.run(before_slot=run_other)

    def _take_over(self, query: Query) -> None:
        def take_over(slot: int) -> None:
            if slot == SLOTS - 1:
                query.run()

        with pytest.raises(FencedError):
            query.run(before_slot=take_over)

    def _restore_older_checkpoint(self, query: Query) -> None:
        if query.batch_id == 0:
            self._finish(query)
            query.plan(self._rng.randint(1, _MOST_ROWS))
        at, offsets, planned = query.batch_id, dict(query.offsets), query.planned
        query.batch_id = self._rng.randrange(at)
        query.offsets[query.batch_id] = f"[{planned.stop + 1}]"  # planned with what the source has by now
        with pytest.raises(ConfigError, match="its checkpoint is older than the tables"):
            query.run()
        query.batch_id, query.offsets = at, offsets

    def _lose_checkpoint(self, query: Query) -> None:
        self._kill(query)
        lost, planned = query.id, query.planned
        query.id, query.batch_id, query.offsets = f"{query.name}-{query.runs}", 0, {0: "[1]"}
        with pytest.raises(ConfigError, match="of another query"):
            query.run()
        query.planned, query.follows, query.offsets = planned, lost, {}
        query.begin_again()


@contextmanager
def strict_cluster() -> Iterator[StrictCluster]:
    """Start a cluster with the topic, whose clients last as long as it."""
    clients: dict[object, Cluster] = {}
    with pytest.MonkeyPatch.context() as patch, StrictCluster() as target:
        patch.setattr(worker_clients, "_clusters", clients)
        patch.setattr("shallow_mirror.sinks.records.record_task.freeze_imports_once", lambda: None)
        target.create_topic("out", PARTITIONS)
        yield target
        for client in clients.values():
            client.close()


def run_rounds(count: int, seed: int, folder: Path) -> tuple[Counter[str], int, list[str]]:
    """Return the rounds by fault, the records written, and the differences of the first round that has any."""
    rng, done = random.Random(seed), Counter[str]()
    with strict_cluster() as target:
        rounds = Rounds(target, folder, rng)
        while done.total() < count:
            for fault in rng.sample([*rounds.faults], min(len(rounds.faults), count - done.total())):
                done[fault] += 1
                if found := rounds.round(fault):
                    return done, rounds.record_count, [f"round {done.total()}, {fault}: {text}" for text in found]
        return done, rounds.record_count, []


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="sink", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    chosen = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="sink-rounds-") as folder:
        done, record_count, found = run_rounds(chosen.rounds, chosen.seed, Path(folder))
    for fault, count in done.most_common():
        print(f"{count:6} {fault}")
    print(f"{done.total()} rounds, {record_count} records, {time.monotonic() - began:.0f} s, {len(found)} differences")
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0
