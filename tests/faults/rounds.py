"""One round: the mirror runs to a step, a fault is injected there, it recovers, and everything is checked."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import yaml
from confluent_kafka.admin import AdminClient, NewTopic
from tests.faults.check import Checked, Checker, Moment
from tests.faults.end_offsets import settled_end_offsets
from tests.faults.gate import Gate, PausedProcess
from tests.faults.mirror_process import SPARK, MirrorProcess, survivors
from tests.faults.offset_audit import OffsetAudit
from tests.faults.range_readers import JavaReader, read_with_librdkafka
from tests.faults.steps import DECIDED, SLOTS, Step
from tests.faults.writers import LIGHT, WriteLoad, Writers

from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.demo.checker import compare, partitions_of
from shallow_mirror.demo.map_rows import RowTranslation, load_rows
from shallow_mirror.types import IsolationLevel, TopicPartition

PATIENCE_S = 300.0
"""Bound of every wait; nothing is asserted about how long it took."""

MARKERS_PATIENCE_S = 120.0
"""How long a target whose brokers were away may take to write the markers of transactions that the mirror has ended."""

TRANSACTION_TIMEOUT_MS = 60_000

BETWEEN_MICRO_BATCHES = Step(name="between two micro-batches", point="TakeDecision")


class RoundFailedError(AssertionError):
    """The mirror did not get where it should have got; the end of its log is in the message."""


class Fault(Protocol):
    """Something that happens to a mirror while one of its processes stands at a step."""

    @property
    def name(self) -> str: ...

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        """Inject the fault while `paused` waits; it is released afterwards."""

    def repair(self, scene: Scene) -> None:
        """End the fault after `paused` was released, when it does not end automatically."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """`ending`: what became of the mirror. `checked`: the check at its end, of all that came since the one before.

    `written_bytes`: what the source acknowledged to writers during the round.
    """

    fault: str
    step: str
    ending: str
    checked: Future[Checked]
    left_behind: tuple[str, ...]
    seconds: float
    written_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """After a clean stop: what differs between the clusters and the map as a whole, and what is left of the mirror."""

    records: int
    differences: tuple[str, ...]
    left_behind: tuple[str, ...]
    seconds: float


@dataclass(slots=True)
class Scene:
    """Two clusters, writers, one mirror; context manager.

    Writers and checker use `source` and `target`. The mirror's file names `client` addresses, which may lead elsewhere (a
    proxy). `groups` are merged into the mirror's file, one level deep; `more` is for the faults that need it. With
    `checks_meanwhile` a round does not wait for its check: only where the clusters themselves are not harmed. Where they are, a
    partition may have taken no marker yet, and the mirror copies the others (`target_availability`).
    `replication_factor` and `topic_configs` are of the source's topics; the mirror creates those of the target. `tables_uri` is
    what the mirror's file calls its tables, where that is not `tables`, the folder in which they are files. `keeps_offsets`: every
    record has to be at its own offset on the target.
    """

    folder: Path
    source: str
    target: str
    name: str = "faults"
    engine: str = SPARK
    client: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    groups: Mapping[str, Any] = field(default_factory=dict)
    load: WriteLoad = LIGHT
    replication_factor: int = 1
    topic_configs: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    checks_meanwhile: bool = False
    keeps_offsets: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    mirror: MirrorProcess | None = None
    tables_uri: str = ""
    tables_folder: Path | None = None
    _runs: list[MirrorProcess] = field(default_factory=list, init=False)
    _gate: Gate = field(init=False)
    _writers: Writers = field(init=False)
    _checker: Checker = field(init=False)
    _checks: ThreadPoolExecutor = field(init=False)
    _opened: ExitStack = field(init=False)
    """What ends with the scene."""

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        topic_partitions = self._create_topics()
        self.conf.write_text(yaml.safe_dump(self._document()), encoding="utf-8")
        with ExitStack() as opened:
            self._gate = opened.enter_context(Gate(self.folder))
            self._writers = opened.enter_context(Writers(self.source, topic_partitions, load=self.load, seed=self.seed))
            java = opened.enter_context(JavaReader(self.folder))
            readers = {"librdkafka": read_with_librdkafka, "Java client": java.read}
            audit = OffsetAudit(self.source, self.target, readers) if self.keeps_offsets else None
            self._checker = Checker(self.source, self.target, list(self.topics), self.tables, self._writers.take, audit=audit)
            self._open_checks(opened)
            self._opened = opened.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._opened.__exit__(kind, error, trace)

    def _open_checks(self, opened: ExitStack) -> None:
        """Open what ends first: the checks, and before these the runs."""
        self._checks = opened.enter_context(ThreadPoolExecutor(1, "check"))
        opened.callback(self._kill_runs)

    def _kill_runs(self) -> None:
        for run in self._runs:
            run.kill()

    @property
    def topics(self) -> Mapping[str, int]:
        """Partitions of each."""
        return {f"{self.name}.orders": 4, f"{self.name}.audit": 2}

    @property
    def conf(self) -> Path:
        return self.folder / "mirror.yaml"

    @property
    def tables(self) -> Path:
        return self.tables_folder or self.folder / "tables"

    @property
    def checkpoint(self) -> Path:
        return self.folder / "spark_checkpoint"

    @property
    def gate(self) -> Gate:
        return self._gate

    @property
    def between(self) -> Step:
        """Return the step at which everything is compared."""
        return BETWEEN_MICRO_BATCHES

    @property
    def written_bytes(self) -> int:
        """Return what the source acknowledged to writers so far."""
        return self._writers.acknowledged_bytes

    def running(self) -> MirrorProcess:
        """Return the mirror, which is started when it does not run."""
        if self.mirror is None or self.mirror.exit_code is not None:
            self.mirror = self._start(self.conf, "mirror.log")
        return self.mirror

    def supersede(self) -> MirrorProcess:
        """Start a run beside the one that runs: from now on it is the scene's. Return the older one."""
        older = self.running()
        self.mirror = self.start_beside(self.conf)
        return older

    def start_beside(self, conf: Path) -> MirrorProcess:
        """Start a run of `conf` beside the one that runs. What still runs of it is killed with the scene."""
        return self._start(conf, f"mirror-{len(self._runs) + 1}.log")

    def _start(self, conf: Path, log: str) -> MirrorProcess:
        run = MirrorProcess(conf, self._gate.address, self.folder / log, self.folder / "scratch", self.engine, self.environment)
        self._runs.append(run)
        return run

    def running_or_ended(self) -> MirrorProcess:
        """Return the mirror that was started last."""
        assert self.mirror is not None
        return self.mirror

    def reach(self, step: Step) -> PausedProcess:
        """Let the mirror run until it stands at `step`. Raises RoundFailedError when it ends before."""
        if step.in_recovery:
            self.reach(DECIDED)
            self.running().kill()
        self._gate.await_step(step)
        return self._wait_for(step, self.running())

    def _wait_for(self, step: Step, mirror: MirrorProcess) -> PausedProcess:
        give_up_at = time.monotonic() + PATIENCE_S
        while time.monotonic() < give_up_at:
            paused = self._gate.await_paused(0.2)
            if paused is not None:
                return paused
            if mirror.exit_code is not None:
                raise RoundFailedError(f"the mirror ended with {mirror.exit_code} before {step.name}:\n{mirror.log()[-4000:]}")
        raise RoundFailedError(f"the mirror did not reach {step.name} in {PATIENCE_S:.0f} s:\n{mirror.log()[-4000:]}")

    def round(self, fault: Fault, step: Step) -> Round:
        """Harm the mirror at `step` and return when it has recovered.

        With `checks_meanwhile` it then stands between two micro-batches until it is sent on, otherwise it runs.
        """
        began = time.monotonic()
        written_before = self.written_bytes
        paused = self.reach(step)
        harmed = self.running()
        processes = harmed.everything()
        fault.inject(self, paused)
        paused.release()
        fault.repair(self)
        ending = self._ending_after_recovery(harmed)
        checked = self._check()
        left = [] if harmed.exit_code is None else survivors(processes, 30.0)
        return Round(
            fault=fault.name,
            step=step.name,
            ending=ending,
            checked=checked,
            left_behind=tuple(f"process {process.pid}" for process in left),
            seconds=time.monotonic() - began,
            written_bytes=self.written_bytes - written_before,
        )

    def finish(self) -> Finish:
        """Writers end, the mirror catches up and is stopped; then all of it is compared again, from the first record on."""
        began = time.monotonic()
        self._writers.stop()
        self._gate.forget()
        mirror = self.running()
        self._wait_until_caught_up(mirror)
        processes = mirror.everything()
        code = mirror.stop()
        left = [f"process {process.pid}" for process in survivors(processes, 30.0)]
        left += [f"file {path.name}" for path in (self.folder / "scratch").iterdir()]
        rows = RowTranslation(load_rows(self.tables))
        compared = compare(self.source, self.target, {topic: topic for topic in self.topics}, rows)
        differences = [str(difference) for difference in compared.differences] + [
            f"map: {overlap}" for overlap in rows.overlaps()
        ]
        wait([self._checks.submit(_nothing)])
        differences += [*self._checker.check(self._checker.look()).differences, *self._checker.not_found()]
        differences += self._checker.audit_everything()
        if code != 0:
            differences.append(f"the mirror's exit code is {code}:\n{mirror.log()[-2000:]}")
        return Finish(
            records=sum(compared.target_records.values()),
            differences=tuple(differences),
            left_behind=tuple(left),
            seconds=time.monotonic() - began,
        )

    def _wait_until_caught_up(self, mirror: MirrorProcess) -> None:
        admin = AdminClient({"bootstrap.servers": self.source, "log_level": 0})
        ends = settled_end_offsets(admin, partitions_of(admin, self.topics), IsolationLevel.READ_COMMITTED)
        give_up_at = time.monotonic() + PATIENCE_S
        while True:
            positions = {source.topic_partition: at.offset for source, at in OffsetMap.open(str(self.tables)).positions().items()}
            if all(positions.get(topic_partition, 0) >= end for topic_partition, end in ends.items()):
                return
            if mirror.exit_code is not None or time.monotonic() > give_up_at:
                raise RoundFailedError(f"the mirror did not catch up: {positions}, not {ends}:\n{mirror.log()[-4000:]}")
            time.sleep(0.2)

    def _check(self) -> Future[Checked]:
        """To be called while the mirror stands between two micro-batches. One check at a time, in their order."""
        self._checks.submit(_nothing).result()
        checked = self._checks.submit(self._checker.check, self._look())
        if not self.checks_meanwhile:
            self._gate.forget()  # on a busy machine a check may take longer than the mirror's transactions may stay open
            wait([checked])
        return checked

    def _look(self) -> Moment:
        """Where brokers were away: between two micro-batches behind which nothing is open, if one comes in time."""
        moment, give_up_at = self._checker.look(), time.monotonic() + MARKERS_PATIENCE_S
        while moment.still_open and not self.checks_meanwhile and time.monotonic() < give_up_at:
            self._gate.await_step(self.between)
            self._wait_for(self.between, self.running())
            moment = self._checker.look()
        return moment

    def _ending_after_recovery(self, harmed: MirrorProcess) -> str:
        """Return how the harmed mirror ended; it, or its successor, has recovered on return."""
        self._gate.await_step(self.between)
        give_up_at = time.monotonic() + PATIENCE_S
        while harmed.exit_code is None and time.monotonic() < give_up_at:
            if self._gate.await_paused(0.05) is not None:
                return "went on"
        code = harmed.exit_code
        if code is None:
            raise RoundFailedError(f"the mirror neither went on nor ended in {PATIENCE_S:.0f} s:\n{harmed.log()[-4000:]}")
        is_superseded = self.mirror is not harmed
        self._gate.await_step(self.between)
        self._wait_for(self.between, self.running())
        if is_superseded:
            return "superseded and killed" if code == -9 else f"superseded, ended with exit code {code}"
        return "killed, started again" if code == -9 else f"ended with exit code {code}, started again"

    def _create_topics(self) -> Sequence[TopicPartition]:
        admin = AdminClient({"bootstrap.servers": self.source, "log_level": 0})
        configs = {"retention.ms": "-1", **self.topic_configs}
        new = [NewTopic(name, partitions, self.replication_factor, config=configs) for name, partitions in self.topics.items()]
        for created in admin.create_topics(new).values():
            created.result(30)
        return [TopicPartition(name, number) for name, partitions in self.topics.items() for number in range(partitions)]

    def _document(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "mirror": self.name,
            "source": {"alias": "east", "client": {"bootstrap.servers": self.source, **self.client.get("source", {})}},
            "target": {"alias": "west", "client": {"bootstrap.servers": self.target, **self.client.get("target", {})}},
            "topics": {"include": [name.replace(".", "\\.") for name in self.topics]},
            "read": {"micro_batch_bytes": 1 << 20},
            "write": {"slots": SLOTS, "slot_bytes": 1024, "request_bytes": 1, "transaction_timeout_ms": TRANSACTION_TIMEOUT_MS},
            "tables": self.tables_uri or str(self.tables),
            "checkpoint": str(self.checkpoint),
            "trigger": "0 seconds",
        }
        for group, settings in self.groups.items():
            document[group] = document.get(group, {}) | settings if isinstance(settings, dict) else settings
        return document


def _nothing() -> None:
    return None
