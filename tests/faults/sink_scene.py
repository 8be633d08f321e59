"""Rounds of DataFrame sinks: scenes whose process runs two queries that write to one topic, and the comparison with a reader."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml
from tests.faults.check import Checked
from tests.faults.gate import Gate, PausedProcess
from tests.faults.mirror_process import MirrorProcess, survivors
from tests.faults.network_faults import CLIENT, TARGET, Network
from tests.faults.rounds import PATIENCE_S, TRANSACTION_TIMEOUT_MS, Finish, RoundFailedError, Scene
from tests.faults.sink_numbers import PARTITIONS, differences
from tests.faults.steps import RETURNED, SLOTS, Step
from tests.streaming.dataframes.test_on_brokers import Topic

from shallow_mirror.local_kafka.cluster import LocalKafkaCluster
from shallow_mirror.plurals import counted

ROWS = SLOTS * PARTITIONS + 1
"""Of a micro-batch: every slot has some, and the numbers of its first one change."""
BETWEEN = Step(name="between two micro-batches", point="TakeDecision", after=RETURNED.point)
_NEIGHBOUR_PAUSE_S = 0.2
_GONE_WITHIN_S = 30.0


@dataclass(slots=True)
class QueryHistory:
    """The micro-batches of a query, as Spark's log of offsets has planned them. `earlier`: of checkpoints that were lost.

    `checkpoints`: those in which its micro-batches are, alike where one is in several: an older run may be ahead of a newer one.
    """

    name: str
    checkpoints: list[Path]
    earlier: list[range] = field(default_factory=list)
    _planned: list[range] = field(default_factory=list, init=False)
    _done: int = field(default=0, init=False)

    def read(self) -> tuple[list[range], list[range]]:
        """Return the micro-batches that are done, and those behind them."""
        while (planned := self._find("offsets", len(self._planned))) is not None:
            self._planned.append(range(self._next(), end_of(planned.read_text().splitlines()[-1])))
        while self._done < len(self._planned) and self._find("commits", self._done) is not None:
            self._done += 1
        return [*self.earlier, *self._planned[: self._done]], self._planned[self._done :]

    def _find(self, log: str, batch_id: int) -> Path | None:
        paths = (checkpoint / log / str(batch_id) for checkpoint in self.checkpoints)
        return next((path for path in paths if path.exists()), None)

    def _next(self) -> int:
        known = self._planned or self.earlier
        return known[-1].stop if known else 0

    def lose_checkpoint(self, recorded_end: int) -> None:
        """Keep what was decided: micro-batches up to this end. Another query begins behind it."""
        done, running = self.read()
        self.earlier = [micro_batch for micro_batch in (*done, *running) if micro_batch.stop <= recorded_end]
        self._planned, self._done = [], 0


def end_of(source_offsets: str) -> int:
    """Return the end of the numbers in a line of Spark's log of offsets, or of the list of `without_spark`."""
    read = json.loads(source_offsets)
    return int((read[-1] if isinstance(read, list) else read)["end"])


@dataclass(slots=True)
class SinkScene(Scene):
    """One cluster, which is the target, and a process with two queries, of which the second one is never held.

    `follows`, `start`: of the first query, after it has lost a checkpoint. `rows`: of its micro-batches.
    """

    follows: str | None = None
    start: int = 0
    rows: int = ROWS
    _checkpoints: int = field(default=0, init=False)
    _topic: Topic = field(init=False)
    _histories: list[QueryHistory] = field(init=False)
    _written_bytes: int = field(default=0, init=False)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._topic = Topic(Network.of(self).clusters[TARGET], self.name, self.tables)
        self._histories = [QueryHistory(name, [self.checkpoint / name]) for name in self.names]
        self.write_conf()
        with ExitStack() as opened:
            self._gate = opened.enter_context(Gate(self.folder))
            self._open_checks(opened)
            self._opened = opened.pop_all()
        return self

    @property
    def names(self) -> Sequence[str]:
        return self.name, f"{self.name}.neighbour"

    @property
    def conf(self) -> Path:
        return self.folder / "sink.yaml"

    @property
    def checkpoint(self) -> Path:
        return self.folder / f"checkpoints-{self._checkpoints}"

    @property
    def first_checkpoint(self) -> Path:
        """Return that of the first query."""
        return self.checkpoint / self.name

    @property
    def between(self) -> Step:
        """Return the step behind a whole micro-batch: a replay of one that is committed in part takes a decision as well."""
        return BETWEEN

    @property
    def written_bytes(self) -> int:
        """Return the bytes of values that were compared last."""
        return self._written_bytes

    def write_conf(self) -> None:
        self.conf.write_text(yaml.safe_dump(self._document()), encoding="utf-8")

    def reach(self, step: Step) -> PausedProcess:
        """Let the queries run until the first one stands at `step`, not in its first micro-batch: no query can follow that."""
        if not self._runs:
            Scene.reach(self, RETURNED)
        return Scene.reach(self, step)

    def supersede(self) -> MirrorProcess:
        """Start a second run of both names, with a copy of the checkpoints: Spark would refuse to share them."""
        before = self.checkpoint
        self._checkpoints += 1
        shutil.copytree(before, self.checkpoint, ignore=shutil.ignore_patterns(".*"))
        first, neighbour = self._histories  # only the first one is held, and so does not write behind the copy
        first.checkpoints = [self.first_checkpoint]
        neighbour.checkpoints.insert(0, self.checkpoint / neighbour.name)
        self.write_conf()
        return Scene.supersede(self)

    def refused(self, reason: str) -> None:
        """Start the queries, of which the first one has to be refused. Raises RoundFailedError."""
        run = self.start_beside(self.conf)
        code = run.wait(PATIENCE_S)
        if code != 2 or reason not in run.log():
            raise RoundFailedError(f"exit code {code}, expected an error {reason!r}:\n{run.log()[-4000:]}")

    def lose_checkpoint(self, query_id: str, recorded_end: int) -> None:
        """Begin a new query behind the micro-batch that the table names."""
        self._histories[0].lose_checkpoint(recorded_end)
        shutil.rmtree(self.first_checkpoint)
        self.follows, self.start = query_id, recorded_end
        self.write_conf()

    def _check(self) -> Future[Checked]:
        """Compare everything, while the first query stands between two micro-batches and has no open transaction."""
        checked = self._checks.submit(self._compare)
        wait([checked])
        return checked

    def _compare(self, *, is_held: bool = True) -> Checked:
        """`is_held`: the first query stands in front of its next micro-batch, so that nothing of that may be visible."""
        before = [history.read() for history in self._histories]
        partitions: list[list[str]] = [[] for _ in range(PARTITIONS)]
        for partition, _, value, _, _ in self._topic.read():
            partitions[partition].append((value or b"").decode())
        self._written_bytes = sum(len(value) for values in partitions for value in values)
        found: list[str] = []
        for number, history in enumerate(self._histories):
            done, _ = before[number]
            now_done, running = history.read()
            is_quiet = is_held and number == 0
            found += differences(history.name, done, partitions, () if is_quiet else [*now_done, *running][len(done) :])
        records = sum(map(len, partitions))
        return Checked(records=records, acknowledged=records, unknown=0, differences=tuple(found))

    def finish(self) -> Finish:
        """Stop the queries; then all of it is compared again."""
        began = time.monotonic()
        self._gate.forget()
        run = self.running()
        processes = run.everything()
        code = run.stop()
        left = [f"process {process.pid}" for process in survivors(processes, _GONE_WITHIN_S)]
        checked = self._compare(is_held=False)  # a query may end between a micro-batch and the entry in Spark's log of commits
        found = [*checked.differences]
        if code != 0:
            found.append(f"the exit code of the queries is {code}:\n{run.log()[-2000:]}")
        for history in self._histories:
            if len(history.read()[0]) < 2:
                found.append(f"{history.name} wrote no more than {counted(len(history.read()[0]), 'micro-batch')}")
        return Finish(
            records=checked.records, differences=tuple(found), left_behind=tuple(left), seconds=time.monotonic() - began
        )

    def _document(self) -> dict[str, Any]:
        return {"queries": [self._query(name, is_first=not number) for number, name in enumerate(self.names)]}

    def _query(self, name: str, *, is_first: bool) -> dict[str, Any]:
        return {
            "sink": {
                "name": name,
                "client": {**CLIENT, "bootstrap.servers": self.target},
                "tables": str(self.tables / name),
                "topic": self.name,
                "slots": SLOTS,
                "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS,
                "follows": self.follows if is_first else None,
            },
            "source": {"name": name, "start": self.start if is_first else 0, "rows": self.rows if is_first else ROWS},
            "checkpoint": str(self.checkpoint / name),
            "pause_s": 0 if is_first else _NEIGHBOUR_PAUSE_S,
        }


@dataclass(frozen=True, slots=True)
class PlainSinkScene:
    """A cluster of one broker, without a proxy."""

    engine: str

    @contextmanager
    def __call__(self, folder: Path, name: str, seed: int) -> Iterator[Scene]:
        with LocalKafkaCluster(folder / TARGET, 1, start_timeout_s=PATIENCE_S) as cluster:
            more = {Network.__name__: Network({TARGET: cluster}, random.Random(seed))}
            with SinkScene(
                folder / "queries", "", cluster.bootstrap, name=name, engine=self.engine, seed=seed, more=more
            ) as scene:
                yield scene
