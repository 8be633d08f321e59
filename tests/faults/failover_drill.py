"""A drill: the source cluster is killed under transactional load, groups continue at the target, and everything comes back.

`python -m tests.faults.failover_drill --groups 10 --seconds 30` starts two brokers, runs it and prints its table.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from tests.faults import launch
from tests.faults.gate import Gate
from tests.faults.mirror_process import WITHOUT_SPARK, MirrorProcess
from tests.support import mirror_runs as runs

from shallow_mirror.config.failover_config import FailoverConfig, FailoverFiles
from shallow_mirror.local_kafka import start_clusters, stop_clusters
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.migration import Options
from shallow_mirror.migration.conductor_ports import Outside
from shallow_mirror.migration.failover import FailoverState, Step, Way, fail_back, fail_over
from shallow_mirror.migration.mirror_process import StartedMirror

PATIENCE_S = 30.0
COMMIT_EVERY_S = 0.2
LAST_TRY_S = 2.0
"""So long a client tries to end what it began at a cluster that is dead."""


class Writer:
    """Writes unique values in transactions. `written`: committed; `unknown`: their commit was not answered."""

    def __init__(self, name: str, topic: str, partitions: int, pause_s: float) -> None:
        self._name, self._topic, self._partitions, self._pause_s = name, topic, partitions, pause_s
        self._number, self._stop, self._thread = 0, threading.Event(), threading.Thread()
        self.written: list[str] = []
        self.unknown: list[str] = []

    def start(self, bootstrap: str) -> None:
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, args=(bootstrap,), name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(PATIENCE_S)
            assert not self._thread.is_alive(), f"writer {self._name} did not end"

    def _run(self, bootstrap: str) -> None:
        producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": f"{self._topic}-{self._name}", "linger.ms": 2, "log_level": 0}
        )
        producer.init_transactions(PATIENCE_S)
        while not self._stop.wait(self._pause_s):
            values = [f"{self._name}-{self._number + at}" for at in range(5)]
            self._number += 5
            try:
                producer.begin_transaction()
                for at, value in enumerate(values):
                    producer.produce(self._topic, value, partition=(self._number + at) % self._partitions)
                if self._number % 20 == 0:
                    producer.flush(LAST_TRY_S)
                    producer.abort_transaction(LAST_TRY_S)
                    continue
                producer.commit_transaction(LAST_TRY_S)
            except KafkaException:
                self.unknown += values
                producer.purge()
                return
            self.written += values


class Reader:
    """A group of one member that commits now and then. Also survives a cluster that dies."""

    def __init__(self, group: str, topic: str) -> None:
        self.group, self._topic = group, topic
        self._stop, self._thread = threading.Event(), threading.Thread()
        self.read: list[str] = []
        self.first_at_s: float | None = None
        """When the first record since the last start was read."""

    def start(self, bootstrap: str) -> None:
        self._stop.clear()
        self.first_at_s = None
        self._thread = threading.Thread(target=self._run, args=(bootstrap,), name=self.group, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join(PATIENCE_S)
            assert not self._thread.is_alive(), f"group {self.group} did not end"

    def _run(self, bootstrap: str) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": self.group,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        consumer.subscribe([self._topic])
        committed_at_s = time.monotonic()
        while not self._stop.is_set():
            for message in consumer.consume(500, 0.1):
                if message.error() is None:
                    self.first_at_s = self.first_at_s or time.monotonic()
                    self.read.append(message.value().decode())
            if time.monotonic() - committed_at_s >= COMMIT_EVERY_S:
                self._commit(consumer, asynchronous=True)
                committed_at_s = time.monotonic()
        self._commit(consumer, asynchronous=False)
        consumer.close()

    @staticmethod
    def _commit(consumer: Consumer, *, asynchronous: bool) -> None:
        positions = [position for position in consumer.position(consumer.assignment()) if position.offset >= 0]
        if not positions:
            return
        try:
            consumer.commit(offsets=positions, asynchronous=asynchronous)
        except KafkaException as error:  # the cluster is dead: what was read since is read again
            gone = (KafkaError._TRANSPORT, KafkaError._WAIT_COORD, KafkaError._TIMED_OUT, KafkaError._NO_OFFSET)
            if error.args[0].code() not in (*gone, KafkaError.COORDINATOR_NOT_AVAILABLE, KafkaError._ALL_BROKERS_DOWN):
                raise


@dataclass(slots=True)
class GroupResult:
    """Records of one group over the fail-over. `repeated_at_most`, `missing_at_least`: what the state says."""

    first_record_s: float
    repeated: int
    lost: int
    repeated_at_most: int
    missing_at_least: int | None


@dataclass(slots=True)
class DrillResult:
    """`readers_s`: from the SIGKILL of the source until the groups were committed at the target, of which `command_s` the
    command took."""

    written: int
    readers_s: float
    command_s: float
    groups: dict[str, GroupResult]
    steps_s: dict[str, float]
    kept: int = 0
    """Records that only the old source had."""
    back_s: float = 0.0
    lost_after_back: dict[str, list[str]] = field(default_factory=dict)
    repeated_after_back: dict[str, list[str]] = field(default_factory=dict)
    """Beyond those of the fail-over."""

    def table(self) -> str:
        lines = [
            "| group | first record after | repeated | at most, as reported | lost | seen to be missing |",
            "|---|--:|--:|--:|--:|--:|",
        ]
        for name, group in sorted(self.groups.items()):
            seen = "unknown" if group.missing_at_least is None else f"{group.missing_at_least:,}"
            lines.append(
                f"| {name.rpartition('.')[2]} | {group.first_record_s:.1f} s | {group.repeated:,} | "
                f"{group.repeated_at_most:,} | {group.lost:,} | {seen} |"
            )
        return "\n".join(lines)


class Drill:
    """Context manager over two running brokers; `folder` is empty."""

    def __init__(
        self, folder: Path, source: LocalKafka, target: LocalKafka, topic: str, *, partitions: int, groups: int, pause_s: float
    ) -> None:
        self.folder, self.source, self.target, self.topic, self.partitions = folder, source, target, topic, partitions
        self.writers = [Writer(f"writer-{number}", topic, partitions, pause_s) for number in range(2)]
        self.readers = [Reader(f"{topic}.group-{number}", topic) for number in range(groups)]
        self.mirrors: list[MirrorProcess] = []
        self.lines: list[str] = []
        self.steps_s: dict[str, float] = {}
        self.moved_at_s: float | None = None
        self._stack = ExitStack()
        self._are_stopped = False

    def __enter__(self) -> Drill:
        self._gate = self._stack.enter_context(Gate(self.folder))
        runs.create_topic(self.source.bootstrap, self.topic, self.partitions)
        self._write_files()
        return self

    def __exit__(self, *_: object) -> None:
        for client in (*self.writers, *self.readers):
            client.stop()
        for mirror in self.mirrors:
            mirror.kill()
        self._stack.close()

    def _write_files(self) -> None:
        source, target, include = self.source.bootstrap, self.target.bootstrap, [self.topic]
        forward = runs.document(source, target, include, tables="forward", groups={"sync": "1 second"})
        back = runs.document(target, source, include, tables="back", topics={"offsets": {".*": "preserved"}})
        back["source"]["alias"], back["target"]["alias"] = "west", "east"
        failover = {
            "failover": "drill",
            "mirror": "forward.yaml",
            "groups": {"include": [f"{self.topic}\\..*"]},
            "back": {"mirror": "back.yaml", "start": "conductor", "writers": {"quiet": "1 second"}},
            "tables": "failover",
        }
        for name, document in (("forward", forward), ("back", back), ("failover", failover)):
            if "write" in document:
                document["write"]["slots"] = 2
            (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")

    @property
    def file(self) -> Path:
        return self.folder / "failover.yaml"

    def files(self) -> FailoverFiles:
        return FailoverFiles(FailoverConfig.load(self.file))

    def start_mirror(self, conf: Path) -> MirrorProcess:
        scratch = self.folder / f"scratch-{conf.stem}"
        mirror = MirrorProcess(conf, self._gate.address, self.folder / f"{conf.stem}.log", scratch, WITHOUT_SPARK, {})
        self.mirrors.append(mirror)
        return mirror

    def launch(self, file: str, log: Path, options: Sequence[str]) -> StartedMirror:
        return StartedMirror(self.start_mirror(Path(file)).pid, log)

    def run_load(self, seconds: float) -> None:
        """Start everything, and let it run for `seconds` once each group has read at both ends."""
        for client in (*self.writers, *self.readers):
            client.start(self.source.bootstrap)
        self.start_mirror(self.folder / "forward.yaml")
        runs.wait_for("records for all groups", lambda: all(reader.read for reader in self.readers))
        runs.wait_for("recorded offsets of all groups", lambda: self._recorded() >= len(self.readers))
        time.sleep(seconds)

    def _recorded(self) -> int:
        from shallow_mirror.migration.failover.effects import FailoverEffects

        return len(FailoverEffects(self.files(), self, Options()).recorded_groups())

    def fail_over(self) -> DrillResult:
        """Kill the source, fail over, and read at the target until nothing more comes."""
        killed_at_s = time.monotonic()
        self.source.kill()
        before = {reader.group: len(reader.read) for reader in self.readers}
        began_s = time.monotonic()
        state = fail_over(self.files(), self, Options())
        assert self.moved_at_s is not None
        command_s = time.monotonic() - began_s
        readers_s = self.moved_at_s - killed_at_s
        for client in (*self.writers, *self.readers):
            client.stop()
        started_s = time.monotonic()
        for reader in self.readers:
            reader.start(self.target.bootstrap)
        self._await_rest()
        written = Counter(value for writer in self.writers for value in writer.written)
        assert all(count >= 0 for count in before.values())
        groups = {reader.group: self._result(reader, written, state, started_s, readers_s) for reader in self.readers}
        steps_s = {step.value: detail["seconds"] for step, detail in state.done.items()}
        return DrillResult(sum(written.values()), readers_s, command_s, groups, steps_s)

    def _await_rest(self) -> None:
        """Until the readers have read nothing new for a moment."""
        give_up_at_s, quiet_since_s, before = time.monotonic() + PATIENCE_S, time.monotonic(), -1
        while time.monotonic() < give_up_at_s:
            now = sum(len(reader.read) for reader in self.readers)
            if now != before or not all(reader.first_at_s for reader in self.readers):
                before, quiet_since_s = now, time.monotonic()
            elif time.monotonic() - quiet_since_s > 2.0:
                return
            time.sleep(0.05)

    def _result(
        self, reader: Reader, written: Counter[str], state: FailoverState, started_s: float, readers_s: float
    ) -> GroupResult:
        read = Counter(reader.read)
        losses = state.done[Step.REPORT]["groups"][reader.group]
        missing = [loss["missing_offsets"] for loss in losses]
        # A group whose offset is at the end has no record to read before the writers start there.
        first_s = readers_s + (0.0 if reader.first_at_s is None else reader.first_at_s - started_s)
        return GroupResult(
            first_record_s=first_s,
            repeated=sum(count - 1 for count in read.values()),
            lost=sum((written - read).values()),
            repeated_at_most=sum(loss["repeated_records"] or 0 for loss in losses),
            missing_at_least=None if None in missing else sum(missing),
        )

    def fail_back(self, result: DrillResult) -> FailoverState:
        """Write at the target, start the old source, and come back. Groups read every record that was written meanwhile once."""
        for writer in self.writers:
            writer.start(self.target.bootstrap)
        lost = {reader.group: self._written() - Counter(reader.read) for reader in self.readers}
        repeated = {reader.group: Counter(reader.read) - Counter(dict.fromkeys(reader.read, 1)) for reader in self.readers}
        self.source.start()
        began_s = time.monotonic()
        state = fail_back(self.files(), self, Options(launch=self.launch))
        result.back_s = time.monotonic() - began_s
        result.kept = sum(kept["record_count"] or 0 for kept in state.done[Step.KEEP]["kept"])
        time.sleep(1)
        for writer in self.writers:
            writer.stop()
        self._await_rest()
        for reader in self.readers:
            read = Counter(reader.read)
            more_lost = self._written() - read - lost[reader.group]
            more_repeated = read - Counter(dict.fromkeys(read, 1)) - repeated[reader.group]
            if more_lost:
                result.lost_after_back[reader.group] = sorted(more_lost)[:5]
            if more_repeated:
                result.repeated_after_back[reader.group] = sorted(more_repeated)[:5]
        return state

    def _written(self) -> Counter[str]:
        return Counter(value for writer in self.writers for value in writer.written)

    def kept_values(self) -> list[str]:
        """Return the records in the topic of kept records."""
        kept = f"__diverged.{self.topic}"
        if kept not in runs.topics_of(self.target.bootstrap):
            return []
        return [
            value for partition in range(self.partitions) for value in runs.read_values(self.target.bootstrap, kept, partition)
        ]

    # `Reports`: the operator of the drill, who does what is said.

    def begun(self, wave: str, step: object) -> None: ...
    def done(self, wave: str, step: object, detail: Mapping[str, Any]) -> None: ...
    def step_begun(self, way: Way, step: Step) -> None: ...

    def step_done(self, way: Way, step: Step, detail: Mapping[str, Any]) -> None:
        self.steps_s[step.value] = detail["seconds"]
        if step is Step.MOVE_GROUPS:
            self.moved_at_s = time.monotonic()

    def waits(self, outside: Outside) -> None:
        self.lines.append(f"{outside.request} ({outside.seen})")
        if outside.step.value in ("stop writers", "stop groups") and not self._are_stopped:
            self._are_stopped = True
            for client in (*self.writers, *self.readers):
                client.stop()

    def says(self, sentence: str) -> None:
        self.lines.append(sentence)
        if "NOW: point the writers" in sentence and self._are_stopped:
            self._are_stopped = False
            for client in (*self.writers, *self.readers):
                client.start(self.source.bootstrap)


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill the source under load, fail over, and fail back.")
    parser.add_argument("--groups", type=int, default=10, help="consumer groups")
    parser.add_argument("--partitions", type=int, default=12, help="partitions of the topic")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long the load runs before the source is killed")
    parser.add_argument("--pause", type=float, default=0.02, help="pause between two transactions of a writer, in seconds")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        nodes = start_clusters(Path(folder) / "kafka", 2)
        (Path(folder) / "drill").mkdir()
        try:
            drill = Drill(
                Path(folder) / "drill",
                nodes[0],
                nodes[1],
                "orders",
                partitions=options.partitions,
                groups=options.groups,
                pause_s=options.pause,
            )
            with drill:
                drill.run_load(options.seconds)
                result = drill.fail_over()
                print(f"{result.written:,} records were committed; groups were moved {result.readers_s:.1f} s after the SIGKILL")
                print(f"steps: {result.steps_s}\n\n{result.table()}\n")
                drill.fail_back(result)
                print(f"fail-back: {result.back_s:.1f} s; records kept: {result.kept:,}")
                print(f"lost by it: {result.lost_after_back}; repeated by it: {result.repeated_after_back}")
        finally:
            launch.stop_fork_server()
            stop_clusters(nodes)


if __name__ == "__main__":
    main()
